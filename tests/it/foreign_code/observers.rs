//! Functions that only look at what is decided change nothing, even if they panic or block.

use std::{
    convert::Infallible,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Barrier, Mutex, mpsc},
    thread,
    time::Duration,
};

use http::{Request, Response};
use support::{Lines, RedisServer, day, eventually, memory_and_redis, settings};
use tokio::runtime::Builder;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_ratelimit::{
    Decision, FailureMode, Key, Limiter, Policy, Quota, RateLimitLayer, Reservation, decision::DecisionSource,
};
use tracing::{
    Event, Metadata, Subscriber,
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt as _},
    registry::LookupSpan,
};

use super::{Calls, left};

fn plan(limit: u64) -> Policy {
    day("plan", limit).notify_at([50, 80, 100])
}

async fn statuses(layer: &RateLimitLayer, count: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..count {
        let service = layer.layer(service_fn(|_: Request<String>| async {
            Ok::<_, Infallible>(Response::new(String::new()))
        }));
        let Ok(response) = service.oneshot(Request::new(String::new())).await;
        statuses.push(response.status().as_u16());
    }
    statuses
}

#[tokio::test]
async fn on_decision_and_on_threshold_change_no_answer_and_are_logged_once() {
    let server = RedisServer::start();
    for (name, limiter) in memory_and_redis(&server).await {
        let (lines, _listening) = Lines::listen();
        let (seen, reached) = (Calls::default(), Calls::default());
        let (on_decision, on_threshold) = (seen.clone(), reached.clone());
        limiter.on_threshold(move |_| on_threshold.panic_up_to(usize::MAX));
        let after = Calls::default();
        let also = after.clone();
        limiter.on_threshold(move |_| also.panic_up_to(0));
        let layer = RateLimitLayer::new(limiter.clone(), plan(4), Key::new("all"))
            .on_decision(move |_| on_decision.panic_up_to(usize::MAX));
        assert_eq!(statuses(&layer, 6).await, [200, 200, 200, 200, 429, 429], "{name}");
        assert_eq!([seen.made(), reached.made(), after.made()], [6, 3, 3], "{name}: each is called");
        assert_eq!(lines.with("`on_decision` panicked"), 1, "{name}");
        assert_eq!(lines.with("`on_threshold` panicked"), 1, "{name}");
    }
}

/// A subscriber whose function with this name panics.
struct Panicking(&'static str, Calls);

impl Panicking {
    fn call(&self, function: &str) {
        if function == self.0 {
            self.1.panic_up_to(usize::MAX);
        }
    }
}

impl Subscriber for Panicking {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && self.0 == "event" || metadata.is_span() && self.0 != "event"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        self.call("new_span");
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {
        self.call("record");
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {
        self.call("record_follows_from");
    }
    fn event(&self, _: &Event<'_>) {
        self.call("event");
    }
    fn enter(&self, _: &Id) {
        self.call("enter");
    }
    fn exit(&self, _: &Id) {
        self.call("exit");
    }
    fn try_close(&self, _: Id) -> bool {
        self.call("try_close");
        false
    }
}

#[tokio::test]
async fn a_subscriber_of_the_log_and_of_spans_changes_no_answer() {
    let server = RedisServer::start();
    for function in ["event", "new_span", "record", "enter", "exit", "try_close"] {
        for (name, limiter) in memory_and_redis(&server).await {
            let calls = Calls::default();
            let _listening = support::listen_with(Panicking(function, calls.clone()));
            let policy = day(function, 2).notify_at([50]);
            let layer = RateLimitLayer::new(limiter, policy, Key::new("all"));
            assert_eq!(statuses(&layer, 3).await, [200, 200, 429], "{name}: {function}");
            assert!(calls.made() >= 3, "{name}, {function}: {}", calls.made());
        }
    }
}

/// The same functions, only for the spans of calls to Redis.
impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Panicking {
    fn on_new_span(&self, _: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if is_call(id, &context) {
            self.call("new_span");
        }
    }
    fn on_record(&self, id: &Id, _: &Record<'_>, context: Context<'_, S>) {
        if is_call(id, &context) {
            self.call("record");
        }
    }
    fn on_close(&self, id: Id, context: Context<'_, S>) {
        if is_call(&id, &context) {
            self.call("try_close");
        }
    }
}

fn is_call<S: Subscriber + for<'a> LookupSpan<'a>>(id: &Id, context: &Context<'_, S>) -> bool {
    context.span(id).is_some_and(|span| span.name() == "ratelimit.call")
}

#[tokio::test]
async fn a_subscriber_of_the_spans_of_calls_changes_no_answer() {
    let (_server, limiter) = support::on_redis().await;
    for function in ["new_span", "record", "try_close"] {
        let calls = Calls::default();
        let panicking = Panicking(function, calls.clone());
        let _listening = support::listen_with(tracing_subscriber::registry().with(panicking));
        let layer = RateLimitLayer::new(limiter.clone(), day(function, 2), Key::new("all"));
        assert_eq!(statuses(&layer, 3).await, [200, 200, 429], "{function}");
        // The third request is denied without a call, or with one.
        assert!(calls.made() >= 2, "{function}: {}", calls.made());
    }
}

/// A hook that panics in the background work of one client loses no settlement of another one.
#[tokio::test]
async fn a_hook_that_panics_in_a_settlement_loses_no_other_one() {
    let server = RedisServer::start();
    for (name, limiter) in memory_and_redis(&server).await {
        let panics = Calls::default();
        let hook = panics.clone();
        limiter.on_threshold(move |_| hook.panic_up_to(1));
        let policy = plan(1_000);
        let keys: Vec<Key> = (0..20).map(|number| Key::new(number.to_string())).collect();
        let mut streams = Vec::new();
        for key in &keys {
            let decision = limiter.check(&policy.clone().notify_at([]), key, 100).await.unwrap();
            streams.push(Reservation::new(&limiter, &decision));
        }
        let hot = limiter.check(&policy, &Key::new("hot"), 100).await.unwrap();
        let hot = Reservation::new(&limiter, &hot);
        for stream in &streams {
            drop(stream.extend_to(400));
        }
        drop(hot.extend_to(600));
        for stream in &streams {
            stream.record(10);
        }
        drop((streams, hot));
        limiter.drain(Duration::from_secs(60)).await.unwrap();
        for key in &keys {
            assert_eq!(left(&limiter, &policy, key).await.unwrap(), 990, "{name}");
        }
        assert!(panics.made() > 0, "{name}");
    }
}

/// A settlement in a destructor while a handler unwinds.
#[tokio::test]
async fn a_hook_that_panics_while_a_handler_unwinds_does_not_abort_the_process() {
    let server = RedisServer::start();
    for (name, limiter) in memory_and_redis(&server).await {
        let panics = Calls::default();
        let hook = panics.clone();
        limiter.on_threshold(move |_| hook.panic_up_to(usize::MAX));
        let (policy, key) = (plan(1_000), Key::new("all"));
        let decision = limiter.check(&policy, &key, 100).await.unwrap();
        let handler = catch_unwind(AssertUnwindSafe(|| {
            let reservation = Reservation::new(&limiter, &decision);
            reservation.record(600);
            panic!("the handler panics on purpose");
        }));
        assert!(handler.is_err());
        limiter.drain(Duration::from_secs(60)).await.unwrap();
        assert_eq!(left(&limiter, &policy, &key).await.unwrap(), 400, "{name}");
        assert_eq!(panics.made(), 1, "{name}");
    }
}

/// The hook of a key with leased units, and the decisions of other keys.
#[test]
fn a_hook_of_leased_units_that_panics_or_blocks_delays_no_decision() {
    let server = RedisServer::start();
    for is_blocking in [false, true] {
        let runtime = Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
        runtime.block_on(async {
            let store = settings().connect(&server.url()).await.unwrap();
            let policy =
                Policy::new(if is_blocking { "blocks" } else { "panics" }, Quota::per_day(1_000_000))
                    .max_lease(10_000)
                    .notify_at(1..=100)
                    .failure_mode(FailureMode::Closed);
            let limiter = Limiter::new(store);
            let (opened, gate) = mpsc::channel::<()>();
            let (gate, calls) = (Mutex::new(gate), Calls::default());
            let (hook, requests) = (calls.clone(), thread::current().id());
            limiter.on_threshold(move |_| {
                // Before units are leased, a decision of the store reaches a share: its hook delays it, and only it.
                if thread::current().id() == requests {
                    return;
                }
                if is_blocking {
                    hook.panic_up_to(0);
                    let _ = gate.lock().unwrap().recv();
                } else {
                    hook.panic_up_to(usize::MAX);
                }
            });
            // Only the hot key has units on lease.
            let other = day("other", 1_000_000);
            let decide = async |policy: &Policy, key: &str| {
                let decision: Decision = limiter.check(policy, &Key::new(key), 500).await.unwrap();
                assert!(decision.failure().is_none() && decision.is_admitted(), "{decision:?}");
                decision.source()
            };
            let mut sources = Vec::new();
            while sources.len() < 3_000 && (calls.made() == 0 || !sources.contains(&DecisionSource::Lease)) {
                sources.push(decide(&policy, "hot").await);
                sources.push(decide(&other, "cold").await);
            }
            assert!(sources.contains(&DecisionSource::Lease), "{sources:?}");
            assert!(eventually(async || calls.made() > 0).await);
            // While the hook of a lease blocks.
            for _ in 0..60 {
                decide(&policy, "hot").await;
                decide(&other, "cold").await;
            }
            drop(opened);
        });
    }
}

/// A hook may call the limiter, and adds no lock to it.
#[test]
fn a_hook_that_waits_for_another_decision_does_not_wait_forever() {
    let server = RedisServer::start();
    let runtime = Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        for (name, limiter) in memory_and_redis(&server).await {
            let both = Arc::new(Barrier::new(2));
            let hook = both.clone();
            limiter.on_threshold(move |_| {
                hook.wait();
            });
            let (policy, other) = (plan(2), limiter.clone());
            let first = tokio::spawn(async move { limiter.check(&policy, &Key::new("a"), 1).await.unwrap() });
            // The hook of the first decision ends once this one is made.
            other.check(&day("other", 9), &Key::new("a"), 1).await.unwrap();
            tokio::task::spawn_blocking(move || both.wait()).await.unwrap();
            assert!(first.await.unwrap().is_admitted(), "{name}");
        }
    });
}
