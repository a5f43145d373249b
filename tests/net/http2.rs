//! Requests over HTTP/1.1 and HTTP/2: the version that a client chooses changes neither its key nor the rules that apply.

use std::{net::SocketAddr, time::Duration};

use axum::{
    Router,
    extract::Path,
    routing::{any, post},
};
use http::{Method, Request};
use hyper::{
    client::conn::{http1, http2},
    ext::Protocol,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::http::{app, serve};
use tokio::{net::TcpStream, time::timeout};
use tower_ratelimit::{
    ClientIp, Header, Key, KeyExtractor, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer, Rule,
    key::{Bearer, Cookie, GrpcMethod, MatchedRoute, TrustedProxies, from_extractor, from_fn},
    layer::Rules,
    store::ManualClock,
};

/// How a request is sent.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// HTTP/1.1, with the path in the first line, and the host in a header.
    Origin,
    /// HTTP/1.1, with the whole URL in the first line, as to a proxy.
    Absolute,
    Http2,
}

#[derive(Clone)]
struct Sent {
    method: Method,
    host: &'static str,
    path: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    cookies: Vec<&'static str>,
    is_websocket: bool,
}

fn send(path: &'static str) -> Sent {
    let (headers, cookies) = (Vec::new(), Vec::new());
    Sent { method: Method::GET, host: "shop.example", path, headers, cookies, is_websocket: false }
}

impl Sent {
    fn host(self, host: &'static str) -> Self {
        Self { host, ..self }
    }

    fn by(self, method: Method) -> Self {
        Self { method, ..self }
    }

    fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((name, value));
        self
    }

    fn cookie(mut self, pair: &'static str) -> Self {
        self.cookies.push(pair);
        self
    }

    fn websocket(self) -> Self {
        Self { is_websocket: true, ..self }
    }

    fn request(&self, form: Form) -> Request<String> {
        let Self { host, path, .. } = *self;
        let mut request = match form {
            Form::Origin => Request::builder().uri(path).header("host", host),
            Form::Absolute => Request::builder().uri(format!("http://{host}{path}")).header("host", host),
            Form::Http2 => Request::builder().uri(format!("http://{host}{path}")),
        }
        .method(self.method.clone());
        for (name, value) in &self.headers {
            request = request.header(*name, *value);
        }
        match form {
            // A browser sends each cookie in a separate field, which compresses better (RFC 9113, section 8.2.3).
            Form::Http2 => request = self.cookies.iter().fold(request, |to, pair| to.header("cookie", *pair)),
            _ if !self.cookies.is_empty() => request = request.header("cookie", self.cookies.join("; ")),
            _ => {}
        }
        if self.is_websocket {
            request = match form {
                // RFC 8441.
                Form::Http2 => request.method(Method::CONNECT).extension(Protocol::from_static("websocket")),
                _ => request
                    .header("connection", "upgrade")
                    .header("upgrade", "websocket")
                    .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            }
            .header("sec-websocket-version", "13");
        }
        request.body(String::new()).unwrap()
    }
}

/// The statuses of the responses to `requests`, which are sent over one connection.
async fn statuses(server: SocketAddr, form: Form, requests: &[Sent]) -> Vec<u16> {
    let socket = TokioIo::new(TcpStream::connect(server).await.unwrap());
    let mut statuses = Vec::new();
    match form {
        Form::Origin | Form::Absolute => {
            let (mut client, connection) = http1::handshake(socket).await.unwrap();
            tokio::spawn(connection);
            for sent in requests {
                client.ready().await.unwrap();
                let response = client.send_request(sent.request(form)).await.unwrap();
                statuses.push(response.status().as_u16());
            }
        }
        Form::Http2 => {
            let (mut client, connection) = http2::handshake(TokioExecutor::new(), socket).await.unwrap();
            tokio::spawn(connection);
            for sent in requests {
                // Until the server's settings allow the extended CONNECT.
                let response = loop {
                    client.ready().await.unwrap();
                    match client.send_request(sent.request(form)).await {
                        Ok(response) => break response,
                        Err(error) if sent.is_websocket && error.is_user() => tokio::task::yield_now().await,
                        Err(error) => panic!("{error:?}"),
                    }
                };
                statuses.push(response.status().as_u16());
            }
        }
    }
    statuses
}

fn policy(name: &str) -> Policy {
    Policy::new(name, Quota::per_hour(1))
}

fn per_client(name: &str) -> Rule {
    Rule::new(policy(name), Key::new("all"))
}

/// Paths that exist, one of them in a nested router.
fn routed(limit: RateLimitLayer) -> Router {
    let hello = || any(async || "hello");
    let nested = Router::new().route("/login", post(async || "hello"));
    Router::new()
        .route("/", hello())
        .route("/ws", hello())
        .route("/users/{id}", hello())
        .route("/greeter.Greeter/{method}", hello())
        .nest("/api", nested)
        .layer(limit)
}

#[tokio::test]
async fn each_extractor_and_rule_holds_alike_over_both_versions_of_http() {
    let clock = ManualClock::new();
    let store = || MemoryStore::with_clock(clock.clone());
    let ruled = |rules: Rules| RateLimitLayer::with_rules(store(), rules);
    fn keyed_by(store: MemoryStore, key: impl KeyExtractor) -> RateLimitLayer {
        RateLimitLayer::new(store, policy("p"), key)
    }
    let host = || Header::new("host");
    let proxies = || TrustedProxies::cidrs(["127.0.0.0/8"]).unwrap();
    let of_host = |name: &'static str| send("/").host(name);
    let spellings = || {
        let names = ["shop.example", "SHOP.Example", "shop.example:8080", "shop.example:", "shop.example."];
        names.into_iter().chain(["other.example"]).map(of_host).collect::<Vec<_>>()
    };
    let one_host = vec![200, 429, 429, 429, 429, 200];
    let forwarded = |addresses| send("/").with("x-forwarded-for", addresses);
    let authorized = |value| send("/").with("authorization", value);
    let with_key = |value| send("/").with("x-api-key", value);
    type Row = (&'static str, fn(RateLimitLayer) -> Router, RateLimitLayer, Vec<Sent>, Vec<u16>);
    let rows: Vec<Row> = vec![
        ("host", app, keyed_by(store(), host()), spellings(), one_host.clone()),
        (
            "host, or the address",
            app,
            keyed_by(store(), host().or(PeerIp::new())),
            spellings(),
            one_host.clone(),
        ),
        ("host and address", app, keyed_by(store(), (host(), PeerIp::new())), spellings(), one_host),
        (
            "blocked hosts",
            app,
            keyed_by(store(), Key::new("all")).block_if(host().any_of(["Shop.example:443"])),
            spellings(),
            vec![429, 429, 429, 429, 429, 200],
        ),
        (
            "exempt hosts",
            app,
            keyed_by(store(), Key::new("all")).exempt_if(host().any_of(["shop.example"])),
            [spellings(), vec![of_host("other.example")]].concat(),
            vec![200, 200, 200, 200, 200, 200, 429],
        ),
        (
            "IPv6 hosts",
            app,
            keyed_by(store(), host()),
            ["[::1]", "[::1]:80", "[::2]"].map(of_host).into(),
            vec![200, 429, 200],
        ),
        (
            "cookie",
            app,
            keyed_by(store(), Cookie::new("session")),
            vec![
                send("/").cookie("theme=dark").cookie("session=s1").cookie("a=b"),
                send("/").cookie("session=s1").cookie("theme=light"),
                send("/").cookie("session=s2"),
                send("/").cookie("theme=dark"),
            ],
            vec![200, 429, 200, 400],
        ),
        (
            "all cookies",
            app,
            keyed_by(store(), Header::new("cookie")),
            vec![
                send("/").cookie("theme=dark").cookie("session=s1"),
                send("/").cookie("theme=dark").cookie("session=s1"),
                send("/").cookie("session=s1"),
                send("/"),
            ],
            vec![200, 429, 200, 400],
        ),
        (
            "header",
            app,
            keyed_by(store(), Header::new("x-api-key")),
            ["k1", "k1 ", "\tk1", "k2", " "].map(with_key).into(),
            vec![200, 429, 429, 200, 400],
        ),
        (
            "bearer",
            app,
            keyed_by(store(), Bearer::new()),
            ["Bearer t1", "bearer  t1", "Bearer t2", "Basic t1"].map(authorized).into(),
            vec![200, 429, 200, 400],
        ),
        ("address", app, keyed_by(store(), PeerIp::new()), vec![send("/"), send("/")], vec![200, 429]),
        (
            "forwarded address",
            app,
            keyed_by(store(), ClientIp::behind(proxies())),
            ["203.0.113.7", "198.51.100.1, 203.0.113.7", "203.0.113.8"].map(forwarded).into(),
            vec![200, 429, 200],
        ),
        (
            "matched route",
            routed,
            keyed_by(store(), MatchedRoute::new()),
            ["/users/1", "/users/2", "/", "/nowhere", "/elsewhere"].map(send).into(),
            vec![200, 429, 200, 404, 429],
        ),
        (
            "parameter of a route",
            routed,
            keyed_by(store(), from_extractor((), |Path(user): Path<String>| user)),
            ["/users/1", "/users/1", "/users/2"].map(send).into(),
            vec![200, 429, 200],
        ),
        (
            "closure over the path",
            routed,
            keyed_by(store(), from_fn(|request| request.uri.path().to_owned())),
            ["/users/1", "/users/1?a", "/users/2"].map(send).into(),
            vec![200, 429, 200],
        ),
        (
            "gRPC method",
            routed,
            keyed_by(store(), GrpcMethod::new()),
            ["/greeter.Greeter/Hello", "/greeter.Greeter/Hello", "/greeter.Greeter/Bye"]
                .map(|path| send(path).by(Method::POST))
                .into(),
            vec![200, 429, 200],
        ),
        (
            "exempt by path",
            routed,
            keyed_by(store(), Key::new("all")).exempt_if(|request| request.uri.path() == "/users/1"),
            ["/users/1", "/users/1", "/users/2", "/users/2"].map(send).into(),
            vec![200, 200, 200, 429],
        ),
        (
            "skipped by path",
            routed,
            ruled(Rules::new().always(per_client("all").skip_if(|request| request.uri.path() == "/users/1"))),
            ["/users/1", "/users/1", "/users/2", "/users/2"].map(send).into(),
            vec![200, 200, 200, 429],
        ),
        (
            "routes",
            routed,
            ruled(Rules::new().route("GET /users/{id}", per_client("users")).fallback(per_client("rest"))),
            vec![
                send("/users/1"),
                send("/users/2").by(Method::HEAD),
                send("/users/1").by(Method::POST),
                send("/users/1").by(Method::PUT),
            ],
            vec![200, 429, 200, 429],
        ),
        (
            "route in a nested router",
            routed,
            ruled(Rules::new().route("POST /api/login", per_client("login"))),
            ["/api/login", "/api/login", "/api//login"].map(|path| send(path).by(Method::POST)).into(),
            vec![200, 429, 429],
        ),
        (
            "WebSocket after a GET",
            routed,
            ruled(Rules::new().route("GET /ws", per_client("ws"))),
            vec![send("/ws"), send("/ws").websocket()],
            vec![200, 429],
        ),
        (
            "WebSocket",
            routed,
            ruled(Rules::new().route("GET /ws", per_client("ws")).fallback(per_client("rest"))),
            vec![send("/ws").websocket(), send("/ws").websocket(), send("/")],
            vec![200, 429, 200],
        ),
        (
            "WebSocket by another method",
            routed,
            ruled(Rules::new().route("POST /ws", per_client("posts"))),
            vec![send("/ws").by(Method::POST), send("/ws").websocket()],
            vec![200, 200],
        ),
        (
            "WebSocket, keyed by host",
            routed,
            ruled(Rules::new().route("/ws", Rule::new(policy("ws"), Header::new("host")))),
            vec![send("/ws").websocket(), send("/ws").websocket()],
            vec![200, 429],
        ),
    ];
    let mut wrong = Vec::new();
    for (name, app, layer, requests, expected) in rows {
        for form in [Form::Origin, Form::Absolute, Form::Http2] {
            // The quota is fully replenished.
            clock.advance(Duration::from_secs(7_200));
            let server = serve(app(layer.clone())).await;
            let seen = timeout(Duration::from_secs(30), statuses(server, form, &requests)).await;
            let seen = seen.expect("the server answers");
            if seen != expected {
                wrong.push(format!("{name}, {form:?}: {seen:?}, not {expected:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
