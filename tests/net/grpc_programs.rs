//! A tonic service as a new user writes it, and what a tonic client or server adds to bans and addresses.

use std::{pin::Pin, time::Duration};

use futures_util::FutureExt as _;
use http::{Request, StatusCode, request::Parts};
use support::{
    day,
    inner::{ask as ask_layer, ask_and_read},
};
use tokio_stream::Stream;
use tonic::{
    Code, Status,
    transport::{
        Server,
        server::{TcpConnectInfo, UdsConnectInfo},
    },
};
use tonic_types::StatusExt as _;
use tower::{ServiceBuilder, ServiceExt as _};
use tower_ratelimit::{
    ClientIp, Decision, Error, ErrorKind, Key, KeyExtractor, Limiter, MemoryStore, PeerIp, Policy, Quota,
    RateLimitLayer, Rejection, Rule,
    algorithm::FixedWindow,
    decision::Verdict,
    key::{GrpcMethod, TrustedProxies},
    policy::Penalty,
    store::ManualClock,
};

use crate::{
    each_store::penalties::{HOUR, MINUTE},
    grpc::greeter::{
        HelloReply, HelloRequest,
        greeter_client::GreeterClient,
        greeter_server::{Greeter, GreeterServer},
    },
};

/// A tonic service with limits for each method, health checks that are not limited, and a handler that charges more and
/// returns its own status.
mod greetings {
    use super::*;

    pub(super) struct Greetings {
        pub(super) letters: Policy,
    }

    #[tonic::async_trait]
    impl Greeter for Greetings {
        async fn say_hello(
            &self,
            request: tonic::Request<HelloRequest>,
        ) -> Result<tonic::Response<HelloReply>, Status> {
            let limiter = Limiter::from_extensions(request.extensions()).cloned();
            let limiter = limiter.ok_or_else(|| Status::internal("no rate limit layer"))?;
            let admitted = Decision::from_extensions(request.extensions()).is_some_and(Decision::is_admitted);
            let name = request.into_inner().name;
            if name.is_empty() || !admitted {
                return Err(Status::invalid_argument("a greeting needs a name"));
            }
            // A unit for each letter. A denial is a status with details.
            let letters = limiter.check(&self.letters, &Key::new("all"), name.len() as u64).await;
            let letters = letters.map_err(Rejection::from)?.into_result()?;
            debug_assert_eq!(letters.verdict(), Verdict::Admit);
            Ok(tonic::Response::new(HelloReply { message: name }))
        }

        type SayHellosStream = Pin<Box<dyn Stream<Item = Result<HelloReply, Status>> + Send>>;

        async fn say_hellos(
            &self,
            _: tonic::Request<HelloRequest>,
        ) -> Result<tonic::Response<Self::SayHellosStream>, Status> {
            Ok(tonic::Response::new(Box::pin(tokio_stream::empty())))
        }
    }
}

#[tokio::test]
async fn a_grpc_service_has_limits_per_method_and_handlers_with_custom_statuses() {
    let calls = Policy::new("calls", Quota::per_hour(3));
    let store = MemoryStore::with_clock(ManualClock::new());
    let per_method = RateLimitLayer::new(store, calls, (PeerIp::new(), GrpcMethod::new()))
        .exempt_if(GrpcMethod::service().any_of(["grpc.health.v1.Health"]));
    let letters = Policy::new("letters", Quota::per_day(5));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service =
        ServiceBuilder::new().layer(per_method).service(GreeterServer::new(greetings::Greetings { letters }));
    let server = Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener)));

    let mut client = GreeterClient::connect(format!("http://{address}")).await.unwrap();
    let hello = |name: &str| HelloRequest { name: name.into(), count: 1 };
    assert_eq!(client.say_hello(hello("Ada")).await.unwrap().into_inner().message, "Ada");

    // The handler's own denial, with the wait and the policy in its details.
    let status = client.say_hello(hello("Grace")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let quota = status.get_details_quota_failure().unwrap();
    assert_eq!(quota.violations[0].quota_id, "letters");
    // Three of five letters are missing, at one in 4.8 hours.
    assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(Duration::from_secs(3 * 17_280)));
    assert_eq!(client.say_hello(hello("")).await.unwrap_err().code(), Code::InvalidArgument);

    // The denial of the layer: the third call was the last of this method. The other method has its own count.
    let status = client.say_hello(hello("Ada")).await.unwrap_err();
    assert_eq!(status.get_details_quota_failure().unwrap().violations[0].quota_id, "calls");
    assert!(client.say_hellos(hello("Ada")).await.is_ok());
}

#[tokio::test]
async fn a_banned_call_of_grpc_learns_when_the_ban_ends() {
    let login = Policy::new("login", Quota::per_minute(1))
        .algorithm(FixedWindow::anchored())
        .penalty(Penalty::after(2, MINUTE).ban(HOUR));
    let store = MemoryStore::with_clock(ManualClock::new());
    let layer =
        RateLimitLayer::new(store, login, Key::new("all")).rule(Rule::new(day("daily", 9), Key::new("all")));
    let call = || Request::post("/").header("content-type", "application/grpc").body(String::new()).unwrap();
    for _ in 0..2 {
        ask_layer(&layer, call()).await;
    }
    let banned = ask_and_read(&layer, call()).await;
    assert_eq!(banned.status(), StatusCode::OK);
    assert_eq!(banned.headers()["grpc-status"], "8");
    assert_eq!(banned.headers()["grpc-message"], "the client is banned; try again in 1 hour");
    let decision = banned.extensions().get::<Decision>().unwrap().clone();
    let status = Status::from(Rejection::Denied(decision));
    let details = status.get_error_details();
    assert_eq!(details.retry_info().unwrap().retry_delay, Some(HOUR));
    let [violation] = &details.quota_failure().unwrap().violations[..] else { panic!("{details:?}") };
    assert_eq!((&*violation.quota_id, &*violation.description), ("login", "banned"));
}

#[tokio::test]
async fn a_rejection_that_an_axum_handler_returns_to_a_grpc_client_has_details() {
    let exports = Policy::new("exports", Quota::per_hour(1));
    let handler = async move |limiter: Limiter| -> Result<&'static str, Rejection> {
        limiter.check(&exports, &Key::new("alice"), 1).await?.into_result()?;
        Ok("exported")
    };
    let store = MemoryStore::with_clock(ManualClock::new());
    let layer = RateLimitLayer::new(store, Policy::new("api", Quota::per_minute(100)), Key::new("all"));
    let app = axum::Router::new().route("/", axum::routing::post(handler)).layer(layer);
    for denied in [false, true] {
        let call =
            Request::post("/").header("content-type", "application/grpc").body(axum::body::Body::empty());
        let answer = app.clone().oneshot(call.unwrap()).await.unwrap();
        let status = Status::from_header_map(answer.headers());
        assert_eq!(status.is_some(), denied);
        if let Some(status) = status {
            assert_eq!(status.code(), Code::ResourceExhausted);
            assert_eq!(status.get_details_quota_failure().unwrap().violations[0].quota_id, "exports");
        }
    }
}

/// A request with this peer and the address that a proxy has added.
fn with<T: Clone + Send + Sync + 'static>(peer: T) -> Parts {
    let request = Request::get("/").header("x-forwarded-for", "203.0.113.7").extension(peer);
    request.body(()).unwrap().into_parts().0
}

fn key_of(extractor: &impl KeyExtractor, request: &Parts) -> Result<Key, Error> {
    extractor.extract(request).now_or_never().unwrap()
}

fn private() -> TrustedProxies {
    TrustedProxies::cidrs(["10.0.0.0/8"]).unwrap()
}

#[test]
fn the_peer_is_read_from_the_connect_info_of_tonic() {
    let tcp = |remote: Option<&str>| {
        let remote_addr = remote.map(|remote| remote.parse().unwrap());
        with(TcpConnectInfo { local_addr: Some("127.0.0.1:1".parse().unwrap()), remote_addr })
    };
    let request = tcp(Some("10.0.0.1:80"));
    assert_eq!(key_of(&PeerIp::new(), &request).unwrap(), Key::new("10.0.0.1"));
    assert_eq!(key_of(&ClientIp::behind(private()), &request).unwrap(), Key::new("203.0.113.7"));
    assert_eq!(key_of(&PeerIp::new(), &tcp(None)).unwrap_err().kind(), ErrorKind::MissingSetup);
}

#[test]
fn a_peer_of_tonic_on_a_unix_socket_is_a_defined_error() {
    let request = with(UdsConnectInfo { peer_addr: None, peer_cred: None });
    let trusting = ClientIp::behind(private().and_unix_socket());
    assert_eq!(key_of(&trusting, &request).unwrap(), Key::new("203.0.113.7"));
    for error in [key_of(&PeerIp::new(), &request), key_of(&ClientIp::behind(private()), &request)] {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MissingSetup);
        assert!(error.to_string().contains("TrustedProxies::and_unix_socket"), "{error}");
    }
}
