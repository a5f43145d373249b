//! Two limited services, their client, and the export of their traces. `main.rs` runs them.

#![allow(
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    reason = "only the program and its tests use it"
)]

#[allow(clippy::all, dead_code, missing_docs, unnameable_types, unreachable_pub, unused_qualifications, reason = "generated")]
#[path = "../../tonic/src/greeter.rs"]
#[rustfmt::skip]
pub mod greeter;

use std::{error::Error, io, net::SocketAddr};

use axum::{Router, routing::get};
use greeter::{
    HelloReply, HelloRequest,
    greeter_client::GreeterClient,
    greeter_server::{Greeter, GreeterServer},
};
use http::{Extensions, HeaderMap, HeaderValue, StatusCode};
use opentelemetry::{global, trace::TracerProvider as _};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status, metadata::MetadataMap, service::Routes, transport::Channel};
use tower::Layer as _;
use tower_http::trace::TraceLayer;
use tower_ratelimit::{Header, Limiter, Policy, Quota, RateLimitLayer};
use tracing::{Instrument as _, Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::{
    EnvFilter, Layer as _, filter::LevelFilter, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

/// Exports the spans of this process. Shut the provider down before the process ends: it exports in batches.
pub fn telemetry(exporter: SpanExporter) -> SdkTracerProvider {
    global::set_text_map_propagator(TraceContextPropagator::new());
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(Resource::builder().with_service_name("observed").build())
        .build();
    let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("observed"));
    let wanted = EnvFilter::new("info,tower_ratelimit::span=debug");
    // The exporter's errors are events: without output, a collector that is down is not noticed.
    let output = fmt::layer().with_writer(io::stderr).with_filter(LevelFilter::WARN);
    tracing_subscriber::registry().with(wanted).with(spans).with(output).init();
    provider
}

/// The span of a request that a service handles, in the trace of its client.
fn server_span<B>(request: &http::Request<B>) -> Span {
    // A span's name has few values. Where paths have parameters, take axum's `MatchedPath`.
    let span = info_span!("request", otel.name = request.uri().path(), otel.kind = "server");
    let client =
        global::get_text_map_propagator(|propagator| propagator.extract(&HeaderExtractor(request.headers())));
    // It fails if no layer exports spans.
    let _ = span.set_parent(client);
    span
}

/// The headers with which the next service continues the trace of the current span.
pub fn trace_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    global::get_text_map_propagator(|propagator| {
        propagator.inject_context(&Span::current().context(), &mut HeaderInjector(&mut headers));
    });
    headers
}

/// The service that clients call: three requests a minute for each API key.
pub fn app(limiter: impl Into<Limiter>, greeter: GreeterClient<Channel>) -> Router {
    let policy = Policy::new("api", Quota::per_minute(3));
    Router::new()
        .route("/hello", get(async move || hello(greeter).await))
        .layer(RateLimitLayer::new(limiter, policy, Header::new("x-api-key")))
        // Added last, so that the decision is in the request's span.
        .layer(TraceLayer::new_for_http().make_span_with(server_span))
}

async fn hello(mut greeter: GreeterClient<Channel>) -> Result<String, (StatusCode, String)> {
    let span = info_span!("greeter.Greeter/SayHello", otel.kind = "client");
    let call = async {
        let mut headers = trace_headers();
        headers.insert("x-service", HeaderValue::from_static(SERVICE));
        let hello = HelloRequest { name: "you".into(), count: 1 };
        greeter
            .say_hello(Request::from_parts(MetadataMap::from_headers(headers), Extensions::new(), hello))
            .await
    };
    match call.instrument(span).await {
        Ok(reply) => Ok(reply.into_inner().message),
        Err(status) => Err((StatusCode::BAD_GATEWAY, status.message().to_owned())),
    }
}

/// The identity of the first service at the second one.
pub const SERVICE: &str = "front-desk";

/// The service that it calls: 100 calls a second for each service.
pub fn greeter(limiter: impl Into<Limiter>) -> Router {
    let policy = Policy::new("calls", Quota::per_second(100));
    let limit = RateLimitLayer::new(limiter, policy, Header::new("x-service"));
    Routes::new(limit.layer(GreeterServer::new(Hello)))
        .into_axum_router()
        .layer(TraceLayer::new_for_grpc().make_span_with(server_span))
}

struct Hello;

#[tonic::async_trait]
impl Greeter for Hello {
    async fn say_hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        Ok(Response::new(HelloReply { message: format!("hello {}", request.into_inner().name) }))
    }

    type SayHellosStream = tonic::codegen::tokio_stream::Empty<Result<HelloReply, Status>>;

    async fn say_hellos(&self, _: Request<HelloRequest>) -> Result<Response<Self::SayHellosStream>, Status> {
        Err(Status::unimplemented("see the example of tonic"))
    }
}

/// Serves both on free ports. Returns the address of the first one.
pub async fn serve(limiter: &Limiter) -> Result<SocketAddr, Box<dyn Error + Send + Sync>> {
    let greeter = listen(greeter(limiter.clone())).await?;
    let greeter = GreeterClient::connect(format!("http://{greeter}")).await?;
    Ok(listen(app(limiter.clone(), greeter)).await?)
}

/// Serves on a free port until the runtime ends.
pub async fn listen(service: Router) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(address)
}

/// Calls the first service, as its client. The current span is the parent of the call's.
pub async fn call(address: SocketAddr, api_key: &str) -> reqwest::Result<reqwest::Response> {
    let span = info_span!("GET /hello", otel.kind = "client");
    let call = async {
        let client = reqwest::Client::builder().no_proxy().build()?;
        let url = format!("http://{address}/hello");
        client.get(url).header("x-api-key", api_key).headers(trace_headers()).send().await
    };
    call.instrument(span).await
}
