//! The command `serve`.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use tokio::{
    select,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    task::spawn_blocking,
    time::{interval, sleep},
};
use tonic::{
    codegen::http::Request,
    transport::{Certificate, Identity, Server, ServerTlsConfig},
};
use tonic_health::{ServingStatus, server::HealthReporter};
use tower_ratelimit::{ErrorKind, Key, Limiter, MemoryStore, RedisStore, policy::EnforcementSwitch};
use tower_ratelimit_operate::{admin::Switch, live::LivePolicies};
use tracing::{error, info, warn};

use crate::{
    answer::Answers,
    config::{Followed, Settings},
    connect::{connect, read},
    decide::Decider,
    failure::Failure,
    listen::{bind, incoming},
    operators::Operators,
    options::{Calls, Serve, Tls},
    service::Service,
    telemetry,
};

/// The longest time for a call, with its message. Slow callers are cut off.
const CALL_TIME: Duration = Duration::from_secs(5);
/// The time between questions of whether a connection is alive, and for the answer.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIME: Duration = Duration::from_secs(10);
/// What one caller can have on its way here: of a stream, of a connection, and of headers.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 512 << 10;
const HEADERS: u32 = 16 << 10;
/// The time between two questions of whether Redis is there.
const RETRY: Duration = Duration::from_millis(200);
/// The longest time for the work after the last call.
const DRAIN: Duration = Duration::from_secs(5);

/// Answers calls until the process gets a signal to stop.
pub(crate) async fn serve(options: Serve) -> Result<(), Failure> {
    if options.token.is_none() && !options.operators.ip().is_loopback() {
        let message =
            "operators on other hosts need a token, because they can lift all limits: set RATELIMIT_TOKEN";
        return Err(Failure::Usage(message.to_owned()));
    }
    let mut signals = [SignalKind::terminate(), SignalKind::interrupt()].map(signal).into_iter();
    let (Some(Ok(mut terminate)), Some(Ok(mut interrupt))) = (signals.next(), signals.next()) else {
        return Err(Failure::Service("signals cannot be received".to_owned()));
    };
    let provider = telemetry::start(options.log)?;
    let prometheus = telemetry::metrics().map_err(|error| Failure::Service(error.to_string()))?;
    if let Some(secret) = &options.digest_secret {
        Key::set_digest_secret(secret)?;
    }
    let store = if options.redis.memory { None } else { Some(connect(&options)?) };
    let (limiter, decider) = match &store {
        Some(store) => {
            let limiter = Limiter::new(store.clone());
            (limiter.clone(), Decider::new(limiter, store.clone(), options.calls.deadline))
        }
        None => {
            let store = MemoryStore::new();
            let limiter = Limiter::new(store.clone());
            (limiter.clone(), Decider::new(limiter, store, options.calls.deadline))
        }
    };
    let policies = policies(&options, store.as_ref()).await?;
    let settings = Settings {
        failure_mode: options.source.failure_mode,
        policies: policies.as_ref().map_or_else(Vec::new, LivePolicies::current),
    };
    let config = Followed::begin(options.source.directory.clone(), settings, policies.clone())
        .map_err(Failure::Usage)?;
    let own = EnforcementSwitch::default();
    let enforcement = policies.as_ref().map_or(&own, LivePolicies::enforcement).clone();
    let is_ready = Arc::new(AtomicBool::new(false));
    let switch = policies.as_ref().map_or_else(|| Switch::from(&own), Switch::from);

    let (reporter, health) = tonic_health::server::health_reporter();
    report(&reporter, ServingStatus::NotServing).await;
    let operators = bind(options.operators).await.map_err(failed)?;
    let listener = bind(options.calls.listen).await.map_err(failed)?;
    info!(
        calls = %listener.local_addr().map_err(failed)?,
        operators = %operators.local_addr().map_err(failed)?,
        limits = config.current().limits().len(),
        "listening"
    );
    let router = Operators {
        limiter: limiter.clone(),
        config: config.clone(),
        policies,
        switch,
        store: store.clone(),
        token: options.token.clone(),
        prometheus: prometheus.clone(),
        is_ready: is_ready.clone(),
    };
    let router = router.router();
    tokio::spawn(async move { axum::serve(operators, router).await });
    tokio::spawn(async move {
        let mut ticks = interval(Duration::from_secs(5));
        loop {
            ticks.tick().await;
            prometheus.run_upkeep();
        }
    });
    let ready = tokio::spawn(become_ready(store, reporter.clone(), is_ready.clone()));

    let calls = &options.calls;
    let service = Service {
        config,
        decider,
        answers: Answers { has_headers: calls.headers, has_problem_body: calls.problem_body },
        switch: enforcement,
        failure_mode: options.source.failure_mode,
        max_descriptors: calls.max_descriptors,
        overrides: Default::default(),
        counters: Default::default(),
    };
    let service = RateLimitServiceServer::new(service).max_decoding_message_size(calls.max_call_size);
    let server = server(calls, &options.tls, provider.is_some())?;
    let delay = options.shutdown_delay;
    let (stopping, is_stopping) = oneshot::channel::<()>();
    let stopped = async move {
        select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        ready.abort();
        is_ready.store(false, Ordering::Relaxed);
        report(&reporter, ServingStatus::NotServing).await;
        info!("stopping in {delay:?}: health checks fail, and calls are answered");
        sleep(delay).await;
        drop(stopping);
    };
    let router = { server }.add_service(health).add_service(service);
    let served = router.serve_with_incoming_shutdown(incoming(listener, calls.max_connections), stopped);
    select! {
        served = served => served.map_err(|error| Failure::Service(error.to_string()))?,
        () = async { let _ = is_stopping.await; sleep(CALL_TIME).await } => warn!("connections of slow callers are cut off"),
    }
    if let Err(error) = limiter.drain(DRAIN).await {
        warn!("what this process still had to send to Redis is lost: {error}");
    }
    // The exporter logs its failures, and blocks.
    let _ = spawn_blocking(move || provider.map(|provider| provider.shutdown_with_timeout(DRAIN))).await;
    info!("stopped");
    Ok(())
}

fn failed(error: io::Error) -> Failure {
    Failure::Service(error.to_string())
}

/// The policies that limits can name. With those of Redis alone, it waits until Redis has been seen.
async fn policies(options: &Serve, store: Option<&RedisStore>) -> Result<Option<LivePolicies>, Failure> {
    let file = options.source.policies.as_ref().map(LivePolicies::file).transpose()?;
    let Some(store) = store.filter(|_| options.live) else { return Ok(file) };
    let defaults = file.as_ref().map_or_else(Vec::new, LivePolicies::current);
    let live = LivePolicies::redis(store, defaults).await?;
    while file.is_none() && live.last_error().is_some_and(|error| error.kind() != ErrorKind::InvalidConfig) {
        sleep(RETRY).await;
    }
    Ok(Some(live))
}

fn server(calls: &Calls, tls: &Tls, is_traced: bool) -> Result<Server, Failure> {
    let mut server = Server::builder()
        .timeout(CALL_TIME)
        .max_concurrent_streams(calls.max_calls_per_connection)
        .max_connection_age(calls.max_connection_age)
        .max_connection_age_grace(CALL_TIME)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_max_header_list_size(HEADERS)
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_TIME));
    if is_traced {
        server = server.trace_fn(|request: &Request<()>| telemetry::span(request));
    }
    let (Some(certificate), Some(key)) = (&tls.certificate, &tls.key) else { return Ok(server) };
    let mut config = ServerTlsConfig::new()
        .identity(Identity::from_pem(read(certificate)?, read(key)?))
        .timeout(CALL_TIME);
    if let Some(path) = &tls.client_ca {
        config = config.client_ca_root(Certificate::from_pem(read(path)?));
    }
    let invalid = |error| Failure::Usage(format!("the certificate, its key or the CA is invalid: {error}"));
    server.tls_config(config).map_err(invalid)
}

/// Reports that the server is ready once Redis has been seen. It stays ready in an outage, which the failure modes answer.
async fn become_ready(store: Option<RedisStore>, reporter: HealthReporter, is_ready: Arc<AtomicBool>) {
    if let Some(store) = store {
        let mut latest = String::new();
        loop {
            let problem = match store.probe().await {
                Ok(report) if report.can_decide() => break,
                Ok(report) => report.findings().collect::<Vec<_>>().join("; "),
                Err(error) => error.to_string(),
            };
            if problem != latest {
                error!("not ready: {problem}");
                latest = problem;
            }
            sleep(RETRY).await;
        }
    }
    is_ready.store(true, Ordering::Relaxed);
    report(&reporter, ServingStatus::Serving).await;
    info!("ready");
}

/// Reports the health of the service, and of the server, which has no name.
async fn report(reporter: &HealthReporter, status: ServingStatus) {
    reporter.set_service_status("", status).await;
    reporter.set_service_status("envoy.service.ratelimit.v3.RateLimitService", status).await;
}
