//! A subscriber of the log may use what has written the line, and one that blocks delays only the decision of the line.

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use futures_util::FutureExt as _;
use support::{EachLine, RedisServer, day, ends, eventually, store};
use tokio::runtime::Builder;
use tower_ratelimit::{FailureMode, Key, Limiter, Policy, RedisStore};

/// The lines seen so far.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn add(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }

    fn has(&self, part: &str) -> bool {
        self.0.lock().unwrap().iter().any(|line| line.contains(part))
    }
}

fn local(name: &str) -> Policy {
    day(name, 1_000_000).failure_mode(FailureMode::Local { instances: 0 })
}

/// Waits for a decision that another thread makes.
fn decided_elsewhere(limiter: &Limiter, policy: &Policy) {
    let (limiter, policy) = (limiter.clone(), policy.clone());
    let decided = thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { limiter.check(&policy, &Key::new("a"), 1).await.unwrap() })
    });
    decided.join().unwrap();
}

#[test]
fn a_subscriber_may_ask_the_limiter_for_each_line_of_an_outage() {
    ends(|| {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let mut server = RedisServer::start();
            let limiter = Limiter::new(RedisStore::builder().connect(&server.url()).await.unwrap());
            let (seen, inner) = (Seen::default(), limiter.clone());
            let all = seen.clone();
            let _listening = support::listen_with(EachLine(move |line: &str| {
                all.add(line);
                // Polled once, because a subscriber cannot wait.
                let asked = inner.check(&local("other"), &Key::new("a"), 1).into_future().now_or_never();
                drop(asked);
            }));
            let (policy, key) = (local("p"), Key::new("a"));
            server.kill();
            let unavailable = eventually(async || {
                limiter.check(&policy, &key, 1).await.unwrap();
                seen.has("outage: Redis is unavailable")
            });
            assert!(unavailable.await, "{:?}", seen.0);
            server.restart();
            let over = eventually(async || {
                limiter.check(&policy, &key, 1).await.unwrap();
                seen.has("the outage of Redis is over")
            });
            assert!(over.await, "{:?}", seen.0);
        });
    });
}

#[test]
fn a_subscriber_may_ask_the_limiter_for_the_line_of_unknown_instances() {
    ends(|| {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let store = RedisStore::builder().deadline(Duration::from_millis(50));
            // Nothing listens on this port.
            let limiter = Limiter::new(store.connect_lazy("redis://127.0.0.1:1").unwrap());
            let (seen, inner) = (Seen::default(), limiter.clone());
            let all = seen.clone();
            let _listening = support::listen_with(EachLine(move |line: &str| {
                all.add(line);
                if line.contains("how many instances run") {
                    decided_elsewhere(&inner, &local("p"));
                }
            }));
            let asked = eventually(async || {
                limiter.check(&local("p"), &Key::new("a"), 1).await.unwrap();
                seen.has("how many instances run")
            });
            assert!(asked.await, "{:?}", seen.0);
        });
    });
}

#[test]
fn a_subscriber_may_ask_the_limiter_for_the_line_of_a_key_that_fails() {
    ends(|| {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let server = RedisServer::start();
            let limiter = Limiter::new(store(&server).await);
            let (policy, key) = (local("p"), Key::new("a"));
            limiter.check(&policy, &key, 1).await.unwrap();
            let names: Vec<String> = server.command(&["KEYS", "*p*"]);
            for name in &names {
                let () = server.command(&["DEL", name]);
                let _: u64 = server.command(&["LPUSH", name, "foreign"]);
            }
            let seen = Seen::default();
            let (all, inner, same) = (seen.clone(), limiter.clone(), policy.clone());
            let _listening = support::listen_with(EachLine(move |line: &str| {
                all.add(line);
                if line.contains("decisions on a key") {
                    decided_elsewhere(&inner, &same);
                }
            }));
            let failed = limiter.check(&policy, &key, 1).await.unwrap();
            assert!(failed.failure().is_some(), "{names:?}: {failed:?}");
            assert!(seen.has("decisions on a key"), "{:?}", seen.0);
        });
    });
}

/// The subscriber of one thread blocks on the line until decisions of other threads have ended.
#[test]
fn a_subscriber_that_blocks_on_the_line_of_an_outage_delays_no_other_thread() {
    ends(|| {
        let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
        let mut server = RedisServer::start();
        let main = runtime();
        let url = server.url();
        let limiter =
            main.block_on(async { Limiter::new(RedisStore::builder().connect(&url).await.unwrap()) });
        server.kill();
        let (reached, blocked) = mpsc::channel();
        let (open, gate) = mpsc::channel::<()>();
        let (inner, gate) = (limiter.clone(), Mutex::new(gate));
        let first = thread::spawn(move || {
            let _listening = support::listen_with(EachLine(move |line: &str| {
                if line.contains("outage: Redis is unavailable") {
                    reached.send(()).unwrap();
                    let _ = gate.lock().unwrap().recv();
                }
            }));
            runtime().block_on(async {
                // Ends with the line at the latest.
                for _ in 0..100 {
                    inner.check(&local("p"), &Key::new("a"), 1).await.unwrap();
                }
            });
        });
        blocked.recv().unwrap();
        let others: Vec<_> = (0..3)
            .map(|_| {
                let limiter = limiter.clone();
                thread::spawn(move || {
                    runtime().block_on(async {
                        let decision = limiter.check(&local("p"), &Key::new("b"), 1).await.unwrap();
                        assert!(decision.failure().is_some(), "{decision:?}");
                    });
                })
            })
            .collect();
        others.into_iter().for_each(|other| other.join().unwrap());
        open.send(()).unwrap();
        first.join().unwrap();
    });
}
