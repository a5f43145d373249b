//! An axum service that calls a tonic service, both limited, in traces that are exported over OTLP.
//!
//! Start something that receives OTLP over gRPC and shows traces, such as Jaeger, whose image `jaegertracing/jaeger`
//! needs the ports 4317 (OTLP) and 16686 (its pages). Then run
//!
//! ```text
//! OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317 cargo run -p example-observed
//! ```
//!
//! with `REDIS_URL`, such as `redis://127.0.0.1:6379`, if the limits are to be in Redis. It sends four requests with one
//! API key and prints their statuses and traces: three times 200, then 429.
//!
//! Look for the service `observed` on Jaeger's pages. With Redis, an admitted request is this trace:
//!
//! ```text
//! example                                the program
//!   GET /hello                           the client
//!     /hello                             the axum service
//!       ratelimit.decision               its limit for each API key
//!         EVALSHA                        the call to Redis
//!       greeter.Greeter/SayHello         the client of the tonic service
//!         /greeter.Greeter/SayHello      the tonic service
//!           ratelimit.decision           its limit for each service
//!             EVALSHA
//! ```
//!
//! The denied one ends with a decision whose `ratelimit.verdict` is `denied`. The guide to tracing lists the
//! attributes.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{env, error::Error};

use example_observed::{call, serve, telemetry};
use opentelemetry::trace::TraceContextExt as _;
use opentelemetry_otlp::SpanExporter;
use tower_ratelimit::{Limiter, MemoryStore, RedisStore};
use tracing::{Instrument as _, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    // It reads OTEL_EXPORTER_OTLP_ENDPOINT.
    let provider = telemetry(SpanExporter::builder().with_tonic().build()?);
    let limiter = match env::var("REDIS_URL") {
        Ok(url) => Limiter::new(RedisStore::connect(&url).await?),
        Err(_) => Limiter::new(MemoryStore::new()),
    };
    let address = serve(&limiter).await?;
    for _ in 0..4 {
        let span = info_span!("example");
        let trace = span.context().span().span_context().trace_id();
        let response = call(address, "key-of-alice").instrument(span).await?;
        println!("{} {trace}", response.status());
    }
    provider.shutdown()?;
    Ok(())
}
