//! A permit that is dropped outside of a runtime is free for the next decision.

use std::{thread, time::Duration};

use support::{RedisServer, current_thread, settings};
use tokio::runtime::{Builder, Runtime};
use tower_ratelimit::{Decision, FailureMode, Key, Limiter, Policy};

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Drops permits on this thread, and decides after `pause`, on `kept` or each time on a new runtime.
fn drop_permits(server: &RedisServer, name: &str, build: fn() -> Runtime, is_kept: bool, pause: Duration) {
    let kept = build();
    let limiter = Limiter::new(kept.block_on(settings().connect(&server.url())).unwrap());
    let policy = Policy::concurrency("jobs", 1).failure_mode(FailureMode::Closed);
    let key = Key::new(format!("{name}, {pause:?}"));
    let check = || -> Decision {
        let ask = limiter.check(&policy, &key, 1);
        if is_kept { kept.block_on(ask) } else { build().block_on(ask) }.unwrap()
    };
    for round in 0..5 {
        let held = check();
        assert!(held.is_admitted(), "{name}, {pause:?}: round {round}");
        let second = check();
        assert!(!second.is_admitted(), "{name}: {round}");
        drop(held);
        thread::sleep(pause);
    }
}

#[test]
fn a_permit_dropped_outside_of_a_runtime_is_free_for_the_next_decision() {
    let server = &RedisServer::start();
    thread::scope(|scope| {
        for pause in [Duration::ZERO, Duration::from_millis(400)] {
            for (name, build, is_kept) in [
                ("one thread", current_thread as fn() -> Runtime, true),
                ("a new one for each call", current_thread, false),
                ("several threads", multi_thread, true),
                ("several threads, new for each call", multi_thread, false),
            ] {
                scope.spawn(move || drop_permits(server, name, build, is_kept, pause));
            }
        }
    });
}
