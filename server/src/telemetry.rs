//! Logs, traces and metrics.

use std::{
    env,
    io::{self, IsTerminal as _},
};

use http::Request;
use metrics::{describe_counter, describe_gauge};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use opentelemetry::{global, trace::TracerProvider as _};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
use tower_ratelimit::metrics::BUCKETS;
use tracing::{Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::{
    EnvFilter, Layer as _, Registry, filter::filter_fn, fmt, layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use crate::{failure::Failure, options::LogFormat};

/// The name of the service in traces, unless the variable OTEL_SERVICE_NAME has another one.
const NAME: &str = "ratelimit-server";

/// Logs to stderr. Exports spans if a variable of OpenTelemetry has an address: then the provider must be shut down before the
/// process ends.
pub(crate) fn start(format: LogFormat) -> Result<Option<SdkTracerProvider>, Failure> {
    let provider = provider()?;
    // Spans take time, so they are made only if they are exported.
    let default = if provider.is_some() { "info,tower_ratelimit::span=debug" } else { "info" };
    let wanted = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let is_event = filter_fn(|metadata| metadata.is_event());
    let output = fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    let output = match format {
        LogFormat::Text => output.with_filter(is_event).boxed(),
        LogFormat::Json => output.json().with_filter(is_event).boxed(),
    };
    let spans =
        provider.as_ref().map(|provider| tracing_opentelemetry::layer().with_tracer(provider.tracer(NAME)));
    Registry::default().with(wanted).with(output).with(spans).init();
    Ok(provider)
}

fn provider() -> Result<Option<SdkTracerProvider>, Failure> {
    let names = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
    if !names.iter().any(|name| env::var_os(name).is_some()) {
        return Ok(None);
    }
    let exporter = SpanExporter::builder().with_tonic().build();
    let exporter = exporter.map_err(|error| Failure::usage(format!("spans cannot be exported: {error}")))?;
    let name = env::var("OTEL_SERVICE_NAME").unwrap_or_else(|_| NAME.to_owned());
    let resource = Resource::builder().with_service_name(name).build();
    global::set_text_map_propagator(TraceContextPropagator::new());
    Ok(Some(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build()))
}

/// The span of a call, in the trace of its caller.
pub(crate) fn span(request: &Request<()>) -> Span {
    let span =
        info_span!("call", otel.name = request.uri().path().trim_start_matches('/'), otel.kind = "server");
    let caller =
        global::get_text_map_propagator(|propagator| propagator.extract(&HeaderExtractor(request.headers())));
    // It fails if no spans are exported.
    let _ = span.set_parent(caller);
    span
}

/// Records the metrics of this process.
pub(crate) fn metrics() -> Result<PrometheusHandle, BuildError> {
    let with_buckets = BUCKETS.iter().try_fold(PrometheusBuilder::new(), |builder, (name, buckets)| {
        builder.set_buckets_for_metric(Matcher::Full((*name).into()), buckets)
    });
    let handle = with_buckets?.install_recorder()?;
    describe_counter!("ratelimit_server_calls_total", "Calls, by their answer.");
    describe_counter!(
        "ratelimit_server_hits_total",
        "Hits that calls have asked for, by descriptor and verdict."
    );
    describe_counter!(
        "ratelimit_server_rejected_connections_total",
        "Connections above the most that may be open."
    );
    describe_gauge!("ratelimit_server_connections", "Open connections.");
    Ok(handle)
}
