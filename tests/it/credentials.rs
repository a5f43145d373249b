//! Credentials that rotate: a store logs in with what a provider returns, and again before they end.

use std::{
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime},
};

use support::{
    RedisServer, day, eventually, fake_server, settings,
    users::{Users, add_user},
};
use tower_ratelimit::{
    Answer, Decision, Error, ErrorKind, FailureMode, Key, Limiter, Policy, RedisStore,
    store::{Credentials, CredentialsProvider},
};

async fn decide(limiter: &Limiter, policy: &Policy) -> Decision {
    limiter.check(policy, &Key::new("all"), 1).await.unwrap()
}

fn plan() -> Policy {
    day("plan", 1_000_000_000).failure_mode(FailureMode::Local { instances: 1 })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_decision_is_without_redis_while_credentials_rotate_under_load() {
    let (server, users) = ([RedisServer::start()], Users::default());
    users.rotate(&server);
    let store = settings().credentials(users.clone()).connect(server[0].url()).await.unwrap();
    users.assert_no_decision_without_redis(&server, &Limiter::new(store)).await;
}

#[tokio::test]
async fn passwords_that_change_at_no_announced_time_are_found_out() {
    let server = RedisServer::start();
    add_user(&server, "app", "one");
    let (password, calls) = (Arc::new(Mutex::new("one")), Arc::new(AtomicU64::new(0)));
    let provider = {
        let (password, calls) = (password.clone(), calls.clone());
        move || {
            calls.fetch_add(1, Relaxed);
            let password = *password.lock().unwrap();
            async move { Ok(Credentials::new("app", password).refresh_after(Duration::from_millis(100))) }
        }
    };
    let limiter = Limiter::new(settings().credentials(provider).connect(&server.url()).await.unwrap());
    let policy = plan();
    assert!(decide(&limiter, &policy).await.failure().is_none());
    for (new, old) in [("two", "one"), ("three", "two")] {
        let () = server.command(&["ACL", "SETUSER", "app", &format!(">{new}"), &format!("<{old}")]);
        *password.lock().unwrap() = new;
        let before = calls.load(Relaxed);
        assert!(eventually(async || calls.load(Relaxed) > before + 1).await);
        // Each connection has to be opened again, with the new password.
        let () = server.command(&["CLIENT", "KILL", "USER", "app"]);
        let is_back = async || decide(&limiter, &policy).await.failure().is_none();
        assert!(eventually(is_back).await);
        assert!(decide(&limiter, &policy).await.failure().is_none());
    }
}

/// A provider of the user `app` that counts its calls, whose password a test changes.
#[derive(Clone, Default)]
struct Vault {
    password: Arc<Mutex<&'static str>>,
    calls: Arc<AtomicU64>,
}

impl CredentialsProvider for Vault {
    fn credentials(&self) -> Answer<Credentials> {
        self.calls.fetch_add(1, Relaxed);
        Answer::ready(Ok(Credentials::new("app", *self.password.lock().unwrap())))
    }
}

#[tokio::test]
async fn the_provider_is_called_again_for_credentials_without_an_end_that_a_server_does_not_accept() {
    let (server, vault) = (RedisServer::start(), Vault::default());
    add_user(&server, "app", "one");
    *vault.password.lock().unwrap() = "one";
    let limiter = Limiter::new(settings().credentials(vault.clone()).connect(&server.url()).await.unwrap());
    let policy = plan();
    let is_decided = async || decide(&limiter, &policy).await.failure().is_none();
    assert!(is_decided().await);
    for (new, old) in [("two", "one"), ("three", "two")] {
        *vault.password.lock().unwrap() = new;
        let () = server.command(&["ACL", "SETUSER", "app", &format!(">{new}"), &format!("<{old}")]);
        let () = server.command(&["CLIENT", "KILL", "USER", "app"]);
        assert!(eventually(is_decided).await, "{new}");
    }
}

#[tokio::test]
async fn a_provider_whose_credentials_are_never_accepted_is_called_once_a_second_at_most() {
    let (server, vault) = (RedisServer::start(), Vault::default());
    add_user(&server, "app", "one");
    let begun = Instant::now();
    let store = RedisStore::builder().credentials(vault.clone()).connect_lazy(server.url()).unwrap();
    let limiter = Limiter::new(store);
    let text = Mutex::new(String::new());
    let is_called_often = async || {
        if let Some(failure) = decide(&limiter, &plan()).await.failure() {
            *text.lock().unwrap() = failure.to_string();
        }
        vault.calls.load(Relaxed) >= 3
    };
    assert!(eventually(is_called_often).await);
    // They are begun a second apart, and the first one with the store.
    assert!(vault.calls.load(Relaxed) <= 1 + begun.elapsed().as_secs(), "{:?}", begun.elapsed());
    let text = text.into_inner().unwrap();
    assert!(
        text.contains("does not accept the user and the password that the credentials provider returned"),
        "{text}"
    );
    assert!(!text.contains("URL"), "{text}");
    let error = settings().credentials(vault.clone()).connect(&server.url()).await.unwrap_err();
    let text = error.to_string();
    assert!(text.ends_with("the password that the credentials provider returned"), "{text}");
    assert_eq!(error.kind(), ErrorKind::StoreUnreachable);
}

/// A server that states NOAUTH although the connection has logged in, as a proxy may after a failover.
#[tokio::test]
async fn a_server_that_asks_for_a_password_gets_the_newest_one() {
    let (vault, requires) = (Vault::default(), Arc::new(AtomicBool::new(false)));
    let url = {
        let (vault, requires) = (vault.clone(), requires.clone());
        fake_server::start(move |words| {
            let text = words.join(" ");
            match &*words[0].to_ascii_uppercase() {
                "HELLO" if text.contains(*vault.password.lock().unwrap()) => "%0\r\n".into(),
                "AUTH" if text.contains(*vault.password.lock().unwrap()) => "+OK\r\n".into(),
                "HELLO" | "AUTH" => "-NOAUTH Authentication required.\r\n".into(),
                "PING" => "+PONG\r\n".into(),
                "EVALSHA" | "EVAL" if requires.swap(false, Relaxed) => {
                    "-NOAUTH Authentication required.\r\n".into()
                }
                "EVALSHA" | "EVAL" => "-LOADING Redis is loading the dataset in memory\r\n".into(),
                _ => "+OK\r\n".into(),
            }
        })
        .await
    };
    *vault.password.lock().unwrap() = "one";
    let limiter = Limiter::new(settings().credentials(vault.clone()).connect_lazy(&url).unwrap());
    let is_let_in = async || {
        let decision = decide(&limiter, &plan()).await;
        decision.failure().is_some_and(|failure| failure.to_string().contains("LOADING"))
    };
    assert!(eventually(is_let_in).await);
    *vault.password.lock().unwrap() = "two";
    requires.store(true, Relaxed);
    assert!(!is_let_in().await);
    let has_called = async || is_let_in().await && vault.calls.load(Relaxed) > 1;
    assert!(eventually(has_called).await);
}

#[tokio::test]
async fn a_provider_that_panics_has_failed() {
    let server = RedisServer::start();
    add_user(&server, "app", "secret");
    for panics in [1, u64::MAX] {
        let left = Arc::new(AtomicU64::new(panics));
        let provider = move || {
            let panics = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
            async move {
                assert!(!panics, "a provider panics");
                Ok(Credentials::new("app", "secret"))
            }
        };
        let store = RedisStore::builder().credentials(provider).connect_lazy(server.url()).unwrap();
        let (limiter, policy) = (Limiter::new(store), plan());
        let texts = Mutex::new(Vec::new());
        let is_decided = async || {
            let decision = decide(&limiter, &policy).await;
            let text = decision.failure().map(ToString::to_string);
            texts.lock().unwrap().extend(text.clone());
            let names_the_panic =
                text.as_ref().is_some_and(|text| text.contains("provider failed: it panicked"));
            if panics == 1 { text.is_none() } else { names_the_panic }
        };
        assert!(eventually(is_decided).await, "{:?}", texts.lock().unwrap().last());
        let texts = texts.into_inner().unwrap();
        assert!(!texts.iter().any(|text| text.contains("provider does not answer")), "{texts:?}");
    }
}

#[tokio::test]
async fn a_provider_that_stops_is_an_outage_with_its_cause_once_the_credentials_have_ended() {
    for (how, expected) in [
        ("fails", "the credentials provider failed: the token service is down"),
        ("hangs", "the credentials provider does not answer"),
    ] {
        let server = RedisServer::start();
        add_user(&server, "app", "secret");
        let stops = Arc::new(AtomicBool::new(false));
        let provider = {
            let stops = stops.clone();
            move || {
                let stops = stops.load(Relaxed);
                async move {
                    match how {
                        _ if !stops => {
                            let end = SystemTime::now() + Duration::from_millis(500);
                            Ok(Credentials::new("app", "secret").valid_until(end))
                        }
                        "fails" => Err(Error::new(ErrorKind::StoreFailed, "the token service is down")),
                        _ => pending().await,
                    }
                }
            }
        };
        let store = RedisStore::builder().credentials(provider).connect(&server.url()).await.unwrap();
        let (limiter, policy) = (Limiter::new(store.clone()), plan());
        assert!(eventually(async || decide(&limiter, &policy).await.failure().is_none()).await);
        stops.store(true, Relaxed);
        // The cause is known once a connection could not be opened.
        let seen = Mutex::new(Vec::new());
        let fails = async || {
            let decision = decide(&limiter, &policy).await;
            assert!(decision.is_admitted());
            let text = decision.failure().map(ToString::to_string).unwrap_or_default();
            let has_cause = text.contains(expected);
            seen.lock().unwrap().push(text);
            has_cause
        };
        assert!(eventually(fails).await, "{how}: {:?}", seen.lock().unwrap().last());
        let probed = store.probe().await;
        let problem = match &probed {
            Ok(report) => report.findings().collect::<Vec<_>>().join("; "),
            Err(error) => error.to_string(),
        };
        assert!(problem.contains(expected), "{how}: {problem}");
        stops.store(false, Relaxed);
        let is_back = async || decide(&limiter, &policy).await.failure().is_none();
        assert!(eventually(is_back).await, "{how}");
    }
}

#[tokio::test]
async fn connecting_reports_what_is_wrong_with_the_credentials() {
    let server = RedisServer::start();
    add_user(&server, "app", "secret");
    let ended = SystemTime::now() - Duration::from_secs(1);
    let rows = [
        (
            "a wrong password",
            Credentials::new("app", "wrong"),
            "the server does not accept the user and the password that the credentials provider returned",
        ),
        (
            "ended",
            Credentials::new("app", "secret").valid_until(ended),
            "credentials that have ended; check the clocks",
        ),
    ];
    for (name, credentials, expected) in rows {
        let provider = move || {
            let credentials = credentials.clone();
            async move { Ok(credentials) }
        };
        let error = settings().credentials(provider).connect(&server.url()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreUnreachable, "{name}");
        assert!(
            error.to_string().contains(expected) && !error.to_string().contains("secret"),
            "{name}: {error}"
        );
    }
    let fine = || async { Ok(Credentials::new("", "secret")) };
    for url in ["redis://app:secret@127.0.0.1", "redis://:secret@127.0.0.1"] {
        let error = RedisStore::builder().credentials(fine).connect_lazy(url).unwrap_err();
        assert!(error.to_string().starts_with("the URL has a user or a password"), "{error}");
    }
    let text = format!("{:?}", Credentials::new("app", "a password"));
    assert!(text.contains("app") && !text.contains("a password"), "{text}");
}
