//! Responses to a gRPC client over real sockets, by the rules of gRPC over HTTP/2, gRFC A6 and `google.rpc`.

#[allow(clippy::all, missing_docs, unnameable_types, unreachable_pub, unused_qualifications, reason = "generated")]
#[path = "../../examples/tonic/src/greeter.rs"]
#[rustfmt::skip]
pub(crate) mod greeter;

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::routing::get;
use bytes::Bytes;
use greeter::{
    HelloReply, HelloRequest,
    greeter_client::GreeterClient,
    greeter_server::{Greeter, GreeterServer},
};
use http::{HeaderMap, Request, Response, Version, request::Parts};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use support::{Down, Says, eventually};
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::{Stream, StreamExt, wrappers::TcpListenerStream};
use tonic::{
    Code, Status,
    server::NamedService,
    service::Routes,
    transport::{Channel, Endpoint, Server},
};
use tonic_types::{StatusExt as _, pb};
use tonic_web::{GrpcWebClientLayer, GrpcWebLayer};
use tower::{Layer, ServiceBuilder, ServiceExt as _};
use tower_ratelimit::{
    Charge, Decision, Error, ErrorKind, FailureMode, Header, Key, KeyExtractor as _, Limiter, MemoryStore,
    PeerIp, Policy, Quota, RateLimitLayer, Rejection, Reservation, Rule,
    decision::{Outcome, Verdict},
    key::GrpcMethod,
    policy::Enforcement,
    response::{GrpcStatus, ResponseMapper as _},
    store::ManualClock,
};
use tower_ratelimit_extra::adaptive::LoadMeter;
use {
    tokio_rustls::{
        TlsAcceptor,
        rustls::{self, pki_types::PrivatePkcs8KeyDer},
    },
    tonic::transport::{Certificate, ClientTlsConfig},
};

const HELLO: &str = "/greeter.Greeter/SayHello";

/// A greeter that counts the calls that reach it.
#[derive(Clone, Default)]
struct Hello(Arc<AtomicU32>);

#[tonic::async_trait]
impl Greeter for Hello {
    async fn say_hello(
        &self,
        request: tonic::Request<HelloRequest>,
    ) -> Result<tonic::Response<HelloReply>, Status> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let found = {
            let extensions = request.extensions();
            (
                Decision::from_extensions(extensions).is_some(),
                Limiter::from_extensions(extensions).is_some(),
                Reservation::from_extensions(extensions).is_some(),
            )
        };
        let name = request.into_inner().name;
        let message = if name == "what is in the extensions?" { format!("{found:?}") } else { name };
        Ok(tonic::Response::new(HelloReply { message }))
    }

    type SayHellosStream = Pin<Box<dyn Stream<Item = Result<HelloReply, Status>> + Send>>;

    async fn say_hellos(
        &self,
        request: tonic::Request<HelloRequest>,
    ) -> Result<tonic::Response<Self::SayHellosStream>, Status> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let HelloRequest { name, count } = request.into_inner();
        let replies = (0..count).map(move |_| Ok(HelloReply { message: name.clone() }));
        Ok(tonic::Response::new(Box::pin(tokio_stream::iter(replies))))
    }
}

pub(crate) fn hello() -> HelloRequest {
    HelloRequest { name: "you".into(), count: 7 }
}

fn layer(quota: Quota, key: impl tower_ratelimit::KeyExtractor) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::with_clock(ManualClock::new()), Policy::new("calls", quota), key)
}

fn one() -> RateLimitLayer {
    layer(Quota::per_hour(1), Key::new("all"))
}

/// [`one`] with calls that cost more than it ever admits.
fn too_dear() -> RateLimitLayer {
    one().with_same_settings(Rule::new(Policy::new("calls", Quota::per_hour(1)), Key::new("all")).cost(|_| 2))
}

async fn listen() -> (TcpListenerStream, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (TcpListenerStream::new(listener), address)
}

/// Serves a greeter behind `layer` until the runtime ends.
pub(crate) async fn serve(layer: RateLimitLayer) -> SocketAddr {
    let (listener, address) = listen().await;
    let server = Server::builder().add_service(layer.layer(GreeterServer::new(Hello::default())));
    tokio::spawn(server.serve_with_incoming(listener));
    address
}

async fn client(server: SocketAddr) -> GreeterClient<Channel> {
    GreeterClient::connect(format!("http://{server}")).await.unwrap()
}

/// The status of the first of `calls` calls that fails.
async fn denial(layer: RateLimitLayer, calls: usize) -> Status {
    let mut client = client(serve(layer).await).await;
    for _ in 1..calls {
        client.say_hello(hello()).await.unwrap();
    }
    client.say_hello(hello()).await.unwrap_err()
}

/// A call as it is sent over the wire.
fn wire_call(uri: &str, kind: &str) -> Request<Full<Bytes>> {
    let message = hello().encode_to_vec();
    let mut body = vec![0];
    body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    body.extend(message);
    Request::post(uri).header("content-type", kind).header("te", "trailers").body(body.into()).unwrap()
}

/// The response to the last of `calls` calls, as an HTTP/2 client without gRPC support receives it.
async fn raw(server: SocketAddr, calls: usize) -> Response<Incoming> {
    let socket = TokioIo::new(TcpStream::connect(server).await.unwrap());
    let (mut sender, connection) = conn::http2::handshake(TokioExecutor::new(), socket).await.unwrap();
    tokio::spawn(connection);
    let mut last = None;
    for _ in 0..calls {
        let call = wire_call(&format!("http://{server}{HELLO}"), "application/grpc");
        last = Some(sender.send_request(call).await.unwrap());
    }
    last.unwrap()
}

fn size(fields: &HeaderMap) -> usize {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
}

fn closed() -> RateLimitLayer {
    let policy = Policy::new("calls", Quota::per_hour(1)).failure_mode(FailureMode::Closed);
    RateLimitLayer::new(Down, policy, Key::new("all"))
}

fn denying(wait: Duration) -> RateLimitLayer {
    let deny = move |charge: &Charge| Outcome::new(charge, Verdict::deny(Some(wait)), 0, wait);
    RateLimitLayer::new(Says(deny), Policy::new("calls", Quota::per_hour(1)), Key::new("all"))
}

#[tokio::test]
async fn a_rejection_is_a_status_in_headers_that_end_the_stream() {
    let response = raw(serve(one()).await, 2).await;
    assert_eq!((response.version(), response.status().as_u16()), (Version::HTTP_2, 200));
    assert_eq!(response.headers()["content-type"], "application/grpc");
    assert_eq!(response.headers()["grpc-status"], "8");
    assert!(!response.headers().contains_key("content-length"));
    assert!(response.body().is_end_stream(), "END_STREAM is not on the HEADERS");
    let body = response.into_body().collect().await.unwrap();
    assert!(body.trailers().is_none());
    assert!(body.to_bytes().is_empty());
}

#[tokio::test]
async fn each_rejection_has_its_code() {
    let spent = "over the rate limit; try again in 1 hour";
    let no_peer = |_: &Parts| Err::<Key, _>(Error::new(ErrorKind::MissingSetup, "no peer"));
    let blocked = layer(Quota::per_hour(9), Key::new("all")).block_if(|_| true);
    let unnamed = layer(Quota::per_hour(9), Header::new("x-api-key"));
    let table = [
        ("limited", one(), 2, Code::ResourceExhausted, spent),
        ("store down", closed(), 1, Code::Unavailable, "the rate limit is temporarily unavailable"),
        ("no identity", unnamed, 1, Code::InvalidArgument, "x-api-key"),
        ("setup", layer(Quota::per_hour(9), no_peer), 1, Code::Internal, "the rate limit is misconfigured"),
        ("blocked", blocked, 1, Code::PermissionDenied, "the client is blocked"),
    ];
    for (name, layer, calls, code, message) in table {
        let status = denial(layer.clone(), calls).await;
        assert_eq!(status.code(), code, "{name}");
        assert!(status.message().contains(message), "{name}: {}", status.message());
        // The limit is used up by now.
        let response = raw(serve(layer).await, 1).await;
        assert_eq!(response.status(), 200, "{name}");
        assert_eq!(response.headers()["grpc-status"], (code as i32).to_string(), "{name}");
        assert!(response.body().is_end_stream(), "{name}");
    }
}

#[tokio::test]
async fn a_mapper_adjusts_the_default_response() {
    let ours = |rejection: &Rejection, call: &Parts| {
        let mut response = GrpcStatus::default().response(rejection, call);
        let message = format!("ours: {rejection}");
        response.headers_mut().insert("grpc-message", message.parse().unwrap());
        response
    };
    let denied = denial(one().grpc_response(ours), 2).await;
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert_eq!(denied.message(), "ours: over the rate limit; try again in 1 hour");
    let details = denied.get_error_details();
    assert_eq!(details.retry_info().unwrap().retry_delay, Some(Duration::from_secs(3_600)));
    assert_eq!(details.quota_failure().unwrap().violations[0].description, "over 1/h");
    assert_eq!(pb::Status::decode(denied.details()).unwrap().code, Code::ResourceExhausted as i32);
}

/// Charges each call by the length of the name in it.
struct Costly(FailureMode);

#[tonic::async_trait]
impl Greeter for Costly {
    async fn say_hello(
        &self,
        request: tonic::Request<HelloRequest>,
    ) -> Result<tonic::Response<HelloReply>, Status> {
        let limiter = Limiter::from_extensions(request.extensions()).cloned();
        let limiter = limiter.ok_or_else(|| Status::internal("no layer"))?;
        let name = request.into_inner().name;
        let letters = Policy::new("letters", Quota::per_hour(5)).failure_mode(self.0);
        limiter.check(&letters, &Key::new("all"), name.len() as u64).await?.into_result()?;
        Ok(tonic::Response::new(HelloReply { message: name }))
    }

    type SayHellosStream = Pin<Box<dyn Stream<Item = Result<HelloReply, Status>> + Send>>;

    async fn say_hellos(
        &self,
        _: tonic::Request<HelloRequest>,
    ) -> Result<tonic::Response<Self::SayHellosStream>, Status> {
        Err(Status::unimplemented("no streams"))
    }
}

#[tokio::test]
async fn a_tonic_handler_that_charges_more_returns_a_status_with_details() {
    let (listener, address) = listen().await;
    let layer = layer(Quota::per_hour(9), Key::new("all"));
    let service = layer.layer(GreeterServer::new(Costly(FailureMode::Open)));
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(listener));
    let mut client = client(address).await;
    assert_eq!(client.say_hello(hello()).await.unwrap().into_inner().message, "you");
    let status = client.say_hello(hello()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "over the rate limit; try again in 12 minutes");
    let details = status.get_error_details();
    assert_eq!(details.retry_info().unwrap().retry_delay, Some(Duration::from_secs(720)));
    assert_eq!(details.quota_failure().unwrap().violations[0].quota_id, "letters");
    // The headers report the decision of the layer.
    let limits = status.metadata().get("ratelimit").unwrap().to_str().unwrap();
    assert_eq!(limits, r#""calls";r=7;t=2800"#);
}

#[tokio::test]
async fn an_error_of_the_limiter_in_a_tonic_handler_is_the_status_of_its_rejection() {
    let (listener, address) = listen().await;
    let policy = Policy::new("calls", Quota::per_hour(9));
    let service = RateLimitLayer::new(Down, policy, Key::new("all"))
        .layer(GreeterServer::new(Costly(FailureMode::Closed)));
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(listener));
    let status = client(address).await.say_hello(hello()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.message(), "the rate limit is temporarily unavailable");
}

#[tokio::test]
async fn each_grpc_method_has_its_own_count() {
    let mut client = client(serve(layer(Quota::per_hour(1), GrpcMethod::new())).await).await;
    client.say_hello(hello()).await.unwrap();
    client.say_hellos(hello()).await.unwrap();
    assert_eq!(client.say_hello(hello()).await.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(client.say_hellos(hello()).await.unwrap_err().code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn the_method_and_the_service_of_a_call_come_from_its_path() {
    let other = "(other)";
    let table = [
        ("/greeter.Greeter/SayHello", "greeter.Greeter/SayHello", "greeter.Greeter"),
        ("/Greeter/say_hello2", "Greeter/say_hello2", "Greeter"),
        ("/a.b.C/D?query=1", "a.b.C/D", "a.b.C"),
        ("/greeter.Greeter/", other, other),
        ("/greeter.Greeter", other, other),
        ("/", other, other),
        ("*", other, other),
        ("//SayHello", other, other),
        ("/greeter..Greeter/SayHello", other, other),
        ("/greeter.Greeter/Say/Hello", other, other),
        ("/greeter.Greeter/Say%48ello", other, other),
        ("/greeter.Greeter/Say.Hello", other, other),
        ("/1greeter/SayHello", other, other),
        ("/(other)/SayHello", other, other),
    ];
    for (path, method, service) in table {
        let (call, ()) = Request::post(path).body(()).unwrap().into_parts();
        assert_eq!(GrpcMethod::new().extract(&call).await.unwrap(), Key::new(method), "{path}");
        assert_eq!(GrpcMethod::service().extract(&call).await.unwrap(), Key::new(service), "{path}");
    }
    let named = GrpcMethod::service().only(["greeter.Greeter"]);
    for (path, service) in
        [("/greeter.Greeter/Invented", "greeter.Greeter"), ("/greeter.Invented/SayHello", other)]
    {
        let (call, ()) = Request::post(path).body(()).unwrap().into_parts();
        assert_eq!(named.extract(&call).await.unwrap(), Key::new(service), "{path}");
    }
    // Identities that no call can have are an error.
    assert!(GrpcMethod::new().try_any_of(["greeter.Greeter/SayHello", other]).is_ok());
    assert!(GrpcMethod::new().try_any_of(["/greeter.Greeter/SayHello"]).is_err());
    assert!(GrpcMethod::new().try_any_of(["greeter.Greeter"]).is_err());
    assert!(GrpcMethod::service().try_any_of(["greeter.Greeter", other]).is_ok());
    assert!(named.try_any_of(["greeter.Invented"]).is_err());
}

#[tokio::test]
async fn an_open_policy_serves_calls_while_the_store_is_unavailable() {
    let policy = Policy::new("calls", Quota::per_hour(1)).failure_mode(FailureMode::Open);
    let server = serve(RateLimitLayer::new(Down, policy, Key::new("all"))).await;
    let mut client = client(server).await;
    for _ in 0..3 {
        assert_eq!(client.say_hello(hello()).await.unwrap().into_inner().message, "you");
    }
}

#[tokio::test]
async fn a_tonic_handler_finds_all_it_may_ask_for_even_if_its_call_is_not_charged() {
    let open = Policy::new("calls", Quota::per_hour(1)).failure_mode(FailureMode::Open);
    let calls = || Rule::new(Policy::new("calls", Quota::per_hour(1)), Key::new("all"));
    let reserving = |cost| one().with_same_settings(calls().cost(move |_| cost).reserve());
    let rows = [
        ("charged", reserving(1)),
        ("off", reserving(1).enforcement(Enforcement::Off)),
        ("exempt", reserving(1).exempt_if(|_| true)),
        ("over the limit, report only", reserving(2).enforcement(Enforcement::ReportOnly)),
        ("open", RateLimitLayer::with_rules(Down, Rule::new(open, Key::new("all")).reserve())),
    ];
    for (name, layer) in rows {
        let mut client = client(serve(layer).await).await;
        let asked = HelloRequest { name: "what is in the extensions?".into(), count: 0 };
        let reply = client.say_hello(asked).await.unwrap().into_inner();
        assert_eq!(reply.message, "(true, true, true)", "{name}");
    }
}

#[tokio::test]
async fn messages_arrive_as_they_were_written() {
    let table = [
        "50% of “naïve” 名前 are taken 🦀",
        "%25 %zz % %",
        "two\r\nlines\tand a \u{7f}",
        " spaces at both ends ",
        "",
    ];
    for message in table {
        let key = move |_: &Parts| Err::<Key, _>(Error::new(ErrorKind::InvalidIdentity, message));
        let status = denial(layer(Quota::per_hour(1), key), 1).await;
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, message));
    }
}

#[tokio::test]
async fn a_message_that_is_too_long_is_cut_between_characters() {
    for (ahead, character) in [("", "é"), ("a", "é"), ("aa", "名"), ("", "🦀"), ("abcde", "🦀"), ("", "%")]
    {
        let message = format!("{ahead}{}", character.repeat(2_000));
        let said = message.clone();
        let key = move |_: &Parts| Err::<Key, _>(Error::new(ErrorKind::InvalidIdentity, said.clone()));
        let status = denial(layer(Quota::per_hour(1), key), 1).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{ahead}{character}: {}", status.message());
        assert!(status.message().len() > 300, "{ahead}{character}");
        assert!(message.starts_with(status.message()), "{ahead}{character}: {}", status.message());
    }
}

#[tokio::test]
async fn the_details_name_the_wait_and_each_policy_that_denied() {
    let layers = |grpc| {
        one()
            .rule(Rule::new(Policy::new("wide", Quota::per_day(100)), Key::new("all")))
            .rule(Rule::new(Policy::new("narrow", Quota::per_day(1)), Key::new("jo")))
            .grpc_response(grpc)
    };
    for (grpc, subjects) in
        [(GrpcStatus::default(), ["", ""]), (GrpcStatus::default().name_identities(), ["all", "jo"])]
    {
        let status = denial(layers(grpc), 2).await;
        let decoded = pb::Status::decode(status.details()).unwrap();
        assert_eq!((decoded.code, decoded.message.as_str()), (8, status.message()));
        let kinds: Vec<_> = decoded.details.iter().map(|detail| detail.type_url.as_str()).collect();
        assert_eq!(
            kinds,
            ["type.googleapis.com/google.rpc.RetryInfo", "type.googleapis.com/google.rpc.QuotaFailure"]
        );

        let details = status.get_error_details();
        let wait = details.retry_info().unwrap().retry_delay.unwrap();
        assert_eq!(wait, Duration::from_secs(24 * 3_600));
        let violations = &details.quota_failure().unwrap().violations;
        let named: Vec<_> =
            violations.iter().map(|it| (it.quota_id.as_str(), it.quota_value, it.subject.as_str())).collect();
        assert_eq!(named, [("calls", 1, subjects[0]), ("narrow", 1, subjects[1])]);
    }
}

#[tokio::test]
async fn the_retry_info_is_above_zero_or_absent() {
    let soon = denial(denying(Duration::ZERO), 1).await.get_error_details();
    assert!(soon.retry_info().unwrap().retry_delay.unwrap() > Duration::ZERO);
    let never = denial(too_dear(), 1).await;
    assert_eq!(never.code(), Code::ResourceExhausted);
    assert!(never.get_error_details().retry_info().is_none());
    assert_eq!(never.get_error_details().quota_failure().unwrap().violations.len(), 1);
}

#[tokio::test]
async fn jitter_is_the_same_in_everything_that_names_the_wait() {
    let layer = denying(Duration::from_secs(10))
        .retry_after_jitter(Duration::from_secs(1_000))
        .grpc_response(GrpcStatus::default().retry_pushback());
    let mut longest = Duration::ZERO;
    for _ in 0..9 {
        let status = denial(layer.clone(), 1).await;
        let delay = status.get_error_details().retry_info().unwrap().retry_delay.unwrap();
        let number = |name| status.metadata().get(name).unwrap().to_str().unwrap().parse::<u64>().unwrap();
        assert!((Duration::from_secs(10)..=Duration::from_secs(1_010)).contains(&delay), "{delay:?}");
        assert_eq!(u128::from(number("grpc-retry-pushback-ms")), delay.as_micros().div_ceil(1_000));
        assert_eq!(u128::from(number("retry-after")), delay.as_micros().div_ceil(1_000_000));
        longest = longest.max(delay);
    }
    assert!(longest > Duration::from_secs(20), "{longest:?}");
}

#[tokio::test]
async fn pushback_is_a_decimal_i32_if_asked_for() {
    let push = GrpcStatus::default().retry_pushback();
    let table = [
        ("default", denying(Duration::from_secs(3)), None),
        ("wait", denying(Duration::from_secs(3)).grpc_response(push.clone()), Some("3000")),
        ("rounded up", denying(Duration::from_micros(1)).grpc_response(push.clone()), Some("1")),
        ("clamped", denying(Duration::from_secs(31_536_000)).grpc_response(push.clone()), Some("2147483647")),
        ("cannot help", too_dear().grpc_response(push.clone()), Some("-1")),
        ("not limited", closed().grpc_response(push), None),
    ];
    for (name, layer, expected) in table {
        let status = denial(layer, 1).await;
        let found = status.metadata().get("grpc-retry-pushback-ms").map(|value| value.to_str().unwrap());
        assert_eq!(found, expected, "{name}");
    }
}

fn many() -> RateLimitLayer {
    (0..199).fold(
        one().grpc_response(GrpcStatus::default().retry_pushback().name_identities()),
        |layer, n| {
            let name = format!("{n:03}{}", "\"".repeat(61));
            layer.rule(Rule::new(Policy::new(&name, Quota::per_hour(1)), Key::new("i".repeat(100))))
        },
    )
}

#[tokio::test]
async fn the_header_block_of_a_rejection_stays_below_8_kib() {
    let server = serve(many()).await;
    let _charged = raw(server, 1).await;
    let response = raw(server, 1).await;
    assert!(size(response.headers()) < 8 * 1_024, "{}", size(response.headers()));
    assert_eq!(response.headers()["grpc-status"], "8");
    assert_eq!(response.headers()["grpc-retry-pushback-ms"], "3600000");
    let status = client(server).await.say_hello(hello()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn the_header_block_of_an_admitted_call_stays_below_8_kib() {
    // A layer that only reports names the policies that would deny as well.
    for (layer, calls) in [(many(), 1), (many().enforcement(Enforcement::ReportOnly), 2)] {
        let response = raw(serve(layer).await, calls).await;
        assert!(size(response.headers()) < 8 * 1_024, "{}", size(response.headers()));
        assert!(!response.headers().contains_key("grpc-status"));
        assert!(!response.body().is_end_stream());
    }
}

#[tokio::test]
async fn the_headers_of_the_service_are_kept_however_large_they_are() {
    let upstream = r#""upstream";r=1;t=5"#;
    for (length, expected) in [(100, 2), (7_000, 1), (9_000, 1)] {
        let service = tower::service_fn(move |_| async move {
            let response = Response::builder()
                .header("content-type", "application/grpc")
                .header("ratelimit", upstream)
                .header("ratelimit-policy", r#""upstream";q=9"#)
                .header("x-large", "x".repeat(length));
            Ok::<_, Infallible>(response.body(String::new()).unwrap())
        });
        let Ok(response) = one().layer(service).oneshot(wire_call(HELLO, "application/grpc")).await;
        for field in ["ratelimit", "ratelimit-policy"] {
            assert_eq!(response.headers().get_all(field).iter().count(), expected, "{field}, {length}");
        }
        assert_eq!(response.headers()["ratelimit"], upstream);
        assert_eq!(response.headers()["x-large"].len(), length);
    }
}

#[tokio::test]
async fn the_layer_adds_no_error_type() {
    let key = |_: &Parts| Err::<Key, _>(Error::new(ErrorKind::StoreReply, "any"));
    for layer in [too_dear(), closed(), layer(Quota::per_hour(1), key), many()] {
        let service = tower::service_fn(|_| async { Ok::<_, Infallible>(Response::new(String::new())) });
        // It compiles because the only error type is the service's.
        let Ok(response) = layer.layer(service).oneshot(wire_call(HELLO, "application/grpc")).await;
        assert_eq!(response.status(), 200);
    }
}

/// A server that translates grpc-web, with the rate limit `outside` of the translation or inside of it.
async fn serve_web(outside: bool) -> SocketAddr {
    let (listener, address) = listen().await;
    let server = Server::builder().accept_http1(true);
    let greeter = GreeterServer::new(Hello::default());
    if outside {
        let server = server.layer(one()).layer(GrpcWebLayer::new()).add_service(greeter);
        tokio::spawn(server.serve_with_incoming(listener));
    } else {
        let server = server.layer(GrpcWebLayer::new()).layer(one()).add_service(greeter);
        tokio::spawn(server.serve_with_incoming(listener));
    }
    address
}

#[tokio::test]
async fn a_grpc_web_client_reads_the_rejection() {
    for outside in [true, false] {
        let origin = format!("http://{}", serve_web(outside).await).parse().unwrap();
        let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build_http();
        let web = ServiceBuilder::new().layer(GrpcWebClientLayer::new()).service(http);
        let mut client = GreeterClient::with_origin(web, origin);
        assert_eq!(client.say_hello(hello()).await.unwrap().into_inner().message, "you");
        let status = client.say_hello(hello()).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "outside: {outside}");
        assert_eq!(status.message(), "over the rate limit; try again in 1 hour");
        assert_eq!(status.get_error_details().quota_failure().unwrap().violations.len(), 1);
    }
}

#[tokio::test]
async fn grpc_web_is_answered_in_its_own_content_type() {
    let kinds = [
        "application/grpc-web",
        "application/grpc-web+proto",
        "application/grpc-web-text",
        "application/grpc-web-text+proto",
    ];
    for outside in [true, false] {
        let server = serve_web(outside).await;
        let _charged = raw(server, 1).await;
        for kind in kinds {
            let socket = TokioIo::new(TcpStream::connect(server).await.unwrap());
            let (mut sender, connection) = conn::http1::handshake(socket).await.unwrap();
            tokio::spawn(connection);
            let mut call = wire_call(HELLO, kind);
            call.headers_mut().insert("host", "localhost".parse().unwrap());
            call.headers_mut().insert("accept", kind.parse().unwrap());
            let response = sender.send_request(call).await.unwrap();
            let name = format!("{kind}, outside: {outside}");
            assert_eq!(response.status(), 200, "{name}");
            assert_eq!(response.headers()["grpc-status"], "8", "{name}");
            let said = response.headers()["content-type"].to_str().unwrap();
            if outside {
                assert_eq!(said, kind, "{name}");
            } else {
                // tonic-web names the format of the message, which is proto by default.
                assert_eq!(said.trim_end_matches("+proto"), kind.trim_end_matches("+proto"), "{name}");
            }
        }
    }
}

#[tokio::test]
async fn a_content_type_that_the_client_invented_is_not_echoed() {
    let long = format!("application/grpc-web;{}", "x".repeat(30_000));
    let table = [
        ("application/grpc", "application/grpc"),
        ("application/grpc+proto", "application/grpc"),
        ("application/grpc-web+proto; charset=utf-8", "application/grpc-web+proto"),
        ("Application/GRPC-Web-Text", "application/grpc-web-text"),
        ("application/grpc-web-text+mine", "application/grpc-web-text"),
        ("application/grpc-web+mine", "application/grpc-web"),
        ("application/grpc-webbed", "application/grpc-web"),
        (&long, "application/grpc-web"),
    ];
    let service = tower::service_fn(|_| async { Ok::<_, Infallible>(Response::new(String::new())) });
    let limited = one().layer(service);
    let Ok(_) = limited.clone().oneshot(wire_call(HELLO, "application/grpc")).await;
    for (kind, expected) in table {
        let Ok(response) = limited.clone().oneshot(wire_call(HELLO, kind)).await;
        assert_eq!(response.headers()["grpc-status"], "8", "{kind}");
        assert_eq!(response.headers()["content-type"], expected, "{kind}");
    }
}

#[tokio::test]
async fn the_peer_of_a_tonic_server_is_known() {
    let named = GrpcStatus::default().name_identities();
    let details = denial(layer(Quota::per_hour(1), PeerIp::new()).grpc_response(named), 2).await;
    assert_eq!(details.get_error_details().quota_failure().unwrap().violations[0].subject, "127.0.0.1");
}

#[cfg(unix)]
/// Serves a greeter behind `layer` over TLS streams that tonic did not make, until the runtime ends. The certificate is
/// self-signed.
async fn serve_tls(layer: RateLimitLayer) -> (SocketAddr, Certificate) {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der()).into();
    let mut config =
        rustls::ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (listener, address) = listen().await;
    let streams = listener.then(move |stream| {
        let acceptor = acceptor.clone();
        async move { acceptor.accept(stream?).await }
    });
    let server = Server::builder().add_service(layer.layer(GreeterServer::new(Hello::default())));
    tokio::spawn(server.serve_with_incoming(streams));
    (address, Certificate::from_pem(cert.pem()))
}

#[tokio::test]
async fn the_peer_of_a_tonic_server_over_tls_is_known() {
    let (server, certificate) = serve_tls(layer(Quota::per_hour(1), PeerIp::new())).await;
    let tls = ClientTlsConfig::new().ca_certificate(certificate).domain_name("localhost");
    let endpoint = Endpoint::from_shared(format!("https://{server}")).unwrap().tls_config(tls).unwrap();
    for address in [[127, 0, 0, 1], [127, 0, 0, 2]] {
        let channel = endpoint.clone().local_address(Some(address.into())).connect().await.unwrap();
        let mut client = GreeterClient::new(channel);
        client.say_hello(hello()).await.unwrap();
        let denied = client.say_hello(hello()).await.unwrap_err();
        assert_eq!(denied.code(), Code::ResourceExhausted, "{address:?}");
    }
}

#[tokio::test]
async fn a_peer_on_a_unix_socket_is_the_servers_error() {
    use tokio::net::UnixListener;
    use tokio_stream::wrappers::UnixListenerStream;

    let path = std::env::temp_dir().join(format!("tower-ratelimit-grpc-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
    let limited = layer(Quota::per_hour(1), PeerIp::new()).layer(GreeterServer::new(Hello::default()));
    tokio::spawn(Server::builder().add_service(limited).serve_with_incoming(listener));
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).unwrap();
    let mut client = GreeterClient::new(endpoint.connect().await.unwrap());
    for _ in 0..2 {
        let status = client.say_hello(hello()).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal);
        assert_eq!(status.message(), "the rate limit is misconfigured");
    }
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn a_stream_is_charged_once() {
    let mut client = client(serve(layer(Quota::per_hour(2), Key::new("all"))).await).await;
    for _ in 0..2 {
        let stream = client.say_hellos(hello()).await.unwrap().into_inner();
        assert_eq!(stream.collect::<Vec<_>>().await.iter().filter(|reply| reply.is_ok()).count(), 7);
    }
    let status = client.say_hellos(hello()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn one_layer_counts_http_and_grpc_together_and_answers_each_in_its_format() {
    let hellos = Hello::default();
    let app = Routes::new(GreeterServer::new(hellos.clone()))
        .prepare()
        .into_axum_router()
        .route("/", get(async || "hello"))
        .layer(layer(Quota::per_hour(2), PeerIp::new()));
    let server = support::http::serve(app).await;
    let http = support::http::Client::new();
    let url = format!("http://{server}/");
    let mut client = client(server).await;

    assert_eq!(http.get(&url).await.status(), 200);
    client.say_hello(hello()).await.unwrap();
    assert_eq!(client.say_hello(hello()).await.unwrap_err().code(), Code::ResourceExhausted);
    let denied = http.get(&url).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.headers()["content-type"], "application/problem+json");
    assert!(!denied.headers().contains_key("grpc-status"));
    assert_eq!(hellos.0.load(Ordering::Relaxed), 1);
}

#[test]
fn a_limited_service_keeps_its_name() {
    fn name<S: NamedService>(_: &S) -> &'static str {
        S::NAME
    }
    let greeter = GreeterServer::new(Hello::default());
    let plain = name(&greeter);
    assert_eq!(plain, "greeter.Greeter");
    assert_eq!(name(&one().layer(one().layer(greeter))), plain);
}

#[tokio::test]
async fn a_measured_service_keeps_its_name_and_its_calls_end_with_their_trailers() {
    fn name<S: NamedService>(_: &S) -> &'static str {
        S::NAME
    }
    let (meter, (listener, address)) = (LoadMeter::new(), listen().await);
    let limit = layer(Quota::per_hour(100), Key::new("all"));
    let measured = limit.layer(meter.layer(GreeterServer::new(Hello::default())));
    assert_eq!(name(&measured), "greeter.Greeter");
    tokio::spawn(Server::builder().add_service(measured).serve_with_incoming(listener));
    let mut client = client(address).await;
    for _ in 0..3 {
        client.say_hello(hello()).await.unwrap();
    }
    assert!(eventually(async || meter.in_flight() == 0).await, "{meter:?}");
}

#[tokio::test]
async fn a_client_with_the_retry_policy_is_admitted_after_denials() {
    use std::time::Instant;

    use tower::{retry::Retry, service_fn};
    use tower_ratelimit_retry::RetryPolicy;

    let policy = Policy::new("calls", Quota::per_second(5).burst(1));
    let server = serve(RateLimitLayer::new(MemoryStore::new(), policy, Key::new("all"))).await;
    let client = client(server).await;
    let asked = Arc::new(AtomicU32::new(0));
    let counted = asked.clone();
    let call = service_fn(move |request: tonic::Request<HelloRequest>| {
        let mut client = client.clone();
        counted.fetch_add(1, Ordering::Relaxed);
        async move { client.say_hello(request).await }
    });
    let began = Instant::now();
    for _ in 0..3 {
        let retry = Retry::new(RetryPolicy::default(), call.clone());
        let reply = retry.oneshot(tonic::Request::new(hello())).await.unwrap();
        assert_eq!(reply.into_inner().message, "you");
    }
    assert!(began.elapsed() >= Duration::from_millis(400), "{:?}", began.elapsed());
    assert!(asked.load(Ordering::Relaxed) >= 5);
}
