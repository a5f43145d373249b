//! Requests over HTTP/1.1 and HTTP/2: the version that a client chooses changes neither its key nor the rules that apply.

use std::{net::SocketAddr, time::Duration};

use axum::{
    Router,
    extract::Path,
    routing::{any, post},
};
use http::{Method, Request, request::Parts};
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

fn keyed(key: impl KeyExtractor) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new(), policy("p"), key)
}

fn ruled(rules: Rules) -> RateLimitLayer {
    RateLimitLayer::with_rules(MemoryStore::new(), rules)
}

fn with<const N: usize>(header: &'static str, values: [&'static str; N]) -> [Sent; N] {
    values.map(|value| send("/").with(header, value))
}

/// Checks the statuses of `requests` in each form. Each connection is to another service of `app`.
async fn in_each_form(name: &str, app: impl Fn() -> Router, requests: &[Sent], expected: &[u16]) {
    for form in [Form::Origin, Form::Absolute, Form::Http2] {
        let server = serve(app()).await;
        let seen = timeout(Duration::from_secs(30), statuses(server, form, requests)).await;
        assert_eq!(seen.unwrap(), expected, "{name}, {form:?}");
    }
}

#[tokio::test]
async fn each_extractor_holds_alike_over_both_versions_of_http() {
    let header = || app(keyed(Header::new("x-api-key")));
    let keys = with("x-api-key", ["k1", "k1 ", "\tk1", "k2", " "]);
    in_each_form("header", header, &keys, &[200, 429, 429, 200, 400]).await;
    let tokens = with("authorization", ["Bearer t1", "bearer  t1", "Bearer t2", "Basic t1"]);
    in_each_form("bearer", || app(keyed(Bearer::new())), &tokens, &[200, 429, 200, 400]).await;
    in_each_form("address", || app(keyed(PeerIp::new())), &["/", "/"].map(send), &[200, 429]).await;
    let proxied = || app(keyed(ClientIp::behind(TrustedProxies::cidrs(["127.0.0.0/8"]).unwrap())));
    let addresses = ["203.0.113.7", "198.51.100.1, 203.0.113.7", "203.0.113.8"];
    in_each_form("forwarded", proxied, &with("x-forwarded-for", addresses), &[200, 429, 200]).await;

    let cookies = [
        send("/").cookie("theme=dark").cookie("session=s1").cookie("a=b"),
        send("/").cookie("session=s1").cookie("theme=light"),
        send("/").cookie("session=s2"),
        send("/").cookie("theme=dark"),
    ];
    in_each_form("cookie", || app(keyed(Cookie::new("session"))), &cookies, &[200, 429, 200, 400]).await;
    let cookies = [
        send("/").cookie("theme=dark").cookie("session=s1"),
        send("/").cookie("theme=dark").cookie("session=s1"),
        send("/").cookie("session=s1"),
        send("/"),
    ];
    in_each_form("all cookies", || app(keyed(Header::new("cookie"))), &cookies, &[200, 429, 200, 400]).await;

    let matched = || routed(keyed(MatchedRoute::new()));
    let paths = ["/users/1", "/users/2", "/", "/nowhere", "/elsewhere"].map(send);
    in_each_form("matched route", matched, &paths, &[200, 429, 200, 404, 429]).await;
    let parameter = || routed(keyed(from_extractor((), |Path(user): Path<String>| user)));
    let users = ["/users/1", "/users/1", "/users/2"].map(send);
    in_each_form("parameter of a route", parameter, &users, &[200, 429, 200]).await;
    let path = || routed(keyed(from_fn(|request| request.uri.path().to_owned())));
    let users = ["/users/1", "/users/1?a", "/users/2"].map(send);
    in_each_form("closure over the path", path, &users, &[200, 429, 200]).await;
    let calls = ["/greeter.Greeter/Hello", "/greeter.Greeter/Hello", "/greeter.Greeter/Bye"];
    let calls = calls.map(|path| send(path).by(Method::POST));
    in_each_form("gRPC method", || routed(keyed(GrpcMethod::new())), &calls, &[200, 429, 200]).await;
}

#[tokio::test]
async fn the_host_of_a_request_is_the_same_over_both_versions_of_http() {
    let host = || Header::new("host");
    let of_host = |name: &'static str| send("/").host(name);
    let names = ["shop.example", "SHOP.Example", "shop.example:8080", "shop.example:", "shop.example."];
    let spellings = [&names.map(of_host)[..], &[of_host("other.example")]].concat();
    let one_host = [200, 429, 429, 429, 429, 200];
    in_each_form("host", || app(keyed(host())), &spellings, &one_host).await;
    in_each_form("or the address", || app(keyed(host().or(PeerIp::new()))), &spellings, &one_host).await;
    in_each_form("and the address", || app(keyed((host(), PeerIp::new()))), &spellings, &one_host).await;
    let hosts = ["[::1]", "[::1]:80", "[::2]"].map(of_host);
    in_each_form("IPv6", || app(keyed(host())), &hosts, &[200, 429, 200]).await;

    let blocked = || app(keyed(Key::new("all")).block_if(host().any_of(["Shop.example:443"])));
    in_each_form("blocked", blocked, &spellings, &[429, 429, 429, 429, 429, 200]).await;
    let exempt = || app(keyed(Key::new("all")).exempt_if(host().any_of(["shop.example"])));
    let more = [&spellings[..], &[of_host("other.example")]].concat();
    in_each_form("exempt", exempt, &more, &[200, 200, 200, 200, 200, 200, 429]).await;
}

#[tokio::test]
async fn each_rule_holds_alike_over_both_versions_of_http() {
    let first = |request: &Parts| request.uri.path() == "/users/1";
    let users = ["/users/1", "/users/1", "/users/2", "/users/2"].map(send);
    let exempt = || routed(keyed(Key::new("all")).exempt_if(first));
    in_each_form("exempt by path", exempt, &users, &[200, 200, 200, 429]).await;
    let skipped = || routed(ruled(Rules::new().always(per_client("all").skip_if(first))));
    in_each_form("skipped by path", skipped, &users, &[200, 200, 200, 429]).await;
    let routes = || Rules::new().route("GET /users/{id}", per_client("users")).fallback(per_client("rest"));
    let requests = [
        send("/users/1"),
        send("/users/2").by(Method::HEAD),
        send("/users/1").by(Method::POST),
        send("/users/1").by(Method::PUT),
    ];
    in_each_form("routes", || routed(ruled(routes())), &requests, &[200, 429, 200, 429]).await;
    let nested = || routed(ruled(Rules::new().route("POST /api/login", per_client("login"))));
    let logins = ["/api/login", "/api/login", "/api//login"].map(|path| send(path).by(Method::POST));
    in_each_form("route in a nested router", nested, &logins, &[200, 429, 429]).await;
}

#[tokio::test]
async fn a_websocket_is_a_get_over_both_versions_of_http() {
    let (get, post, socket) = (send("/ws"), send("/ws").by(Method::POST), send("/ws").websocket());
    let gets = || Rules::new().route("GET /ws", per_client("ws"));
    let after_a_get = [get, socket.clone()];
    in_each_form("after a GET", || routed(ruled(gets())), &after_a_get, &[200, 429]).await;
    let both = || routed(ruled(gets().fallback(per_client("rest"))));
    let twice = [socket.clone(), socket.clone()];
    in_each_form("and others", both, &[&twice[..], &[send("/")]].concat(), &[200, 429, 200]).await;
    let posts = || routed(ruled(Rules::new().route("POST /ws", per_client("posts"))));
    in_each_form("after a POST", posts, &[post, socket], &[200, 200]).await;
    let hosts = || routed(ruled(Rules::new().route("/ws", Rule::new(policy("ws"), Header::new("host")))));
    in_each_form("keyed by host", hosts, &twice, &[200, 429]).await;
}
