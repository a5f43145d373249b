//! The command `serve`.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::routing::get;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use http::StatusCode;
use metrics::counter;
use tokio::{
    select,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    task::spawn_blocking,
    time::sleep,
};
use tonic::{
    codegen::http::Request,
    transport::{Certificate, Identity, Server, ServerTlsConfig},
};
use tonic_health::{ServingStatus, server::HealthReporter};
use tower_ratelimit::{ErrorKind, Key, Limiter, MemoryStore, RedisStore, policy::EnforcementSwitch};
use tower_ratelimit_operate::{
    admin::{Admin, Switch},
    live::LivePolicies,
};
use tracing::{error, info, warn};

use crate::{
    config::{Followed, Settings},
    decide::Decider,
    failure::Failure,
    listen::Listener,
    operators,
    options::{Calls, Serve, Tls},
    service::Service,
    telemetry,
};

/// The longest time for a call with its message, and for a handshake. Slow callers are cut off.
const CALL_TIME: Duration = Duration::from_secs(5);
/// The time between questions of whether a connection is alive, and for the answer.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIME: Duration = Duration::from_secs(10);
/// What one caller can have on its way here: of a stream, of a connection, and of headers.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 512 << 10;
const HEADERS: u32 = 16 << 10;
/// The most connections of operators.
const OPERATORS: usize = 64;
/// The time between two questions of whether Redis is there, and between two cleanings of the metrics.
const RETRY: Duration = Duration::from_millis(200);
const UPKEEP: Duration = Duration::from_secs(5);
/// The longest time for the work after the last call.
const DRAIN: Duration = Duration::from_secs(5);

/// Answers calls until the process gets a signal to stop.
pub(crate) async fn serve(options: Serve) -> Result<(), Failure> {
    if options.token.is_none() && !options.operators.ip().is_loopback() {
        let message =
            "operators on other hosts need a token, because they can lift all limits: set RATELIMIT_TOKEN";
        return Err(Failure::usage(message));
    }
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut stop = Box::pin(async move {
        select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    });
    let provider = telemetry::start(options.log)?;
    let prometheus = telemetry::metrics().map_err(Failure::service)?;
    if let Some(secret) = &options.digest_secret {
        Key::set_digest_secret(secret)?;
    }
    let Serve { source, calls, .. } = &options;
    let mut server = server(calls, &options.tls, provider.is_some())?;
    let store = store(&options)?;
    let (limiter, decider) = match &store {
        Some(store) => limiting(store.clone(), calls.deadline),
        None => limiting(MemoryStore::new(), calls.deadline),
    };
    let policies = select! { policies = policies(&options, store.as_ref()) => policies?, () = &mut stop => return Ok(()) };
    let settings = Settings {
        failure_mode: source.failure_mode,
        policies: policies.as_ref().map_or_else(Vec::new, LivePolicies::current),
    };
    let config =
        Followed::begin(source.directory.clone(), settings, policies.clone()).map_err(Failure::usage)?;
    let (enforcement, switch) = match &policies {
        Some(policies) => (policies.enforcement().clone(), Switch::from(policies)),
        None => {
            let own = EnforcementSwitch::default();
            (own.clone(), Switch::from(&own))
        }
    };

    let operators = Listener::bind(options.operators, OPERATORS, "operators").await?;
    let listener = Listener::bind(calls.listen, calls.max_connections, "calls").await?;
    info!(calls = %listener.address()?, operators = %operators.address()?, "listening");
    let (reporter, health) = tonic_health::server::health_reporter();
    report(&reporter, ServingStatus::NotServing).await;
    let is_ready = Arc::new(AtomicBool::new(false));
    let ready = tokio::spawn(become_ready(store.clone(), reporter.clone(), is_ready.clone()));
    let admin = |policies| {
        let admin = Admin::new(limiter.clone(), policies).enforcement(switch);
        store.iter().fold(admin, Admin::store)
    };
    let (rendered, shown) = (prometheus.clone(), is_ready.clone());
    let pages = operators::router(admin, config.clone(), policies, options.token.clone())
        .route("/metrics", get(async move || rendered.render()))
        .route(
            "/ready",
            get(async move || match shown.load(Ordering::Relaxed) {
                true => (StatusCode::OK, "ready\n"),
                false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
            }),
        );
    tokio::spawn(async move { axum::serve(operators, pages).await });
    tokio::spawn(async move {
        loop {
            sleep(UPKEEP).await;
            prometheus.run_upkeep();
        }
    });

    let service = Service {
        config,
        decider,
        switch: enforcement,
        failure_mode: source.failure_mode,
        options: calls.clone(),
        calls: ["ok", "over_limit", "error"]
            .map(|code| counter!("ratelimit_server_calls_total", "code" => code)),
    };
    let service = RateLimitServiceServer::new(service).max_decoding_message_size(calls.max_call_size);
    let router =
        server.add_service(health.max_decoding_message_size(calls.max_call_size)).add_service(service);
    let (stopping, is_stopping) = oneshot::channel::<()>();
    let delay = options.shutdown_delay;
    let stopped = async move {
        stop.await;
        ready.abort();
        let _ = ready.await;
        is_ready.store(false, Ordering::Relaxed);
        report(&reporter, ServingStatus::NotServing).await;
        info!("stopping in {delay:?}: health checks fail, and calls are answered");
        sleep(delay).await;
        drop(stopping);
    };
    select! {
        served = router.serve_with_incoming_shutdown(listener.incoming(), stopped) => served.map_err(Failure::service)?,
        () = async { let _ = is_stopping.await; sleep(CALL_TIME).await } => warn!("connections are cut off that did not end"),
    }
    if let Err(error) = limiter.drain(DRAIN).await {
        warn!("what this process still had to send to Redis is lost: {error}");
    }
    // The exporter logs its failures, and blocks.
    let _ = spawn_blocking(move || provider.map(|provider| provider.shutdown_with_timeout(DRAIN))).await;
    info!("stopped");
    Ok(())
}

/// The store in Redis, unless counts are in memory. No server is contacted.
fn store(options: &Serve) -> Result<Option<RedisStore>, Failure> {
    if options.memory {
        return Ok(None);
    }
    if options.redis.redis.is_empty() {
        let message = "name the server with --redis redis://host:6379, or in the variable REDIS_URL, or count with --memory";
        return Err(Failure::usage(message));
    }
    let settings = RedisStore::builder().deadline(options.calls.deadline).pool_size(options.pool_size);
    let settings = options.redis.settings(settings)?;
    Ok(Some(settings.connect_lazy(options.redis.servers()?)?))
}

fn limiting(store: impl tower_ratelimit::store::Store + Clone, deadline: Duration) -> (Limiter, Decider) {
    let limiter = Limiter::new(store.clone());
    (limiter.clone(), Decider::new(&limiter, store, deadline))
}

/// The policies that limits can name. If only Redis has them, it waits until Redis has been seen.
async fn policies(options: &Serve, store: Option<&RedisStore>) -> Result<Option<LivePolicies>, Failure> {
    let file = options.source.policies.as_ref().map(LivePolicies::file).transpose()?;
    let Some(store) = store.filter(|_| options.live) else { return Ok(file) };
    let defaults = file.as_ref().map_or_else(Vec::new, LivePolicies::current);
    let live = LivePolicies::redis(store, defaults).await?;
    while file.is_none() && live.last_error().is_some_and(|error| error.kind() != ErrorKind::InvalidConfig) {
        sleep(RETRY).await;
    }
    match live.last_error() {
        // Without defaults, the limits have no policies: the error of the hash says why.
        Some(error) if file.is_none() => Err(error.into()),
        _ => Ok(Some(live)),
    }
}

fn server(calls: &Calls, tls: &Tls, is_traced: bool) -> Result<Server, Failure> {
    let mut server = Server::builder()
        .timeout(CALL_TIME)
        .max_concurrent_streams(calls.max_calls_per_connection)
        .max_connection_age(calls.max_connection_age)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_max_header_list_size(HEADERS)
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_TIME));
    if is_traced {
        server = server.trace_fn(|request: &Request<()>| telemetry::span(request));
    }
    let (Some(certificate), Some(key)) = (&tls.certificate, &tls.key) else { return Ok(server) };
    let read = |path: &PathBuf| {
        fs::read(path).map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))
    };
    let mut config = ServerTlsConfig::new()
        .identity(Identity::from_pem(read(certificate)?, read(key)?))
        .timeout(CALL_TIME);
    if let Some(path) = &tls.client_ca {
        config = config.client_ca_root(Certificate::from_pem(read(path)?));
    }
    let invalid = |error| Failure::usage(format!("the certificate, its key or the CA is invalid: {error}"));
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
