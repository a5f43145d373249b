//! The command `ratelimit-admin` with the routers of instances, as operators run it.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use std::{
    io,
    net::SocketAddr,
    process::{Command, Output},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    extract::Request,
    middleware::{self, Next},
    response::IntoResponse as _,
    routing::get,
    serve::Listener,
};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use support::{
    Directory, RedisServer,
    certificates::Authority,
    eventually,
    http::{Client, serve},
    settings,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::block_in_place,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
        server::WebPkiClientVerifier,
    },
    server::TlsStream,
};
use tower_ratelimit::{
    FailureMode, Header, Key, Limiter, PeerIp, Policy, Quota, RateLimitLayer, RedisStore, Rule,
    policy::Penalty,
};
use tower_ratelimit_operate::{
    admin::{Admin, OperatorName},
    live::Blocklist,
};

const TOKEN: &str = "authorization: Bearer hunter2";

/// An instance of a service: the address of the service, and of its router for operators, which needs a token.
struct Instance {
    service: SocketAddr,
    admin: SocketAddr,
    limiter: Limiter,
    router: Router,
}

/// Accepts connections with TLS.
struct OverTls {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    /// Kept open, because a client whose connection is reset may not get to read the alert.
    failed: Vec<TcpStream>,
}

impl Listener for OverTls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.listener.accept().await.unwrap();
            match self.acceptor.accept(stream).into_fallible().await {
                Ok(stream) => return (stream, address),
                Err((_, stream)) => self.failed.push(stream),
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// Serves `app` with the certificate of `authority`, and with one of it for each client if `is_strict`. Returns the
/// port.
async fn serve_over_tls(app: Router, authority: &Authority, is_strict: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let certificate = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let provider = Arc::new(ring::default_provider());
    let settings =
        ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let settings = if is_strict {
        let mut roots = RootCertStore::empty();
        roots.add(certificate(&authority.ca)).unwrap();
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        settings.with_client_cert_verifier(clients)
    } else {
        settings.with_no_client_auth()
    };
    let key = PrivateKeyDer::from_pem_slice(authority.key.as_bytes()).unwrap();
    let settings = settings.with_single_cert(vec![certificate(&authority.certificate)], key).unwrap();
    let listener = OverTls { listener, acceptor: TlsAcceptor::from(Arc::new(settings)), failed: Vec::new() };
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    port
}

fn api() -> Policy {
    Policy::new("api", Quota::per_day(2)).penalty(Penalty::manual())
}

fn per_ip() -> Policy {
    Policy::new("per-ip", Quota::per_day(1_000))
}

impl Instance {
    async fn start(server: &RedisServer) -> Self {
        let store: RedisStore = settings().connect(&server.url()).await.unwrap();
        let limiter = Limiter::new(store.clone());
        let blocklist = Blocklist::redis(&store).await.unwrap().poll_every(Duration::from_millis(20));
        let layer = RateLimitLayer::new(limiter.clone(), api(), Header::new("x-api-key"))
            .rule(Rule::new(per_ip(), PeerIp::new()))
            .block_if(PeerIp::new().matching(blocklist.matcher()));
        let authenticate = middleware::from_fn(async |mut request: Request, next: Next| {
            if request.headers().get("authorization").is_none_or(|value| value != "Bearer hunter2") {
                return StatusCode::UNAUTHORIZED.into_response();
            }
            request.extensions_mut().insert(OperatorName::new("ann"));
            next.run(request).await
        });
        let admin =
            Admin::new(limiter.clone(), [api(), per_ip()]).layer(&layer).store(&store).blocklist(&blocklist);
        let router = Router::new().nest("/limits", admin.router()).layer(authenticate);
        let service = Router::new().route("/", get(async || "hello")).layer(layer);
        let (service, admin) = (serve(service).await, serve(router.clone()).await);
        Self { service, admin, limiter, router }
    }

    fn url(&self) -> String {
        format!("http://{}/limits", self.admin)
    }

    fn name(&self) -> String {
        format!("{}/limits", self.admin)
    }

    /// The status of a request of the client `key`.
    async fn status(&self, key: &str) -> u16 {
        let request = http::Request::get(format!("http://{}/", self.service)).header("x-api-key", key);
        Client::new().send(request.body(String::new()).unwrap()).await.status().as_u16()
    }
}

async fn two(server: &RedisServer) -> [Instance; 2] {
    [Instance::start(server).await, Instance::start(server).await]
}

/// Runs the command, while the instances answer.
fn run(urls: &[String], words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ratelimit-admin"));
    command.env_remove("REDIS_URL").env_remove("RATELIMIT_POLICIES").env_remove("RATELIMIT_URL");
    command.env("RATELIMIT_HEADER", TOKEN).args(["--deadline", "20s"]);
    if !urls.is_empty() {
        command.args(["--url", &urls.join(",")]);
    }
    block_in_place(|| command.args(words).output().unwrap())
}

/// What a command prints that succeeds.
fn text(urls: &[String], words: &[&str]) -> String {
    let output = run(urls, words);
    let errors = String::from_utf8_lossy(&output.stderr);
    // The instances of these tests have not announced themselves.
    let others = errors.lines().filter(|line| !line.starts_with("warning: no instance has used the limits"));
    assert!(output.status.success() && others.count() == 0, "{words:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(urls: &[String], words: &[&str]) -> Value {
    serde_json::from_str(&text(urls, &[&["--json"], words].concat())).unwrap()
}

/// The exit code and the error of a command that fails.
fn error(urls: &[String], words: &[&str]) -> (i32, String) {
    let output = run(urls, words);
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// The lines of a text, as words.
fn lines(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn why_merges_what_the_instances_know_about_a_client() {
    let server = RedisServer::start();
    let instances = two(&server).await;
    let urls: Vec<String> = instances.iter().map(Instance::url).collect();
    for status in [200, 200] {
        assert_eq!(instances[0].status("42").await, status);
    }
    let refund =
        http::Request::builder().method(Method::POST).uri(format!("{}/policies/api/keys/42/refund", urls[1]));
    let refund = refund.header("authorization", "Bearer hunter2").header("content-type", "application/json");
    let refund = Client::new().send(refund.body(r#"{"units": 1}"#.to_owned()).unwrap()).await;
    assert_eq!(refund.status(), 200, "{}", refund.body());
    for (instance, statuses) in [(0, vec![200, 429, 429]), (1, vec![429, 429, 429])] {
        for status in statuses {
            assert_eq!(instances[instance].status("42").await, status);
        }
    }

    let why = text(&urls, &["why", "42"]);
    let rows = lines(&why);
    assert!(why.starts_with("42: denied by api; admitted in 1"), "{why}");
    let row =
        |first: &[&str]| rows.iter().find(|row| row.starts_with(first)).unwrap_or_else(|| panic!("{why}"));
    let state = row(&["api", "42", "0", "of", "2"]);
    assert_eq!(state.last(), Some(&"all"), "{why}");
    assert_eq!(row(&["per-ip", "42"])[2..5], ["1000", "of", "1000"]);
    let denied: Vec<_> = rows.iter().filter(|row| row.len() == 9 && row[1..3] == ["api", "42"]).collect();
    let counts: Vec<_> = denied.iter().map(|row| (row[8].to_owned(), row[6])).collect();
    assert!(
        counts.contains(&(instances[0].name(), "2")) && counts.contains(&(instances[1].name(), "3")),
        "{why}"
    );
    let change = rows.iter().find(|row| row.get(1) == Some(&"refund")).unwrap_or_else(|| panic!("{why}"));
    assert_eq!(change[2..], ["api", "1", "units", "ann", &instances[1].name()]);

    let why = json(&urls, &["why", "42"]);
    assert_eq!((&why["verdict"], &why["unanswered"]), (&json!("denied"), &json!([])), "{why}");
    assert_eq!(why["policies"][0]["instances"], json!([instances[0].name(), instances[1].name()]));
    assert_eq!(why["policies"][0]["policy"]["name"], "api");
    assert_eq!(why["denials"].as_array().unwrap().len(), 2);
    assert_eq!(why["changes"][0]["who"], "ann");

    // A client that was never denied, and one whose key is encoded.
    assert!(text(&urls, &["why", "43"]).starts_with("43: admitted\n"));
    let joined = Key::from(("acme", "José"));
    instances[0].limiter.check(&api(), &joined, 2).await.unwrap();
    let why = text(&urls, &["why", "%(acme%|José%)"]);
    assert!(why.starts_with("%(acme%|José%): denied by api; "), "{why}");
    assert!(why.contains("  %(acme%|Jos%C3%A9%)  0 of 2  "), "{why}");
    assert_eq!(json(&urls, &["why", "44", "--cost", "3"])["verdict"], "denied");
}

#[tokio::test(flavor = "multi_thread")]
async fn why_explains_a_request_under_the_layers() {
    let server = RedisServer::start();
    let instances = two(&server).await;
    let urls: Vec<String> = instances.iter().map(Instance::url).collect();
    for status in [200, 200, 429] {
        assert_eq!(instances[0].status("42").await, status);
    }
    let ask = ["why", "--request", "GET /?q=1", "-H", "X-Api-Key: 42", "--address", "127.0.0.1"];
    let why = text(&urls, &ask);
    assert!(why.starts_with("GET /?q=1: denied by api; admitted in "), "{why}");
    assert!(why.contains("\nlayer 1: denied (all)\n"), "{why}");
    assert!(lines(&why).iter().any(|row| row.starts_with(&["1", "api", "42", "0", "of", "2"])), "{why}");
    assert!(lines(&why).iter().any(|row| row.starts_with(&["1", "per-ip", "127.0.0.1"])), "{why}");
    let why = text(&urls, &["why", "--request", "/", "--address", "127.0.0.1"]);
    assert!(
        why.contains("layer 1: rejected with 400: the request lacks the header `x-api-key` (all)"),
        "{why}"
    );
    assert_eq!(json(&urls, &["why", "--request", "/"])["verdict"], "rejected");

    let (code, message) = error(&urls, &["why", "--request", "GET search"]);
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("it does not begin with `/`"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_instances_are_listed_together() {
    let server = RedisServer::start();
    let instances = two(&server).await;
    let urls: Vec<String> = instances.iter().map(Instance::url).collect();
    let denials = [(0, "alice", 3), (1, "alice", 4), (1, "bob", 5)];
    for (instance, key, times) in denials {
        for _ in 0..times {
            let limiter = &instances[instance].limiter;
            assert!(limiter.check(&api(), &Key::new(key), 3).await.unwrap().is_denied());
        }
    }
    assert_eq!(text(&urls, &["top"]), "POLICY  KEY    DENIALS\napi     alice  7\napi     bob    5\n");
    assert_eq!(json(&urls, &["top", "api", "--limit", "1"])["denials"][0]["denials"], 7);
    assert_eq!(json(&urls, &["top", "per-ip"])["denials"], json!([]));
    let recent = json(&urls, &["recent"]);
    let recent = recent["denials"].as_array().unwrap();
    assert_eq!((recent.len(), &recent[0]["key"]), (3, &json!("bob")));
    assert_eq!(lines(&text(&urls, &["recent", "--limit", "2"])).len(), 3);

    let policies = text(&urls, &["policies"]);
    assert_eq!(lines(&policies)[1], ["api", "2/day", "gcra", "yes", "local", "penalty", "all"], "{policies}");
    assert_eq!(lines(&policies)[2], ["per-ip", "1000/day", "gcra", "yes", "local", "-", "all"], "{policies}");
    assert!(text(&urls, &["acl"]).starts_with("~rl:*"));
    let probe = text(&urls, &["probe"]);
    assert_eq!(lines(&probe).len(), 2, "{probe}");
    assert!(probe.starts_with(&format!("{}: Redis ", instances[0].name())), "{probe}");
    let probe = json(&urls, &["probe"]);
    assert_eq!(probe["instances"][instances[1].name()]["can_decide"], true);
}

/// Another program at the URL, or an instance that was broken into.
#[tokio::test(flavor = "multi_thread")]
async fn no_answer_of_a_router_reaches_the_terminal_as_it_is() {
    let evil = "\u{1b}[2J\u{9b}0m\u{7}\r\nlogin  all is well\u{202e}gnp.exe\u{200b}\u{e0041}";
    // The texts that are names of a type, such as a quota, are valid, or all of them.
    let answer = |quota: &str, unit: &str, mode: &str, enforcement: &str| {
        let policy = json!({
            "name": evil, "quota": quota, "algorithm": evil, "failure_mode": mode, "quota_unit": unit, "enforced": 0.5,
            "capacity": 1, "max_debt": 5, "max_lease": 3, "has_penalty": true, "notify_at": [80, 100],
        });
        let charge = json!({
            "policy": policy, "key": evil, "key_hash": evil, "cost": 1, "verdict": evil, "remaining": 1, "is_shadow": true,
        });
        let explanation = json!({"verdict": evil, "source": evil, "failure": evil, "charges": [charge]});
        let layer = json!({
            "verdict": evil, "rejection": {"status": 429, "detail": evil}, "explanation": explanation,
        });
        let denial = json!({
            "policy": evil, "key": evil, "key_hash": evil, "verdict": evil, "source": evil, "denials": 3, "error": 1,
            "first": 1.0, "last": 1.0,
        });
        json!({
            "verdict": evil, "source": evil, "failure": evil, "charges": [charge], "enforcement": enforcement, "explanations": [explanation], "layers": [layer],
            "errors": [{"policy": evil, "detail": evil}], "denials": [denial],
            "changes": [{"time": 1.0, "kind": evil, "policy": evil, "detail": evil, "who": evil}],
            "blocked": [{"network": evil, "reason": evil, "who": evil}],
            "networks": [{"network": evil, "reason": evil, "who": evil}],
            "policies": [policy], "warnings": [evil], "error": evil, "acl_rule": evil, "report": evil, "can_decide": true,
            "detail": evil,
        })
    };
    let valid = answer("1/s", "requests", "local", "on").to_string();
    let router = |status: u16, answer: String| {
        let status = StatusCode::from_u16(status).unwrap();
        Router::new().fallback(async move || (status, answer))
    };
    let accepts = serve(router(200, valid.clone())).await;
    let not_valid = serve(router(200, answer(evil, evil, evil, evil).to_string())).await;
    let rejects = serve(router(500, valid)).await;
    let urls = [accepts, not_valid, rejects].map(|address| format!("http://{address}"));
    let commands: [&[&str]; 10] = [
        &["why", "42"],
        &["why", "--request", "GET /"],
        &["top"],
        &["recent"],
        &["policies"],
        &["unlock", "api", "42"],
        &["block", "203.0.113.0/24"],
        &["blocklist"],
        &["acl"],
        &["probe"],
    ];
    for words in commands {
        for json in [false, true] {
            let words = if json { [&["--json"], words].concat() } else { words.to_vec() };
            let Output { stdout, stderr, .. } = run(&urls, &words);
            let [stdout, stderr] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap());
            for text in [&stdout, &stderr] {
                let hidden = |one: char| one != '\n' && tower_ratelimit::key::is_hidden(one);
                assert!(!text.contains(hidden), "{words:?}: {text:?}");
                // Nor does it begin a line.
                assert!(!text.lines().any(|line| line.starts_with("login")), "{words:?}: {text}");
            }
            assert!(stderr.contains("\\u001b[2J"), "{words:?}: {stderr}");
            if json {
                let read: Value = serde_json::from_str(&stdout).unwrap();
                assert!(read.to_string().contains(&json!(evil).to_string()), "{words:?}: {stdout}");
            }
        }
    }
    let policies = run(&urls, &["policies"]);
    let policies = String::from_utf8(policies.stdout).unwrap();
    assert!(policies.contains("50 % of the keys"), "{policies}");
    assert!(
        policies.contains("debt up to 5, leases up to 3, penalty, notifies at 80 % and 100 %"),
        "{policies}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_does_not_answer_is_named_and_the_others_are_printed() {
    let server = RedisServer::start();
    let instance = Instance::start(&server).await;
    let gone = "http://127.0.0.1:1/limits".to_owned();
    let urls = [instance.url(), gone.clone()];
    for words in [&["why", "42"][..], &["top"], &["recent"], &["policies"], &["acl"], &["probe"]] {
        let output = run(&urls, words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(!output.stdout.is_empty(), "{words:?}");
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.starts_with("error: 127.0.0.1:1/limits: cannot connect: "), "{words:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{words:?}: {errors}");
        let output = run(&urls, &[&["--json"], words].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["unanswered"][0]["instance"], "127.0.0.1:1/limits", "{words:?}");
    }
    let output = run(&[gone], &["why", "42"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));

    // Another path, and no token.
    let wrong = format!("http://{}/limit", instance.admin);
    let (code, message) = error(&[wrong], &["why", "42"]);
    assert!(code == 1 && message.contains("404 Not Found: is it the router for operators"), "{message}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ratelimit-admin"));
    command.env_remove("RATELIMIT_HEADER").args(["--url", &instance.url(), "why", "42"]);
    let output = block_in_place(|| command.output().unwrap());
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && message.contains("authenticate with --header"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn why_says_in_an_outage_what_is_known_and_fails() {
    let mut server = RedisServer::start();
    let instance = Instance::start(&server).await;
    let closed = Policy::new("closed", Quota::per_day(9)).failure_mode(FailureMode::Closed);
    let of_closed = serve(Admin::new(instance.limiter.clone(), closed).router()).await;
    let urls = [instance.url()];
    for status in [200, 200, 429] {
        assert_eq!(instance.status("42").await, status);
    }
    server.kill();
    let failed = |urls: &[String], words: &[&str]| {
        let output = run(urls, words);
        assert_eq!((output.status.code(), output.stderr.len()), (Some(1), 0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let why = failed(&urls, &["why", "42"]);
    // By the failure mode, whose local store has not seen the client.
    assert!(why.starts_with("42: admitted\n") && why.contains("  admitted (the store failed)"), "{why}");
    assert!(why.contains("\nthe store failed: "), "{why}");
    assert!(why.contains("\nrecent denials\n") && why.contains("denied by "), "{why}");
    let why = failed(&urls, &["why", "--request", "GET /", "-H", "x-api-key: 42", "--address", "127.0.0.1"]);
    assert!(why.contains("\nthe store failed: "), "{why}");
    let urls = [format!("http://{of_closed}")];
    let why = failed(&urls, &["why", "42"]);
    assert!(why.starts_with("42: unknown, because something below cannot be read\n"), "{why}");
    assert!(why.contains("\npolicy closed: ") && why.contains("Redis"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_unlocked_on_all_instances_by_one_command() {
    let server = RedisServer::start();
    let instances = two(&server).await;
    let urls: Vec<String> = instances.iter().map(Instance::url).collect();
    for _ in 0..3 {
        instances[0].status("42").await;
    }
    instances[0].limiter.operator().ban(&api(), &Key::new("42"), Duration::from_secs(3_600)).await.unwrap();
    // Each has the ban in its deny cache.
    for instance in &instances {
        assert_eq!(instance.status("42").await, 429);
    }
    let unlocked = text(&urls, &["unlock", "api", "42"]);
    assert!(unlocked.starts_with("42: admitted\n"), "{unlocked}");
    assert_eq!(lines(&unlocked)[3][..5], ["api", "42", "2", "of", "2"], "{unlocked}");
    for instance in &instances {
        assert_eq!(instance.status("42").await, 200);
    }
    let why = json(&urls, &["why", "42"]);
    let changes = why["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 2, "{why}");
    assert!(changes.iter().all(|change| change["kind"] == "unlock" && change["who"] == "ann"), "{why}");
    // One of them does not answer.
    let with_gone = [urls[0].clone(), "http://127.0.0.1:1/limits".to_owned()];
    let (code, message) = error(&with_gone, &["unlock", "api", "42"]);
    assert!(code == 1 && message.starts_with("error: 127.0.0.1:1/limits: cannot connect"), "{message}");
    for (policy, key, expected, code) in
        [("nope", "42", "404 Not Found", 1), ("api", "", "the empty identity", 2)]
    {
        let (actual, message) = error(&urls, &["unlock", policy, key]);
        assert!(actual == code && message.contains(expected), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_is_blocked_on_all_instances_by_one_command() {
    let server = RedisServer::start();
    let instances = two(&server).await;
    let urls: Vec<String> = instances.iter().map(Instance::url).collect();
    let redis = ["--redis".to_owned(), server.url()];
    let on_redis = |words: &[&str]| text(&[], &[&redis.each_ref().map(String::as_str)[..], words].concat());
    assert_eq!(on_redis(&["blocklist"]), "NETWORK  BLOCKED  REASON  WHO  INSTANCES\n");
    let listed = on_redis(&["block", "127.0.0.7/8", "1day", "--reason", "a scraper"]);
    let [_, row] = &lines(&listed)[..] else { panic!("{listed}") };
    assert_eq!(
        (&row[..2], &row[row.len() - 4..]),
        (&["127.0.0.0/8", "for"][..], &["a", "scraper", "-", "Redis"][..])
    );
    // Both instances have followed, so that they list the same networks.
    let agree_on = async |networks: usize| {
        let agree = async || {
            let listed = text(&urls, &["blocklist"]);
            let rows = &lines(&listed)[1..];
            rows.len() == networks && rows.iter().all(|row| row.ends_with(&["all"]))
        };
        assert!(eventually(agree).await, "{networks}");
    };
    agree_on(1).await;
    for (instance, client) in instances.iter().zip(["41", "42"]) {
        assert_eq!(instance.status(client).await, 429);
    }
    // The routers do the same, and know who it was.
    let listed = text(&urls, &["block", "2001:db8::/32", "--reason", "a scraper"]);
    assert_eq!(
        lines(&listed)[2],
        ["2001:db8::/32", "until", "unblocked", "a", "scraper", "ann", "all"],
        "{listed}"
    );
    let listed = json(&urls, &["blocklist"]);
    assert_eq!(
        (&listed["networks"][0]["reason"], listed["networks"][0]["instances"].as_array().unwrap().len()),
        (&json!("a scraper"), 2)
    );
    let why = text(&urls, &["why", "127.0.0.1"]);
    assert!(why.starts_with("127.0.0.1: rejected\nblocked: 127.0.0.0/8 for "), "{why}");
    let why = text(&urls, &["why", "--request", "GET /", "--address", "127.0.0.1"]);
    assert!(
        why.contains("rejected\nblocked: 127.0.0.0/8 ") && why.contains("layer 1: rejected with 429"),
        "{why}"
    );
    let directory = Directory::new();
    let policies = directory.file("limits.toml");
    std::fs::write(&policies, "[[policies]]\nname = 'per-ip'\nquota = '1000/day'\n").unwrap();
    let why = on_redis(&["--policies", policies.to_str().unwrap(), "why", "127.0.0.1"]);
    assert!(why.starts_with("127.0.0.1: rejected\nblocked: 127.0.0.0/8 for "), "{why}");

    let listed = on_redis(&["unblock", "127.0.0.0/8"]);
    assert_eq!(lines(&listed).len(), 2, "{listed}");
    agree_on(1).await;
    let listed = text(&urls, &["unblock", "2001:db8::/32"]);
    assert_eq!(lines(&listed).len(), 1, "{listed}");
    let (code, message) = error(&urls, &["unblock", "2001:db8::/32"]);
    assert!(code == 1 && message.matches("this network is not in the blocklist").count() == 2, "{message}");
    let (code, message) = error(&urls, &["block", "0.0.0.0/0"]);
    assert!(code == 1 && message.matches("has too many clients to block").count() == 2, "{message}");
    // One of the instances does not answer: the other one has changed the list for both.
    let partly = [urls[0].clone(), "http://127.0.0.1:1/limits".to_owned()];
    let output = run(&partly, &["block", "192.0.2.0/24"]);
    let (shown, message) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.code() == Some(1) && shown.contains("192.0.2.0/24"), "{shown}{message}");
    assert!(message.contains("127.0.0.1:1/limits: cannot connect"), "{message}");
    let mut client = 0;
    for instance in &instances {
        let is_admitted = async || {
            client += 1;
            instance.status(&client.to_string()).await == 200
        };
        assert!(eventually(is_admitted).await);
    }
    let () = server.command(&["HSET", "rl:blocklist", "10.0.0.0/4", "{}"]);
    let policies = ["--policies", policies.to_str().unwrap()];
    for words in [&["blocklist"][..], &[&policies[..], &["why", "10.0.0.7"]].concat()] {
        let output = run(&[], &[&redis.each_ref().map(String::as_str)[..], words].concat());
        let shown = String::from_utf8(output.stdout).unwrap();
        let error = "the Redis hash `rl:blocklist`, field `10.0.0.0/4`: it is ignored";
        assert!(output.status.code() == Some(1) && shown.contains(error), "{shown}");
    }
    // What was changed is done.
    let listed = on_redis(&["block", "192.0.2.7"]);
    assert!(listed.contains("field `10.0.0.0/4`: it is ignored"), "{listed}");
    for (words, code, expected) in [
        (&["block", "0.0.0.0/0"][..], 2, "has too many clients to block"),
        (&["block", "10.0.0.0/8", "0s"], 2, "1 second to 3,650 days"),
        (&["unblock", "10.9.0.0/16"], 1, "10.9.0.0/16 is not in the blocklist"),
    ] {
        let (actual, message) = error(&[], &[&redis.each_ref().map(String::as_str)[..], words].concat());
        assert!(actual == code && message.contains(expected), "{actual}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_over_tls_is_trusted_by_its_authority_and_each_error_of_tls_has_a_remedy() {
    let server = RedisServer::start();
    let instance = Instance::start(&server).await;
    let (authority, stranger) = (Authority::new(), Authority::new());
    let elsewhere = Authority::for_hosts(&["limits.example.com"]);
    let serve =
        async |authority, is_strict| serve_over_tls(instance.router.clone(), authority, is_strict).await;
    let (port, strict, other) =
        (serve(&authority, false).await, serve(&authority, true).await, serve(&elsewhere, false).await);
    let directory = Directory::new();
    let file = |name: &str, text: &str| {
        std::fs::write(directory.file(name), text).unwrap();
        directory.file(name).display().to_string()
    };
    let (ca, unrelated, of_other) =
        (file("ca.pem", &authority.ca), file("stranger.pem", &stranger.ca), file("other.pem", &elsewhere.ca));
    let (certificate, key) = (file("client.pem", &authority.certificate), file("client.key", &authority.key));
    let url = |scheme: &str, port: u16| vec![format!("{scheme}://127.0.0.1:{port}/limits")];
    let trusting = ["--ca", &ca];
    let with_certificate = ["--ca", &ca, "--client-certificate", &certificate, "--client-key", &key];
    for (port, options) in [(port, &trusting[..]), (port, &with_certificate), (strict, &with_certificate)] {
        let urls = [url("https", port), url("https", port)].concat();
        let probe = json(&urls, &[options, &["probe"]].concat());
        assert_eq!(probe["instances"][format!("127.0.0.1:{port}/limits")]["can_decide"], true, "{probe}");
    }
    let rows: [(&str, Vec<String>, &[&str], &str); 6] = [
        ("an unknown authority", url("https", port), &[], "pass the authority's certificate to --ca"),
        (
            "another authority",
            url("https", port),
            &["--ca", &unrelated],
            "pass the authority's certificate to --ca",
        ),
        ("another host", url("https", other), &["--ca", &of_other], "use a host that the certificate names"),
        ("no certificate", url("https", strict), &trusting, "pass one to --client-certificate"),
        ("no TLS", url("https", instance.admin.port()), &trusting, "write http:// instead of https://"),
        ("TLS", url("http", port), &[], "write https:// if the router expects TLS"),
    ];
    for (name, urls, options, remedy) in rows {
        let (code, message) = error(&urls, &[options, &["probe"]].concat());
        assert!(code == 1 && message.contains(remedy), "{name}: {message}");
        assert_eq!(message.lines().count(), 1, "{name}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_url_the_command_works_on_redis() {
    let server = RedisServer::start();
    let instance = Instance::start(&server).await;
    instance.limiter.check(&api(), &Key::new("42"), 2).await.unwrap();
    let directory = Directory::new();
    let policies = directory.file("limits.toml");
    let content = "[[policies]]\nname = 'api'\nquota = '2/day'\npenalty = 'manual'\n[[policies]]\nname = 'other'\nquota = '9/day'\n";
    std::fs::write(&policies, content).unwrap();
    let redis = ["--redis", &server.url(), "--policies", policies.to_str().unwrap()].map(str::to_owned);
    let redis: Vec<&str> = redis.iter().map(String::as_str).collect();
    let why = text(&[], &[&redis[..], &["why", "42"]].concat());
    assert!(why.starts_with("42: denied by api; admitted in 1"), "{why}");
    assert!(lines(&why).iter().any(|row| row.starts_with(&["other", "42", "9", "of", "9"])), "{why}");
    let why = json(&[], &[&redis[..], &["why", "42"]].concat());
    assert_eq!((&why["verdict"], &why["policies"][1]["verdict"]), (&json!("denied"), &json!("admitted")));
    let () = server.command(&["SET", "rl:other:gcra:{42}", "of another program"]);
    let why = text(&[], &[&redis[..], &["why", "42"]].concat());
    assert!(why.contains("denied by api") && why.contains("policy other: "), "{why}");
    instance.limiter.operator().reset(&api(), &Key::new("42")).await.unwrap();
    let output = run(&[], &[&redis[..], &["why", "42"]].concat());
    let why = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.code() == Some(1) && why.starts_with("42: unknown, because "), "{why}");

    // A variable for other commands does not keep this one from Redis.
    let mut command = Command::new(env!("CARGO_BIN_EXE_ratelimit-admin"));
    command
        .env("RATELIMIT_URL", "http://127.0.0.1:1/limits")
        .env("RATELIMIT_POLICIES", policies.to_str().unwrap());
    let output = command.env("REDIS_URL", server.url()).args(["show", "other", "43"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");

    // The probe needs no policies.
    let probe = text(&[], &["--redis", &server.url(), "probe"]);
    assert!(probe.starts_with("Redis ") && probe.ends_with(": no problem found\n"), "{probe}");
    assert_eq!(json(&[], &["--redis", &server.url(), "probe"])["can_decide"], true);
    // A user that may not run the script.
    let () = server.command(&["ACL", "SETUSER", "weak", "on", ">weak", "~*", "+ping", "+hello", "+info"]);
    let weak = server.url().replace("://", "://weak:weak@");
    let output = run(&[], &["--redis", &weak, "probe"]);
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.code() == Some(1) && report.contains("\nerror: "), "{report}");
    assert!(!report.contains("RedisStore"), "{report}");
    let (code, message) = error(&[], &["--redis", "redis://127.0.0.1:1", "probe"]);
    assert!(code == 1 && message.contains("cannot connect to Redis: connection refused"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mistake_has_an_exit_code_and_a_remedy() {
    let url = |url: &str| vec![url.to_owned()];
    let here = || url("http://127.0.0.1:1");
    let rows: [(Vec<String>, &[&str], &str); 12] = [
        (
            here(),
            &["show", "api", "42"],
            "the commands are why, top, recent, policies, unlock, block, unblock, blocklist, acl and probe",
        ),
        (here(), &["why"], "required"),
        (here(), &["why", ""], "write `%` for the empty identity"),
        (here(), &["why", "42", "--request", "/"], "cannot be used with"),
        (here(), &["why", "--request", "/", "-H", "x-api-key"], "write `name: value`"),
        (here(), &["--header", "hunter2", "top"], "write `name: value`"),
        (url("127.0.0.1:3001"), &["top"], "begins neither with http:// nor with https://"),
        (url("redis://127.0.0.1"), &["top"], "begins neither with http:// nor with https://"),
        (url("http://ann:hunter2@127.0.0.1"), &["top"], "which belong into --header"),
        (vec![], &["top"], "name their routers with --url"),
        (vec![], &["why", "42"], "name the policies with --policies FILE"),
        (vec![], &["probe"], "name the server with --redis"),
    ];
    for (urls, words, remedy) in rows {
        let (code, message) = error(&urls, words);
        assert_eq!(code, 2, "{words:?}: {message}");
        assert!(message.contains(remedy) && !message.contains("hunter2"), "{words:?}: {message}");
    }
}
