//! `rediss://` URLs, on servers with certificates of a private authority.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use support::{
    RedisServer,
    certificates::Authority,
    eventually,
    redis_cluster::RedisCluster,
    redis_sentinel::{PRIMARY, SentinelGroup},
    settings,
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tower_ratelimit::{
    ErrorKind, Key, Limiter, Policy, Quota, RedisStore,
    store::{RedisStoreBuilder, Servers},
};

const OPTIONAL: &[&str] = &["--tls-auth-clients", "no"];

async fn decides(store: RedisStore) {
    let policy = Policy::new("p", Quota::per_hour(1));
    let limiter = Limiter::new(store);
    for admitted in [true, false] {
        let decision = limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
        assert!(decision.failure().is_none(), "{:?}", decision.failure());
        assert_eq!(decision.is_admitted(), admitted);
    }
}

#[tokio::test]
async fn a_store_decides_over_tls_with_the_ca_certificate() {
    let authority = Authority::new();
    let (server, url) = authority.serve(OPTIONAL);
    decides(settings().tls_ca_certificate(authority.ca.clone()).connect(&url).await.unwrap()).await;
    let () = server.command(&["FLUSHALL"]);
    decides(settings().tls_ca_certificate(authority.ca.clone()).connect_lazy(&url).unwrap()).await;
}

#[tokio::test]
async fn a_client_certificate_is_presented() {
    let authority = Authority::new();
    let (_server, url) = authority.serve(&[]);
    let settings = settings()
        .tls_ca_certificate(authority.ca.clone())
        .tls_client_certificate(authority.certificate.clone(), authority.key.clone());
    let printed = format!("{settings:?}");
    assert!(!printed.contains("PRIVATE") && !printed.contains("45, 45, 45"), "{printed}");
    decides(settings.connect(&url).await.unwrap()).await;
}

#[tokio::test]
async fn each_failed_handshake_names_its_remedy() {
    let authority = Authority::new();
    let (_optional, url) = authority.serve(OPTIONAL);
    let (required, strict_url) = authority.serve(&[]);
    let elsewhere = Authority::for_hosts(&["redis.internal"]);
    let (_elsewhere, elsewhere_url) = elsewhere.serve(OPTIONAL);
    let stranger = Authority::new();
    let with = |authority: &Authority| settings().tls_ca_certificate(authority.ca.clone());
    let plain_port_with_tls = required.url().replace("redis://", "rediss://");
    let tls_port_without_tls = url.replace("rediss://", "redis://");
    let with_other = with(&authority).tls_client_certificate(&*stranger.certificate, &*stranger.key);
    let rows: [(&str, RedisStoreBuilder, &str, &str); 7] = [
        ("no CA", settings(), &url, "tls_ca_certificate"),
        ("another CA", with(&stranger), &url, "tls_ca_certificate"),
        ("another host", with(&elsewhere), &elsewhere_url, "use a host that the certificate names"),
        ("no client certificate", with(&authority), &strict_url, "tls_client_certificate"),
        ("a client certificate of another CA", with_other, &strict_url, "client certificate"),
        ("a server without TLS", with(&authority), &plain_port_with_tls, "write redis://"),
        ("a server with TLS", settings(), &tls_port_without_tls, "write rediss://"),
    ];
    // All at the same time, because some wait for a timeout.
    join_all(rows.map(async |(name, settings, url, remedy)| {
        let settings = settings.deadline(Duration::from_millis(500));
        let error = settings.clone().connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreUnreachable, "{name}: {error}");
        assert!(error.to_string().contains(remedy), "{name}: {error}");
        // A service that connects on first use must see the same cause.
        let policy = Policy::new("p", Quota::per_hour(1));
        let limiter = Limiter::new(settings.connect_lazy(url).unwrap());
        let mut seen = String::new();
        let names_it = eventually(async || {
            let decision = limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
            seen = decision.failure().unwrap().to_string();
            seen.contains(remedy)
        });
        let names_it = names_it.await;
        assert!(names_it, "lazy, {name}: {seen}");
    }))
    .await;
}

#[tokio::test]
async fn invalid_certificates_are_errors_when_the_store_is_made() {
    let (authority, other) = (Authority::new(), Authority::new());
    let url = "rediss://127.0.0.1:1";
    let (certificate, key) = (&authority.certificate, &authority.key);
    let client = |certificate: &str, key: &str| settings().tls_client_certificate(certificate, key);
    let trusting = settings().tls_ca_certificate(authority.ca.clone());
    let rows = [
        ("no PEM", settings().tls_ca_certificate("hunter2"), url, "the CA certificate"),
        ("a key as CA", settings().tls_ca_certificate(other.key.clone()), url, "the CA certificate"),
        ("no client certificate", client("hunter2", key), url, "the client certificate for Redis is invalid"),
        ("no key in the PEM", client(certificate, "hunter2"), url, "the private key"),
        ("the key of another", client(certificate, &other.key), url, "must belong to the certificate"),
        ("certificates without TLS", trusting, "redis://127.0.0.1:1", "write rediss://"),
        ("insecure", settings(), "rediss://127.0.0.1:1/#insecure", "tls_ca_certificate"),
    ];
    for (name, settings, url, message) in rows {
        let error = settings.connect_lazy(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{name}: {error}");
        assert!(error.to_string().contains(message), "{name}: {error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{name}: {error:?}");
    }
}

#[tokio::test]
async fn both_protocols_and_a_password_work_over_tls() {
    let authority = Authority::new();
    let (server, url) = authority.serve(&["--tls-auth-clients", "no", "--requirepass", "p@ss/w#rd"]);
    for protocol in ["resp2", "resp3"] {
        let url = format!("{}/0?protocol={protocol}", url.replace("://", "://:p%40ss%2Fw%23rd@"));
        let prefix = protocol;
        let settings = settings().prefix(prefix).tls_ca_certificate(authority.ca.clone());
        decides(settings.connect(&url).await.unwrap()).await;
    }
    drop::<RedisServer>(server);
}

#[tokio::test]
async fn a_cluster_is_reached_over_tls() {
    let authority = Authority::new();
    let (arguments, url) = authority.arguments();
    // Otherwise the node names its other port, to clients with TLS too.
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(["--tls-cluster", "yes"]).collect();
    let _cluster = RedisCluster::one_node(&arguments);
    let settings = settings()
        .tls_ca_certificate(authority.ca.clone())
        .tls_client_certificate(authority.certificate.clone(), authority.key.clone());
    decides(settings.connect(Servers::cluster([&url])).await.unwrap()).await;
}

#[tokio::test]
async fn the_primary_of_sentinels_is_reached_over_tls() {
    let authority = Authority::new();
    let group = SentinelGroup::over_tls(&authority);
    let settings = settings()
        .tls_ca_certificate(authority.ca.clone())
        .tls_client_certificate(authority.certificate.clone(), authority.key.clone());
    let store = settings.clone().connect(Servers::sentinel(group.urls(), PRIMARY)).await.unwrap();
    decides(store.clone()).await;
    // All its connections are on the port with TLS.
    let clients: String = group.servers[0].command(&["CLIENT", "LIST", "TYPE", "normal"]);
    let plain_port = format!(" laddr=127.0.0.1:{} ", group.servers[0].port());
    let ours: Vec<_> = clients.lines().filter(|line| line.contains("name=tower-ratelimit")).collect();
    assert!(!ours.is_empty() && ours.iter().all(|line| !line.contains(&plain_port)), "{clients}");
    // The authority is missing.
    let error = self::settings().connect(Servers::sentinel(group.urls(), PRIMARY)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreUnreachable, "{error}");
    assert!(error.to_string().contains("tls_ca_certificate"), "{error}");
}

#[tokio::test]
async fn the_store_installs_a_crypto_provider_before_it_connects() {
    let _store = settings().connect_lazy("rediss://127.0.0.1:1").unwrap();
    assert!(tokio_rustls::rustls::crypto::CryptoProvider::get_default().is_some());
}

/// Runs the test `name` of this file again in a process whose system has these certificates. Returns whether this is that
/// process.
fn with_system_certificates(name: &str, file: &Path) -> bool {
    const INNER: &str = "SYSTEM_CERTIFICATES_OF_A_TEST";
    if std::env::var_os(INNER).is_some() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(program);
    command.args(["--exact", &format!("tls::{name}"), "--nocapture"]).env_remove("SSL_CERT_DIR");
    let output = command.env("SSL_CERT_FILE", file).env(INNER, "yes").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    false
}

#[tokio::test]
async fn a_ca_certificate_is_enough_on_a_system_without_any() {
    if with_system_certificates("a_ca_certificate_is_enough_on_a_system_without_any", Path::new("/nowhere")) {
        let authority = Authority::new();
        let (server, url) = authority.serve(OPTIONAL);
        let settings = settings().tls_ca_certificate(authority.ca.clone());
        decides(settings.clone().connect(&url).await.unwrap()).await;
        drop::<RedisServer>(server);
        let group = SentinelGroup::over_tls(&authority);
        let settings = settings.tls_client_certificate(authority.certificate.clone(), authority.key.clone());
        decides(settings.connect(Servers::sentinel(group.urls(), PRIMARY)).await.unwrap()).await;
        // Without one, the error names the setting.
        let (_server, url) = authority.serve(OPTIONAL);
        let error = self::settings().connect(&url).await.unwrap_err();
        assert!(error.to_string().contains("tls_ca_certificate"), "{error}");
        assert!(!error.to_string().contains("that the server is running"), "{error}");
    }
}

#[tokio::test]
async fn the_certificates_of_the_system_are_read_once() {
    let file = std::env::temp_dir().join(format!("tower-ratelimit-roots-{}.pem", std::process::id()));
    if with_system_certificates("the_certificates_of_the_system_are_read_once", &file) {
        let file = std::env::var_os("SSL_CERT_FILE").unwrap();
        let authority = Authority::new();
        std::fs::write(&file, &authority.ca).unwrap();
        let (server, url) = authority.serve(OPTIONAL);
        let store = settings().connect(&url).await.unwrap();
        std::fs::remove_file(&file).unwrap();
        let killed: usize = server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        assert!(killed > 0);
        // Until the client receives the close.
        sleep(Duration::from_millis(50)).await;
        decides(store).await;
    }
}

/// In an outage, attempts are few, regardless of the traffic and the number of broken connections.
#[tokio::test(flavor = "multi_thread")]
async fn attempts_to_connect_are_few_while_they_fail() {
    let authority = Authority::new();
    let (server, tls_url) = authority.serve(OPTIONAL);
    for (scheme, url) in [("redis", server.url()), ("rediss", tls_url)] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let settings = settings().deadline(Duration::from_millis(50));
        let settings =
            if scheme == "redis" { settings } else { settings.tls_ca_certificate(authority.ca.clone()) };
        let limiter = Limiter::new(settings.connect_lazy(format!("{scheme}://{address}")).unwrap());
        let mut traffic = JoinSet::new();
        for task in 0..64 {
            let limiter = limiter.clone();
            traffic.spawn(async move {
                let (policy, key) = (Policy::new("p", Quota::per_hour(1)), Key::new(task.to_string()));
                loop {
                    limiter.peek(&policy, &key, 1).await.unwrap();
                    sleep(Duration::from_millis(5)).await;
                }
            });
        }
        // Forwards connections for a second, then closes all.
        let (started, mut forwarding, mut attempts) = (Instant::now(), JoinSet::new(), 0);
        while started.elapsed() < Duration::from_secs(4) {
            let is_up = started.elapsed() < Duration::from_secs(1);
            if !is_up {
                forwarding.abort_all();
            }
            let Ok(Ok((mut client, _))) = timeout(Duration::from_millis(50), listener.accept()).await else {
                continue;
            };
            if is_up {
                let port = url.rsplit(':').next().unwrap().split('/').next().unwrap().parse().unwrap();
                let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                forwarding.spawn(async move { copy_bidirectional(&mut client, &mut server).await });
            } else {
                attempts += 1;
            }
        }
        eprintln!("{scheme}: {attempts} attempts, {} connections before", forwarding.len());
        // Those before the first failure, one after each pause, and as many again because two may be under way.
        let most = 8 + 2 * (4 + 3_000 / 250);
        assert!((4..=most).contains(&attempts), "{scheme}: {attempts}");
    }
}
