//! The ways to connect to Redis, each through proxies.

use tower_ratelimit::{
    Limiter,
    store::{RedisStoreBuilder, Servers},
};

use super::{
    PATIENT, certificates::Authority, proxy::Proxy, redis_cluster::RedisCluster, redis_sentinel::PRIMARY,
    redis_server::RedisServer, within,
};

/// Servers whose clients connect through proxies.
pub struct Mode {
    pub name: &'static str,
    pub proxies: Vec<Proxy>,
    pub urls: Servers,
    authority: Option<Authority>,
    _servers: Vec<RedisServer>,
}

impl Mode {
    /// All that the server has: Redis 6.2 is usually built without TLS, and its nodes cannot change their announced port.
    pub async fn all() -> Vec<Self> {
        let server = RedisServer::start();
        let proxy = Proxy::to(server.port()).await;
        let urls = Servers::from(proxy.url());
        let one =
            Self { name: "one server", proxies: vec![proxy], urls, authority: None, _servers: vec![server] };
        let mut modes = vec![one];
        if RedisServer::has_tls() {
            modes.push(Self::tls().await);
        }
        modes.push(Self::sentinel().await);
        if RedisServer::version() >= 7 {
            modes.push(Self::cluster().await);
        }
        modes
    }

    async fn tls() -> Self {
        let authority = Authority::new();
        let (server, url) = authority.serve(&["--tls-auth-clients", "no"]);
        let proxy = Proxy::to(url.rsplit(':').next().unwrap().parse().unwrap()).await;
        let urls = Servers::from(proxy.url().replace("redis://", "rediss://"));
        Self { name: "TLS", proxies: vec![proxy], urls, authority: Some(authority), _servers: vec![server] }
    }

    /// Each sentinel names the proxy as the address of the primary, and is behind one.
    async fn sentinel() -> Self {
        let primary = RedisServer::start();
        let mut proxies = vec![Proxy::to(primary.port()).await];
        let (mut servers, mut urls) = (vec![primary], Vec::new());
        for _ in 0..2 {
            let settings = format!(
                "sentinel monitor {PRIMARY} 127.0.0.1 {} 2\nsentinel down-after-milliseconds {PRIMARY} 600000\n",
                proxies[0].port()
            );
            let sentinel = RedisServer::sentinel(&settings);
            let proxy = Proxy::to(sentinel.port()).await;
            urls.push(proxy.url());
            proxies.push(proxy);
            servers.push(sentinel);
        }
        Self {
            name: "Sentinel",
            proxies,
            urls: Servers::sentinel(urls, PRIMARY),
            authority: None,
            _servers: servers,
        }
    }

    /// Each node announces the port of its proxy to clients.
    async fn cluster() -> Self {
        let RedisCluster { nodes, .. } = RedisCluster::start(3);
        let mut proxies = Vec::new();
        for node in &nodes {
            let proxy = Proxy::to(node.port()).await;
            let () = node.command(&["CONFIG", "SET", "cluster-announce-port", &proxy.port().to_string()]);
            proxies.push(proxy);
        }
        let ports = || proxies.iter().map(|proxy| format!(":{}@", proxy.port()));
        let is_announced = async || {
            nodes.iter().all(|node| {
                let known: String = node.command(&["CLUSTER", "NODES"]);
                ports().all(|port| known.contains(&port))
            })
        };
        assert!(within(PATIENT, is_announced).await);
        let urls = Servers::cluster(proxies.iter().map(Proxy::url));
        Self { name: "Cluster", proxies, urls, authority: None, _servers: nodes }
    }

    pub async fn connect(&self, mut settings: RedisStoreBuilder) -> Limiter {
        if let Some(authority) = &self.authority {
            settings = settings.tls_ca_certificate(authority.ca.clone());
        }
        let connected = settings.connect(self.urls.clone()).await;
        Limiter::new(connected.unwrap_or_else(|error| panic!("{}: {error}", self.name)))
    }

    /// All connections are [forgotten](Proxy::forget).
    pub fn forget(&self) {
        self.proxies.iter().for_each(Proxy::forget);
    }

    /// All connections are closed, at both ends.
    pub async fn close_all_and_wait(&self) {
        for proxy in &self.proxies {
            proxy.close_all_and_wait().await;
        }
    }

    /// The next `count` connections through each proxy are closed during their setup.
    pub fn close_next(&self, count: u64) {
        self.proxies.iter().for_each(|proxy| proxy.close_next(count));
    }
}
