//! A primary, its replica, and three sentinels, on free ports.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use super::{certificates::Authority, redis_server::RedisServer};

/// The name of the primary in the sentinels.
pub const PRIMARY: &str = "limits";

pub struct SentinelGroup {
    /// Two servers. The first one is the primary until a promotion.
    pub servers: Vec<RedisServer>,
    pub sentinels: Vec<RedisServer>,
    urls: Vec<String>,
}

impl SentinelGroup {
    /// The sentinels notice after half a second that the primary is down.
    pub fn start() -> Self {
        Self::with_passwords(None, None)
    }

    /// Servers that require the password `data`, and sentinels that require `sentinel`.
    pub fn with_passwords(data: Option<&str>, sentinel: Option<&str>) -> Self {
        Self::with(data, sentinel, None)
    }

    /// Servers and sentinels that use TLS among themselves too, and require a certificate of each client. Only the tests
    /// use the ports without TLS.
    pub fn over_tls(authority: &Authority) -> Self {
        Self::with(None, None, Some(authority))
    }

    fn with(data: Option<&str>, sentinel: Option<&str>, tls: Option<&Authority>) -> Self {
        let arguments = || {
            let (mut arguments, url) = tls.map(Authority::arguments).unwrap_or_default();
            if tls.is_some() {
                arguments.extend(["--tls-replication", "yes"].map(str::to_owned));
            }
            (arguments, url)
        };
        let start = |more: &[&str]| {
            let (mut words, url) = arguments();
            let locked = data.iter().flat_map(|&data| ["--requirepass", data, "--masterauth", data]);
            words.extend(locked.chain(more.iter().copied()).map(str::to_owned));
            let server = RedisServer::with(&words.iter().map(String::as_str).collect::<Vec<_>>());
            let plain = server.url_with(2);
            let url = if tls.is_some() { url } else { plain };
            (server, url.rsplit(':').next().unwrap().to_owned())
        };
        let (primary, port) = start(&[]);
        let (replica, _) = start(&["--replicaof", "127.0.0.1", &port]);
        let mut settings = format!(
            "sentinel monitor {PRIMARY} 127.0.0.1 {port} 2\nsentinel down-after-milliseconds {PRIMARY} 500\n\
             sentinel failover-timeout {PRIMARY} 3000\n"
        );
        if let Some(data) = data {
            settings += &format!("sentinel auth-pass {PRIMARY} {data}\n");
        }
        if let Some(sentinel) = sentinel {
            settings += &format!("requirepass {sentinel}\nsentinel sentinel-pass {sentinel}\n");
        }
        let sentinels = (0..3).map(|_| {
            let (words, url) = arguments();
            let tls =
                words.chunks(2).map(|pair| format!("{} {}\n", pair[0].trim_start_matches('-'), pair[1]));
            let sentinel = RedisServer::sentinel(&(settings.clone() + &tls.collect::<String>()));
            let url = if url.is_empty() { sentinel.url() } else { url };
            (sentinel, url)
        });
        let (sentinels, urls) = sentinels.unzip();
        let group = Self { servers: vec![primary, replica], sentinels, urls };
        let known = ["num-other-sentinels", "num-slaves"].map(str::to_owned);
        for node in &group.sentinels {
            wait_until("each sentinel knows the others and the replica", || {
                let state = master(node, sentinel);
                let field = |name: &String| {
                    let place = state.iter().position(|word| word == name).unwrap();
                    state[place + 1].clone()
                };
                known.iter().map(field).eq(["2", "1"])
            });
        }
        group
    }

    pub fn urls(&self) -> Vec<String> {
        self.urls.clone()
    }
}

fn master(sentinel: &RedisServer, password: Option<&str>) -> Vec<String> {
    let mut connection = sentinel.connection();
    if let Some(password) = password {
        let () = redis::cmd("AUTH").arg(password).query(&mut connection).unwrap();
    }
    redis::cmd("SENTINEL").arg("MASTER").arg(PRIMARY).query(&mut connection).unwrap()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "timed out: {what}");
        sleep(Duration::from_millis(50));
    }
}
