//! A real Envoy in front of a service, which asks servers for its limits.

use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{Router, routing::get};
use support::{Directory, eventually, http::Client, redis_server::free_port};

/// Envoy's filters and routes. What a test leaves out is Envoy's default.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    /// The servers in Envoy's protocol.
    pub(crate) servers: Vec<SocketAddr>,
    /// The fields of the rate limit filter beside its domain and its service.
    pub(crate) filter: &'static str,
    /// The rate limits of the route.
    pub(crate) rate_limits: &'static str,
    /// Filters before it.
    pub(crate) before: &'static str,
    /// Whether health checks are made three times a second, and calls that did not reach a server are repeated with another one.
    pub(crate) is_quick_to_check: bool,
}

/// An Envoy, its service, and the requests that the service got.
pub(crate) struct Envoy {
    child: Child,
    pub(crate) address: SocketAddr,
    admin: SocketAddr,
    pub(crate) served: Arc<AtomicUsize>,
    _directory: Directory,
}

/// Envoy, if `.ci/get-envoy` could get it.
pub(crate) fn program() -> Option<PathBuf> {
    let downloaded =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/envoy-1.40.0/envoy/_bin/envoy");
    let on_path = std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).map(|dir| dir.join("envoy")).collect());
    let on_path: Vec<PathBuf> = on_path.unwrap_or_default();
    let found = on_path.into_iter().chain([downloaded]).find(|program| program.is_file());
    if found.is_none() {
        eprintln!("skipped: there is no envoy; `.ci/get-envoy` gets one");
    }
    found
}

impl Envoy {
    /// An Envoy that has read its configuration, and has a connection to each server that answers.
    pub(crate) async fn start(program: &PathBuf, settings: &Settings) -> Self {
        Self::with(program, |address, admin, service| settings.bootstrap(address, admin, service)).await
    }

    /// The same with a configuration for these addresses: its own, of its page for operators, and of the service.
    pub(crate) async fn with(
        program: &PathBuf,
        bootstrap: impl FnOnce(SocketAddr, SocketAddr, SocketAddr) -> String,
    ) -> Self {
        let served = Arc::new(AtomicUsize::new(0));
        let count = served.clone();
        let app = Router::new().fallback(get(async move || {
            count.fetch_add(1, Ordering::Relaxed);
            ([("x-tokens", "600")], "hello")
        }));
        let service = support::http::serve(app).await;
        let local = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let (address, admin) = (local(free_port()), local(free_port()));
        let directory = Directory::new();
        let file = directory.file("envoy.yaml");
        fs::write(&file, bootstrap(address, admin, service)).unwrap();
        let mut command = Command::new(program);
        command
            .args(["--concurrency", "2", "--disable-hot-restart", "--log-level", "error", "-c"])
            .arg(&file);
        let child = command.stderr(Stdio::inherit()).spawn().unwrap();
        let envoy = Self { child, address, admin, served, _directory: directory };
        let up = eventually(async || {
            tokio::net::TcpStream::connect(envoy.admin).await.is_ok()
                && Client::new().get(&format!("http://{}/ready", envoy.admin)).await.status() == 200
        });
        assert!(up.await, "Envoy is not ready");
        envoy
    }

    /// The value of one of Envoy's statistics.
    pub(crate) async fn stat(&self, name: &str) -> u64 {
        let page =
            Client::new().get(&format!("http://{}/stats?filter=^{name}$", self.admin)).await.into_body();
        page.trim().rsplit(' ').next().and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// Envoy's statistics that begin so and are not 0.
    pub(crate) async fn stats(&self, start: &str) -> String {
        let page = Client::new()
            .get(&format!("http://{}/stats?usedonly&filter=^{start}", self.admin))
            .await
            .into_body();
        page.lines().filter(|line| !line.ends_with(": 0")).collect::<Vec<_>>().join("\n")
    }

    /// Waits until Envoy takes as many servers as healthy.
    pub(crate) async fn sees(&self, servers: u64) {
        let name = "cluster.limits.membership_healthy";
        assert!(eventually(async || self.stat(name).await == servers).await, "{}", self.stat(name).await);
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Settings {
    fn bootstrap(&self, address: SocketAddr, admin: SocketAddr, service: SocketAddr) -> String {
        let Self { servers, filter, rate_limits, before, is_quick_to_check } = self;
        let endpoint = |server: &SocketAddr| {
            format!(
                "{{ endpoint: {{ address: {{ socket_address: {{ address: {}, port_value: {} }} }} }} }}",
                server.ip(),
                server.port()
            )
        };
        let endpoints = servers.iter().map(endpoint).collect::<Vec<_>>().join(", ");
        let (interval, first) = if *is_quick_to_check { ("0.3s", "0.3s") } else { ("5s", "1s") };
        let retries = if *is_quick_to_check {
            r#"
                          retry_policy:
                            retry_on: connect-failure,reset,unavailable
                            num_retries: 2
                            retry_back_off: { base_interval: 0.001s, max_interval: 0.02s }
                            retry_host_predicate:
                              - name: envoy.retry_host_predicates.previous_hosts
                                typed_config: { "@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate }
                            host_selection_retry_max_attempts: 3"#
        } else {
            ""
        };
        format!(
            r#"
admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {admin} }} }} }}
static_resources:
  listeners:
    - name: front
      address: {{ socket_address: {{ address: 127.0.0.1, port_value: {front} }} }}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: front
                codec_type: AUTO
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                        - match: {{ prefix: / }}
                          route:
                            cluster: service
                            rate_limits: {rate_limits}
                http_filters:
                  {before}
                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: d
                      {filter}
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service:
                          envoy_grpc: {{ cluster_name: limits }}{retries}
                  - name: envoy.filters.http.router
                    typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
  clusters:
    - name: service
      type: STATIC
      load_assignment:
        cluster_name: service
        endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {service} }} }} }} }}] }}]
    - name: limits
      type: STATIC
      circuit_breakers: {{ thresholds: [{{ max_retries: 1000 }}] }}
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {{ http2_protocol_options: {{}} }}
      health_checks:
        - timeout: 1s
          interval: {interval}
          initial_jitter: 0s
          no_traffic_interval: {first}
          unhealthy_threshold: 1
          healthy_threshold: 1
          grpc_health_check: {{ service_name: envoy.service.ratelimit.v3.RateLimitService }}
      load_assignment:
        cluster_name: limits
        endpoints: [{{ lb_endpoints: [{endpoints}] }}]
"#,
            admin = admin.port(),
            front = address.port(),
            service = service.port(),
        )
    }
}
