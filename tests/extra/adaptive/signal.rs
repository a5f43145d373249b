//! Closures as signals. Time is virtual.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use support::{
    Directory, file_of,
    inner::{ask, get},
};
use tokio::{sync::watch, time::sleep};
use tower_ratelimit::{
    Charge, Criticality, ErrorKind, Key, Limiter, MemoryStore, Policy, PolicySource, Quota, RateLimitLayer,
    algorithm::{FixedWindow, TokenBucket},
    policy::Headroom,
    store::ManualClock,
};
use tower_ratelimit_extra::adaptive::{Adaptive, Aimd, Gradient, LoadMeter};
use tower_ratelimit_operate::live::LivePolicies;

/// A value that a test sets, and the closure that reads it.
#[derive(Clone)]
struct Dial(Arc<AtomicU64>);

impl Dial {
    fn new(value: f64) -> Self {
        Self(Arc::new(AtomicU64::new(value.to_bits())))
    }

    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Relaxed);
    }

    fn signal(&self) -> impl FnMut() -> f64 + Send + use<> {
        let dial = self.clone();
        move || f64::from_bits(dial.0.load(Relaxed))
    }
}

fn api() -> Policy {
    Policy::new("api", Quota::per_hour(100))
}

/// Long enough for every step.
async fn followed() {
    sleep(Duration::from_secs(20)).await;
}

#[tokio::test(start_paused = true)]
async fn the_quota_follows_between_floor_and_full_and_keeps_the_counts() {
    let dial = Dial::new(1.0);
    let adaptive = Adaptive::new(api()).floor(0.02).follow(dial.signal()).start().unwrap();
    let store = MemoryStore::with_clock(ManualClock::new());
    let layer = RateLimitLayer::new(store, &adaptive, Key::new("all"));
    let remaining = async || {
        let response = ask(&layer, get()).await;
        (response.status().as_u16(), response.headers()["ratelimit"].to_str().unwrap().to_owned())
    };
    assert_eq!(remaining().await, (200, "\"api\";r=99;t=3564".to_owned()));
    for (value, share, limit) in [
        (0.5, 0.5, 50),
        (0.0, 0.02, 2),
        (-3.0, 0.02, 2),
        (f64::NEG_INFINITY, 0.02, 2),
        (0.25, 0.25, 25),
        (7.0, 1.0, 100),
        (0.75, 0.75, 75),
    ] {
        dial.set(value);
        followed().await;
        assert_eq!((adaptive.share(), adaptive.policy().quota().limit()), (share, limit), "{value}");
        assert_eq!(adaptive.policy().name(), "api");
    }
    // Without a value the share stays for five seconds, and then is full.
    dial.set(f64::NAN);
    sleep(Duration::from_secs(4)).await;
    assert_eq!(adaptive.share(), 0.75);
    followed().await;
    assert_eq!((adaptive.share(), adaptive.policy()), (1.0, api()));
    // One of 100 was used, and two by now.
    assert_eq!(remaining().await.1, "\"api\";r=98;t=3528");
    dial.set(0.02);
    followed().await;
    assert_eq!(remaining().await.0, 429);
}

#[tokio::test(start_paused = true)]
async fn bursts_and_windows_are_scaled_and_keep_their_options() {
    let rows = [
        (Policy::new("burst", Quota::per_second(10).burst(100)), "1/s burst 10"),
        (Policy::new("window", Quota::per_hour(10)).algorithm(FixedWindow::aligned()), "1/h"),
        (Policy::concurrency("in-flight", 50), "5/30s"),
        (Policy::new("debt", Quota::per_hour(10)).max_debt(500).max_lease(4), "1/h"),
        // At least one unit, and rounded up.
        (Policy::new("one", Quota::per_hour(1).burst(3)), "1/h burst 1"),
        (Policy::new("most", Quota::per_second(1_000_000_000_000)), "100000000000/s"),
    ];
    for (policy, quota) in rows {
        let adaptive = Adaptive::new(policy.clone()).floor(0.1).follow(|| 0.0).start().unwrap();
        followed().await;
        let scaled = adaptive.policy();
        assert_eq!(scaled.quota().to_string(), quota, "{policy:?}");
        let rest = |policy: &Policy| format!("{policy:?}").replacen(&policy.quota().to_string(), "", 1);
        assert_eq!(rest(&scaled), rest(&policy));
    }
}

#[tokio::test(start_paused = true)]
async fn the_smallest_of_several_signals_applies() {
    let (one, other) = (Dial::new(0.5), Dial::new(0.25));
    let adaptive = Adaptive::new(api()).follow(one.signal()).follow(other.signal()).start().unwrap();
    followed().await;
    assert_eq!(adaptive.share(), 0.25);
    other.set(1.0);
    followed().await;
    assert_eq!(adaptive.share(), 0.5);
}

#[tokio::test(start_paused = true)]
async fn a_signal_that_panics_is_called_again_and_the_quota_is_full_until_it_returns() {
    let dial = Dial::new(0.5);
    let mut read = dial.signal();
    let signal = move || {
        let value = read();
        assert!(value >= 0.0, "the sensor does not answer");
        value
    };
    let adaptive = Adaptive::new(api()).every(Duration::from_millis(10)).follow(signal).start().unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(adaptive.share(), 0.5);
    dial.set(-1.0);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(adaptive.share(), 1.0);
    dial.set(0.5);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(adaptive.share(), 0.5);
}

#[tokio::test(start_paused = true)]
async fn the_task_ends_with_the_last_handle_source_and_layer() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let start = || Adaptive::new(api()).every(Duration::from_secs(3_600)).follow(|| 0.5).start().unwrap();
    let keep: [fn(tower_ratelimit_extra::adaptive::AdaptivePolicy) -> Box<dyn std::any::Any>; 3] = [
        |adaptive| Box::new(adaptive),
        |adaptive| Box::new(PolicySource::from(adaptive)),
        |adaptive| Box::new(RateLimitLayer::new(MemoryStore::new(), &adaptive, Key::new("all"))),
    ];
    for (row, keep) in keep.into_iter().enumerate() {
        let kept = keep(start());
        sleep(Duration::from_secs(10_000)).await;
        assert_eq!(tasks(), 1, "row {row}");
        drop(kept);
        sleep(Duration::from_millis(1)).await;
        assert_eq!(tasks(), 0, "row {row}");
    }
}

#[tokio::test]
async fn invalid_settings_are_errors_that_say_what_is_allowed() {
    let meter = LoadMeter::new();
    let new = || Adaptive::new(api()).follow(|| 1.0);
    let second = Duration::from_secs(1);
    let late = Aimd::new(&meter, second).late_up_to(-0.1);
    let failed = Gradient::new(&meter).failed_up_to(2.0);
    let rows = [
        ("no signal", Adaptive::new(api()), "needs a signal: call `follow`"),
        ("no floor", new().floor(0.0), "above 0 and at most 1"),
        ("a floor above the quota", new().floor(1.1), "above 0 and at most 1"),
        ("no number", new().floor(f64::NAN), "above 0 and at most 1"),
        ("too often", new().every(Duration::from_millis(9)), "from 10 milliseconds to an hour"),
        ("too seldom", new().every(Duration::MAX), "from 10 milliseconds to an hour"),
        ("no target", new().follow(Aimd::new(&meter, Duration::ZERO)), "must be above zero"),
        ("late", new().follow(late), "`late_up_to` must be from 0 to 1"),
        ("failed", new().follow(failed), "`failed_up_to` must be from 0 to 1"),
        ("below the usual", new().follow(Gradient::new(&meter).tolerance(0.9)), "must be from 1 to 1000"),
        ("no tolerance", new().follow(Gradient::new(&meter).tolerance(f64::NAN)), "must be from 1 to 1000"),
    ];
    for (name, adaptive, message) in rows {
        let error = adaptive.start().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{name}");
        assert!(error.to_string().contains(message), "{name}: {error}");
    }
    assert!(new().floor(1.0).every(second).start().is_ok());
}

#[test]
fn without_a_runtime_the_error_says_where_to_start_it_and_after_it_the_quota_stays() {
    let error = Adaptive::new(api()).follow(|| 1.0).start().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingSetup);
    assert!(error.to_string().contains("needs a Tokio runtime"), "{error}");

    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let adaptive = runtime.block_on(async {
        let adaptive = Adaptive::new(api()).follow(|| 0.5).start().unwrap();
        followed().await;
        adaptive
    });
    drop(runtime);
    assert_eq!((adaptive.share(), adaptive.policy().quota()), (0.5, Quota::per_hour(50)));
    assert!(format!("{adaptive:?}").contains("share: 0.5"), "{adaptive:?}");
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_changes_is_followed_immediately_and_the_share_stays() {
    let (sender, receiver) = watch::channel(api());
    let dial = Dial::new(0.5);
    let hour = Duration::from_secs(3_600);
    let adaptive =
        Adaptive::new(PolicySource::watched(receiver)).follow(dial.signal()).every(hour).start().unwrap();
    sleep(hour * 2).await;
    let now = || (adaptive.share(), adaptive.policy());
    assert_eq!(now(), (0.5, Policy::new("api", Quota::per_hour(50))));
    sender.send_replace(Policy::new("api", Quota::per_hour(10)).max_debt(3));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(now(), (0.5, Policy::new("api", Quota::per_hour(5)).max_debt(3)));
    // It cannot be counted at the floor: the old one stays, and a later one is used.
    let uneven = Quota::per_minute(6);
    let bucket = TokenBucket::new().refill_every(Duration::from_secs(10));
    sender.send_replace(Policy::new("api", uneven).algorithm(bucket));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(now(), (0.5, Policy::new("api", Quota::per_hour(5)).max_debt(3)));
    sender.send_replace(Policy::concurrency("api", 8));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(now(), (0.5, Policy::concurrency("api", 4)));
    // The last one stays, and the signal is followed.
    drop(sender);
    dial.set(1.0);
    sleep(hour * 20).await;
    assert_eq!(now(), (1.0, Policy::concurrency("api", 8)));
}

#[tokio::test(start_paused = true)]
async fn a_live_policy_is_followed_and_in_use_for_as_long_as_its_adaptive_policy() {
    let directory = Directory::new();
    let path = directory.file("limits.toml");
    let write = async |policies: &[(&str, &str)]| {
        std::fs::write(&path, file_of(policies)).unwrap();
        sleep(Duration::from_secs(2)).await;
    };
    write(&[("api", "100/h"), ("other", "1/h")]).await;
    let live = LivePolicies::file(&path).unwrap();
    let dial = Dial::new(0.25);
    let adaptive = Adaptive::new(live.get("api").unwrap()).follow(dial.signal()).start().unwrap();
    followed().await;
    write(&[("api", "8/h"), ("other", "1/h")]).await;
    assert_eq!((adaptive.share(), adaptive.policy()), (0.25, Policy::new("api", Quota::per_hour(2))));
    write(&[("other", "1/h")]).await;
    assert!(live.last_error().unwrap().to_string().contains("policy `api` is missing"));
    drop(adaptive);
    write(&[("other", "2/h")]).await;
    assert!(live.last_error().is_none(), "{live:?}");
}

#[tokio::test]
async fn a_policy_that_depends_on_the_request_is_an_error_with_the_remedy() {
    let source = PolicySource::per_request(|_: &http::request::Parts, _: &Key| api());
    let error = Adaptive::new(source).follow(|| 1.0).start().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().ends_with("make each of the policies adaptive"), "{error}");
}

/// Units stay when the quota falls, so that the less critical requests go first. They may come again at the next step.
#[tokio::test(start_paused = true)]
async fn a_falling_quota_takes_from_the_less_critical_requests_first() {
    let dial = Dial::new(1.0);
    let full = api().headroom(Criticality::Sheddable, Headroom::Units(40));
    let adaptive = Adaptive::new(full).floor(0.02).follow(dial.signal()).start().unwrap();
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let ask = async |key: &str, criticality, cost| {
        let charge = Charge::new(&adaptive.policy(), &Key::new(key), cost).with_criticality(criticality);
        limiter.check_all(&[charge]).await.unwrap()
    };
    assert_eq!(ask("a", Criticality::Sheddable, 1).await.remaining(), Some(59));
    dial.set(0.3);
    followed().await;
    let shed = ask("b", Criticality::Sheddable, 1).await;
    assert!(shed.is_shed(), "{shed:?}");
    assert_eq!(shed.retry_after(), Some(Duration::from_millis(500)));
    assert_eq!(ask("b", Criticality::Sheddable, 61).await.retry_after(), None);
    assert!(ask("b", Criticality::CriticalPlus, 30).await.is_admitted());
}
