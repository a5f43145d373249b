//! Calendar windows: days, weeks, months, quarters and years, in UTC and in time zones.

use std::{convert::Infallible, time::Duration};

use futures_util::future::join_all;
use http::{Request, Response};
use support::{AnotherTime, PATIENT, RedisServer, eventually, memory_and_redis, proxy::Proxy, settings};
use tokio::time::sleep;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_ratelimit::{
    Decision, Error, FailureMode, Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer,
    algorithm::{
        Concurrency, FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket, Weekday,
    },
    store::ManualClock,
};

const WEEKDAYS: [Weekday; 7] = [
    Weekday::Monday,
    Weekday::Tuesday,
    Weekday::Wednesday,
    Weekday::Thursday,
    Weekday::Friday,
    Weekday::Saturday,
    Weekday::Sunday,
];

/// A second, in microseconds.
const SECOND: u64 = 1_000_000;
/// 2031-03-31T23:59:00Z.
const LATE_IN_MARCH: u64 = APRIL - 60 * SECOND;
const APRIL: u64 = 1_932_768_000 * SECOND;

fn alice() -> Key {
    Key::new("alice")
}

async fn take(limiter: &Limiter, policy: &Policy) -> Decision {
    limiter.check(policy, &alice(), 1).await.unwrap()
}

/// The rows of `calendar/windows.txt`, which `windows.py` beside it has made.
#[tokio::test]
async fn windows_agree_with_pythons_zoneinfo() {
    let clock = ManualClock::new();
    let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()).capacity(1_000));
    // The time until the window of `moment` ends.
    let left = async |policy: &Policy, moment: Duration| {
        clock.set(moment);
        limiter.operator().reset(policy, &alice()).await.unwrap();
        take(&limiter, policy).await;
        take(&limiter, policy).await.retry_after().unwrap()
    };
    let microsecond = Duration::from_micros(1);
    let mut checked = 0;
    for row in include_str!("calendar/windows.txt").lines().filter(|row| !row.starts_with('#')) {
        let [zone, unit, first, times @ ..] = &row.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let [moment, start, end] =
            [0, 1, 2].map(|column| Duration::from_secs(times[column].parse().unwrap()));
        let windows = FixedWindow::aligned().time_zone(zone);
        let first: u8 = first.parse().unwrap();
        let windows = match *unit {
            "day" => windows,
            "week" => windows.from_weekday(WEEKDAYS[usize::from(first)]),
            "month" => windows.from_day(first),
            _ => windows.from_month(first),
        };
        let quota: Quota = format!("1/{unit}").parse().unwrap();
        let policy = Policy::new("p", quota).algorithm(windows);
        assert_eq!(left(&policy, moment).await, end - moment, "{row}");
        assert_eq!(left(&policy, start).await, end - start, "{row}");
        assert_eq!(left(&policy, start - microsecond).await, microsecond, "{row}");
        checked += 1;
    }
    assert!(checked > 1_500, "{checked}");
}

#[tokio::test]
async fn a_quota_per_month_is_counted_by_the_calendar_without_more_words() {
    let server = RedisServer::start();
    for text in ["3/month", "3 per quarter", "3/year"] {
        let quota: Quota = text.parse().unwrap();
        let policy = Policy::new("plan", quota);
        assert_eq!(policy.settings().algorithm.name(), "fixed-window");
        for (store, limiter) in memory_and_redis(&server).await {
            for left in [2, 1, 0] {
                let decision = take(&limiter, &policy).await;
                assert!(decision.is_admitted(), "{store}");
                assert_eq!(decision.remaining(), Some(left), "{store} {text}");
            }
            let denied = take(&limiter, &policy).await;
            assert!(
                denied.retry_after().unwrap() <= quota.period() + Duration::from_secs(2 * 86_400),
                "{store}"
            );
            limiter.operator().reset(&policy, &alice()).await.unwrap();
        }
    }
}

#[test]
fn what_a_calendar_cannot_count_is_an_error_with_the_remedy() {
    let with = |quota: Quota, windows: FixedWindow| {
        Policy::new("p", Quota::per_day(1)).try_algorithm(windows).and_then(|policy| policy.with_quota(quota))
    };
    let (month, more) = (Quota::per_month(1), Quota::per_day(20_000_000_000_000));
    let aligned = FixedWindow::aligned();
    let problem = |result: Result<Policy, Error>| result.unwrap_err().to_string();
    let rows = [
        (problem(with("1/7h".parse().unwrap(), aligned)), "cannot be aligned"),
        (problem(with("1/30d".parse().unwrap(), aligned)), "cannot be aligned"),
        (problem(with("1/2w".parse().unwrap(), aligned)), "cannot be aligned"),
        (problem(with(month, FixedWindow::anchored())), "use `FixedWindow::aligned()`"),
        (problem(Policy::new("p", month).try_algorithm(aligned.from_day(32))), "from 1 to 31"),
        (problem(Policy::new("p", month).try_algorithm(aligned.from_day(0))), "from 1 to 31"),
        (problem(Policy::new("p", month).try_algorithm(aligned.from_month(4))), "quarter or year"),
        (problem(Policy::new("p", month).try_algorithm(aligned.from_weekday(Weekday::Sunday))), "per week"),
        (problem(Policy::new("p", Quota::per_year(1)).try_algorithm(aligned.from_month(13))), "from 1 to 12"),
        (problem(Policy::new("p", Quota::per_day(1)).try_algorithm(aligned.from_day(2))), "per month"),
        (
            problem(Policy::new("p", Quota::per_hour(1)).try_algorithm(aligned.time_zone("Asia/Tokyo"))),
            "days or longer",
        ),
        (
            problem(
                Policy::new("p", month).try_algorithm(
                    aligned.time_zone("Asia/Tokyo").utc_offset_east(Duration::from_secs(3_600)),
                ),
            ),
            "not both",
        ),
        (problem(Policy::new("p", month).try_algorithm(Gcra::new())), "use `FixedWindow::aligned()`"),
        (problem(Policy::new("p", month).try_algorithm(TokenBucket::new())), "per month"),
        (problem(Policy::new("p", month).try_algorithm(LeakyBucket::meter())), "per month"),
        (problem(Policy::new("p", month).try_algorithm(SlidingLog::new())), "per month"),
        (problem(Policy::new("p", month).try_algorithm(SlidingWindow::new())), "per month"),
        (problem(Policy::new("p", month).try_algorithm(Concurrency::new())), "per month"),
        (problem(Policy::new("p", Quota::per_day(1)).with_quota(month)), "gcra counts no calendar periods"),
        (
            problem(Policy::new("p", more).try_algorithm(Gcra::new())),
            "gcra counts up to 10000000000000 units",
        ),
        (
            problem(Policy::new("p", more).try_algorithm(SlidingLog::new())),
            "counts up to 1000000000000 units",
        ),
        (month.try_burst(5).unwrap_err().to_string(), "no burst"),
        ("5/2months".parse::<Quota>().unwrap_err().to_string(), "has no number"),
        (
            aligned.try_time_zone("Europe/Berlinn").unwrap_err().to_string(),
            "unknown time zone `Europe/Berlinn`",
        ),
    ];
    for (problem, part) in rows {
        assert!(problem.contains(part), "{problem}");
    }
}

#[test]
fn text_of_calendar_quotas_is_read_back() {
    for text in ["1/month", "100000/quarter", "999999999999999/year"] {
        let quota: Quota = text.parse().unwrap();
        assert_eq!(quota.to_string(), text);
    }
    for (text, quota) in [
        ("5 per month", Quota::per_month(5)),
        ("5/1 Month", Quota::per_month(5)),
        ("5/quarters", Quota::per_quarter(5)),
        ("5/w", Quota::per_week(5)),
    ] {
        assert_eq!(text.parse::<Quota>().unwrap(), quota, "{text}");
    }
    assert_ne!(Quota::per_month(5), "5/30d".parse().unwrap());
}

/// Two instances, and the time of the server that they share.
async fn instances() -> (RedisServer, AnotherTime, [Limiter; 2]) {
    let server = RedisServer::start();
    let (url, time) = AnotherTime::at(server.port(), LATE_IN_MARCH).await;
    // The deny cache has the clock of the instance, for which no month passes.
    let connect = async || Limiter::new(settings().deny_cache(Duration::ZERO).connect(&url).await.unwrap());
    let limiters = [connect().await, connect().await];
    (server, time, limiters)
}

fn closed(policy: Policy) -> Policy {
    policy.failure_mode(FailureMode::Closed)
}

/// The servers' clock is years ahead of the instances', then steps to later windows and back.
#[tokio::test]
async fn the_servers_clock_decides_in_which_window_a_charge_falls() {
    let (server, time, [one, other]) = instances().await;
    let policy = closed(Policy::new("plan", Quota::per_month(10)));
    let month = 31 * 86_400 * SECOND;
    for (name, now) in [
        ("years later", LATE_IN_MARCH),
        ("the next month", LATE_IN_MARCH + 120 * SECOND),
        ("the month after it", LATE_IN_MARCH + month),
        ("idle for three windows", LATE_IN_MARCH + 4 * month),
        ("idle for thirty years", LATE_IN_MARCH + 360 * month),
    ] {
        time.set(now);
        let asked = (0..100).map(|n| take([&one, &other][n % 2], &policy));
        let admitted = join_all(asked).await.iter().filter(|decision| decision.is_admitted()).count();
        assert_eq!(admitted, 10, "{name}");
    }
    // The instances know the time by now: each decision is one call.
    let before = server.script_calls();
    for _ in 0..5 {
        take(&one, &Policy::new("other", Quota::per_month(10))).await;
    }
    assert_eq!(server.script_calls() - before, 5);
    // Back by a year: as with each algorithm, a clock that steps back does not fill the quota.
    time.set(LATE_IN_MARCH + 348 * month);
    assert!(!take(&one, &policy).await.is_admitted());
}

/// An instance that was last answered in March asks for March.
#[tokio::test]
async fn a_month_begins_in_its_first_microsecond() {
    let (_server, time, [one, other]) = instances().await;
    let policy = closed(Policy::new("plan", Quota::per_month(10)));
    assert!(one.check(&policy, &alice(), 10).await.unwrap().is_admitted());
    for (limiter, now, is_admitted) in [(other, APRIL - 1, false), (one, APRIL, true)] {
        time.set(now);
        assert_eq!(take(&limiter, &policy).await.is_admitted(), is_admitted, "{now}");
    }
}

/// The same for the windows that pay for a debt of March.
#[tokio::test]
async fn the_servers_clock_decides_which_windows_pay_for_a_debt() {
    let (_server, time, limiters) = instances().await;
    let policy = closed(Policy::new("plan", Quota::per_month(10)).max_debt(15));
    let [one, other] = &limiters;
    let charged = one.check(&policy, &alice(), 10).await.unwrap();
    one.debit(&charged, 15).await.unwrap();
    let day = 86_400 * SECOND;
    for (name, later, remaining) in [
        ("April", 120 * SECOND, 0),
        ("May", 31 * day, 5),
        ("back in April", 120 * SECOND, 0),
        ("years later", 1_000 * day, 10),
    ] {
        time.set(LATE_IN_MARCH + later);
        for limiter in [other, one] {
            let peeked = limiter.peek(&policy, &alice(), 1).await.unwrap();
            assert_eq!(peeked.remaining(), Some(remaining), "{name}");
        }
    }
    // In June, of a call that has the windows around July, the debt was paid two months ago.
    for later in [120 * day, 80 * day] {
        time.set(LATE_IN_MARCH + later);
        assert_eq!(one.peek(&policy, &alice(), 1).await.unwrap().remaining(), Some(10), "{later}");
    }
    time.set(LATE_IN_MARCH + 31 * day);
    assert!(take(other, &policy).await.is_admitted());
    let denied = other.check(&policy, &alice(), 5).await.unwrap();
    assert!(
        denied.is_denied() && denied.retry_after() <= Some(Duration::from_secs(31 * 86_400)),
        "{denied:?}"
    );
}

#[tokio::test]
async fn a_call_with_the_wrong_windows_repeats_only_what_they_concern() {
    let (server, time, [limiter, _]) = instances().await;
    let (plan, rate) = (
        closed(Policy::new("plan", Quota::per_month(100))),
        closed(Policy::new("rate", Quota::per_day(100))),
    );
    let both = |name: &str| {
        let (key, limiter, plan, rate) = (Key::new(name), limiter.clone(), plan.clone(), rate.clone());
        async move {
            let charge = |policy: &Policy| tower_ratelimit::Charge::new(policy, &key, 1);
            limiter.check_all(&[charge(&plan), charge(&rate)]).await.unwrap()
        }
    };
    let year = 365 * 86_400 * SECOND;
    for round in 1..=20 {
        time.set(LATE_IN_MARCH + round * year);
        let (each, rates) = tokio::join!(
            join_all((0..5).map(|n| both(["a", "b", "c", "d", "e"][n]))),
            join_all((0..5).map(|_| take(&limiter, &rate)))
        );
        assert!(each.iter().chain(&rates).all(Decision::is_admitted));
    }
    // In the last round, which began a year after the one before, one unit of both, once.
    for name in ["a", "b", "c", "d", "e"] {
        let left = limiter.peek(&plan, &Key::new(name), 0).await.unwrap().remaining();
        assert_eq!(left, Some(99), "{name}");
        let left = limiter.peek(&rate, &Key::new(name), 0).await.unwrap().remaining();
        assert_eq!(left, Some(99), "{name}, of the other policy");
    }
    // The decisions that share the call and have no calendar.
    assert_eq!(limiter.peek(&rate, &alice(), 0).await.unwrap().remaining(), Some(95));
    drop(server);
}

#[tokio::test]
async fn a_change_of_the_plan_keeps_the_count_of_the_month() {
    let server = RedisServer::start();
    for (store, limiter) in memory_and_redis(&server).await {
        let free = Policy::new("plan", Quota::per_month(10));
        limiter.check(&free, &alice(), 8).await.unwrap();
        let paid = free.with_quota(Quota::per_month(1_000)).unwrap();
        assert_eq!(limiter.peek(&paid, &alice(), 0).await.unwrap().remaining(), Some(992), "{store}");
        // In windows that began before the first charge, the units count.
        let year = paid.with_quota(Quota::per_year(1_000)).unwrap();
        assert_eq!(limiter.peek(&year, &alice(), 0).await.unwrap().remaining(), Some(992), "{store}");
    }
}

#[tokio::test]
async fn leases_refunds_and_debits_are_of_their_month() {
    let (_server, time, [limiter, other]) = instances().await;
    let policy = closed(Policy::new("plan", Quota::per_month(1_000))).max_lease(100);
    for _ in 0..50 {
        assert!(take(&limiter, &policy).await.is_admitted());
    }
    let charged = limiter
        .check(&closed(Policy::new("more", Quota::per_month(10)).max_debt(5)), &alice(), 10)
        .await
        .unwrap();
    assert!(charged.is_admitted());
    time.set(LATE_IN_MARCH + 120 * SECOND);
    // In April, nothing of March counts, and a refund of March refunds nothing.
    let more = closed(Policy::new("more", Quota::per_month(10)).max_debt(5));
    limiter.check(&more, &alice(), 4).await.unwrap();
    limiter.refund(&charged, 10).await.unwrap();
    assert_eq!(other.peek(&more, &alice(), 0).await.unwrap().remaining(), Some(6));
    assert_eq!(other.peek(&policy, &alice(), 0).await.unwrap().remaining(), Some(1_000));
}

/// The server is in 2031, a minute before the month ends; the instance is not.
#[tokio::test]
async fn in_an_outage_the_month_is_that_of_the_server() {
    let (mut server, _time, [limiter, _]) = instances().await;
    let policy = Policy::new("plan", Quota::per_month(2)).failure_mode(FailureMode::Local { instances: 1 });
    assert!(take(&limiter, &policy).await.is_admitted());
    server.kill();
    for admitted in [true, true, false] {
        let decision = take(&limiter, &policy).await;
        assert!(decision.failure().is_some());
        assert_eq!(decision.is_admitted(), admitted);
        let ends = decision.outcomes()[0].reset_after();
        assert!(ends <= Duration::from_secs(60), "{ends:?}");
    }
}

/// Two instances lose the server a second before the month ends and find it again in the next month.
#[tokio::test]
async fn an_outage_over_the_end_of_a_month_admits_each_share_in_each_month_and_charges_only_the_later_one() {
    const LIMIT: u64 = 10;
    const END_OF_MARCH: u64 = LATE_IN_MARCH + 60 * SECOND;
    let server = RedisServer::start();
    let (url, time) = AnotherTime::at(server.port(), END_OF_MARCH - SECOND).await;
    let mut network = Proxy::to(url.rsplit(':').next().unwrap().parse().unwrap()).await;
    let url = network.url();
    let connect = async || Limiter::new(settings().deny_cache(Duration::ZERO).connect(&url).await.unwrap());
    let limiters = [connect().await, connect().await];
    let policy =
        Policy::new("plan", Quota::per_month(LIMIT)).failure_mode(FailureMode::Local { instances: 2 });
    // Four of March are charged to the server.
    for limiter in [&limiters[0], &limiters[1]].repeat(2) {
        assert!(take(limiter, &policy).await.is_admitted());
    }
    network.cut().await;
    // What an instance admits in March, and of this many requests in April.
    let admitted_of = async |limiter: &Limiter, in_april: u64| {
        let (mut admitted, mut asked) = ([0, 0], 0);
        while asked < in_april {
            let decision = take(limiter, &policy).await;
            let is_april = decision.outcomes()[0].reset_after() > Duration::from_secs(86_400);
            admitted[usize::from(is_april)] += u64::from(decision.is_admitted());
            asked += u64::from(is_april);
            sleep(Duration::from_millis(10)).await;
        }
        admitted
    };
    let (one, other) = tokio::join!(admitted_of(&limiters[0], 9), admitted_of(&limiters[1], 3));
    assert!(one[0] <= LIMIT / 2 && other[0] <= LIMIT / 2, "{one:?}, {other:?}");
    assert_eq!((one[1], other[1]), (LIMIT / 2, 3));
    time.set(END_OF_MARCH + 10 * SECOND);
    network.mend().await;
    let answers = async |limiter: &Limiter| {
        limiter.peek(&policy, &alice(), 0).await.is_ok_and(|decision| decision.failure().is_none())
    };
    for limiter in &limiters {
        assert!(eventually(async || answers(limiter).await).await);
        limiter.drain(PATIENT).await.unwrap();
    }
    // The eight of April are charged, and none of March.
    assert_eq!(limiters[0].peek(&policy, &alice(), 0).await.unwrap().remaining(), Some(2));
    time.set(END_OF_MARCH + 30 * 86_400 * SECOND);
    assert_eq!(limiters[0].peek(&policy, &alice(), 0).await.unwrap().remaining(), Some(LIMIT));
}

#[tokio::test]
async fn in_an_outage_a_manual_clock_goes_on_deciding_the_month() {
    let mut server = RedisServer::start();
    let clock = ManualClock::new(); // 2026-01-01
    let settings = settings().manual_clock(clock.clone()).deny_cache(Duration::ZERO);
    let limiter = Limiter::new(settings.connect(&server.url()).await.unwrap());
    let policy = Policy::new("plan", Quota::per_month(1)).failure_mode(FailureMode::Local { instances: 1 });
    server.kill();
    for days in [31, 28] {
        assert!(take(&limiter, &policy).await.is_admitted());
        let denied = take(&limiter, &policy).await;
        assert_eq!(denied.retry_after(), Some(Duration::from_secs(days * 86_400)));
        assert!(denied.failure().is_some());
        clock.advance(Duration::from_secs(days * 86_400));
    }
}

#[tokio::test]
async fn headers_have_a_nominal_window_and_the_true_time_to_its_end() {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let layer = RateLimitLayer::new(store, Policy::new("plan", Quota::per_month(2)), Key::new("all"));
    let service = layer
        .layer(service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) }));
    let ask = async || service.clone().oneshot(Request::new(String::new())).await.unwrap();
    for (days, left) in [(0, 31), (31, 28), (28, 31)] {
        clock.advance(Duration::from_secs(days * 86_400));
        let headers = ask().await.headers().clone();
        assert_eq!(headers["ratelimit-policy"], r#""plan";q=2;w=2592000"#);
        assert_eq!(headers["ratelimit"], format!(r#""plan";r=1;t={}"#, left * 86_400));
        ask().await;
        let denied = ask().await;
        assert_eq!(denied.status(), 429);
        assert_eq!(denied.headers()["retry-after"], (left * 86_400).to_string());
    }
}
