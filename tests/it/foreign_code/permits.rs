//! A permit that is dropped outside of a runtime is free for the next decision.

use std::time::Duration;

use support::{RedisServer, current_thread, settings};
use tokio::runtime::{Builder, Runtime};
use tower_ratelimit::{Decision, FailureMode, Key, Limiter, Policy};

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn a_permit_dropped_outside_of_a_runtime_is_free_for_the_next_decision() {
    let server = RedisServer::start();
    for pause in [Duration::ZERO, Duration::from_millis(400)] {
        for (name, build, is_kept) in [
            ("one thread", current_thread as fn() -> Runtime, true),
            ("a new one for each call", current_thread, false),
            ("several threads", multi_thread, true),
            ("several threads, new for each call", multi_thread, false),
        ] {
            let kept = build();
            let limiter = Limiter::new(kept.block_on(settings().connect(&server.url())).unwrap());
            let (policy, key) = (
                Policy::concurrency("jobs", 1).failure_mode(FailureMode::Closed),
                Key::new(format!("{name}, {pause:?}")),
            );
            let check = |limiter: &Limiter| -> Decision {
                let ask = limiter.check(&policy, &key, 1);
                if is_kept { kept.block_on(ask) } else { build().block_on(ask) }.unwrap()
            };
            for round in 0..5 {
                let held = check(&limiter);
                assert!(held.is_admitted(), "{name}, {pause:?}: round {round}");
                let second = check(&limiter);
                assert!(!second.is_admitted(), "{name}: {round}");
                drop(held);
                std::thread::sleep(pause);
            }
        }
    }
}
