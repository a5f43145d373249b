//! Policies in configuration files.

use std::time::Duration;

use serde_json::json;
use tower_ratelimit::{
    Criticality, FailureMode, Policy, Quota,
    algorithm::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket, Weekday},
    policy::{Headroom, Penalty, QuotaUnit},
};
use tower_ratelimit_operate::config::{PolicyConfig, PolicySummary};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn a_configuration_file_describes_every_built_in_algorithm() {
    let policy = |quota: &str| Policy::new("p", quota.parse().unwrap());
    let (seconds, hours) = (Duration::from_secs, |hours: u64| Duration::from_secs(hours * 3_600));
    let rows = [
        ("5/s", json!("gcra"), policy("5/s")),
        ("5/s", json!("sliding-log"), policy("5/s").algorithm(SlidingLog::new())),
        ("5/30s", json!("concurrency"), Policy::concurrency("p", 5)),
        ("5/day", json!("fixed-window"), policy("5/day").algorithm(FixedWindow::anchored())),
        (
            "5/day",
            json!({ "name": "fixed-window", "aligned": true }),
            policy("5/day").algorithm(FixedWindow::aligned()),
        ),
        (
            "5/day",
            json!({ "name": "fixed-window", "utc_offset": "+05:30" }),
            policy("5/day").algorithm(FixedWindow::aligned().utc_offset_east(seconds(5 * 3_600 + 1_800))),
        ),
        (
            "5/day",
            json!({ "name": "fixed-window", "aligned": false }),
            policy("5/day").algorithm(FixedWindow::anchored()),
        ),
        (
            "5/day",
            json!({ "name": "fixed-window", "aligned": true, "utc_offset": "-05:00" }),
            policy("5/day").algorithm(FixedWindow::aligned().utc_offset_west(hours(5))),
        ),
        ("6/min", json!("sliding-window"), policy("6/min").algorithm(SlidingWindow::new())),
        (
            "6/min",
            json!({ "segments": 6, "name": "sliding-window" }),
            policy("6/min").algorithm(SlidingWindow::new().segments(6)),
        ),
        (
            "6/min",
            json!({ "name": "token-bucket", "refill_every": "10s", "starting_at": 2 }),
            policy("6/min").algorithm(TokenBucket::new().refill_every(seconds(10)).starting_at(2)),
        ),
        ("6/min", json!("leaky-bucket"), policy("6/min").algorithm(LeakyBucket::meter())),
        (
            "6/min",
            json!({ "name": "leaky-bucket", "max_wait": "20 s", "delay_after": 2 }),
            policy("6/min").algorithm(LeakyBucket::queue(seconds(20)).delay_after(2)),
        ),
    ];
    for (quota, algorithm, expected) in rows {
        let read = json!({ "name": "p", "quota": quota, "algorithm": algorithm });
        assert_eq!(serde_json::from_value::<PolicyConfig>(read).unwrap().0, expected, "{algorithm}");
    }
    let all = json!({
        "name": "p", "quota": "5/s", "failure_mode": "closed", "max_lease": 3, "max_debt": 4, "enforced": 0.25, "quota_unit": "content-bytes"
    });
    let expected = policy("5/s")
        .failure_mode(FailureMode::Closed)
        .max_lease(3)
        .max_debt(4)
        .rollout(0.25)
        .quota_unit(QuotaUnit::ContentBytes);
    assert_eq!(serde_json::from_value::<PolicyConfig>(all).unwrap().0, expected);
}

#[test]
fn an_invalid_configuration_file_is_an_error_that_says_what_to_do() {
    let with = |entry: &str, value: serde_json::Value| {
        let mut policy = json!({ "name": "daily", "quota": "5/day" });
        policy[entry] = value;
        policy
    };
    let algorithm = |value| with("algorithm", value);
    let rows = [
        (json!({ "name": "daily" }), "missing field `quota`"),
        (
            with("on_store_failur", json!("open")),
            "unknown field `on_store_failur`, expected one of `name`, `quota`",
        ),
        (with("failure_mode", json!("shut")), "invalid failure mode `shut`: write `local`, `local/4`"),
        (with("quota", json!("5")), "invalid quota `5`: write it as"),
        (with("name", json!("día")), "policy `día`: a policy's name must be printable ASCII"),
        (with("max_lease", json!(0)), "policy `daily`: a lease must be of 1 to 1,000,000,000,000 units"),
        (with("max_debt", json!(u64::MAX)), "policy `daily`: the debt is too large"),
        (with("max_debt", json!(-1)), "invalid value: integer `-1`, expected u64"),
        (with("enforced", json!(25)), "policy `daily`: the share of keys must be from 0 to 1"),
        (with("enforced", json!(1e-300)), "policy `daily`: the share of keys must be 0 or at least 0.000001"),
        (with("enforced", json!(4.9e-7)), "policy `daily`: the share of keys must be 0 or at least 0.000001"),
        (json!(["daily", "5/day"]), "invalid type: sequence, expected a table of the policy's entries"),
        (json!("daily"), "expected a table of the policy's entries"),
        (with("name", json!("a\u{0}\n\u{1b}")), "policy `a\\0\\n\\u{1b}`: a policy's name must be printable"),
        (with("quota", json!("5/\u{1b}")), "invalid quota `5/\\u{1b}`"),
        (
            algorithm(json!({ "name": "fixed-window", "aligned": false, "utc_offset": "+05:30" })),
            "policy `daily`: `utc_offset` is for aligned windows: leave out `aligned = false`, or `utc_offset`",
        ),
        (algorithm(json!("gcr")), "unknown variant `gcr`, expected one of `concurrency`, `fixed-window`"),
        (algorithm(json!({ "name": "gcra", "aligned": true })), "unknown field `aligned`"),
        (algorithm(json!({ "aligned": true })), "missing field `name`"),
        (algorithm(json!(5)), "expected the name of an algorithm, or a table"),
        (algorithm(json!({ "name": "leaky-bucket", "delay_after": 2 })), "add `max_wait`"),
        (algorithm(json!({ "name": "leaky-bucket", "max_wait": "2" })), "invalid duration `2`"),
        (algorithm(json!({ "name": "fixed-window", "utc_offset": "5" })), "invalid UTC offset `5`"),
        (algorithm(json!({ "name": "sliding-window", "segments": 0 })), "must have 1 to 1000 segments"),
    ];
    for (table, message) in rows {
        let error = serde_json::from_value::<PolicyConfig>(table.clone()).unwrap_err().to_string();
        assert!(error.contains(message), "{table}: {error}");
    }
    for offset in ["+24:00", "+05:60", "05:30", "+-5:30", "", "é5:30", "+5"] {
        let table = algorithm(json!({ "name": "fixed-window", "utc_offset": offset }));
        assert!(serde_json::from_value::<PolicyConfig>(table).is_err(), "{offset}");
    }
}

#[test]
fn a_file_has_calendar_periods() {
    let read = |text: &str| serde_json::from_str::<PolicyConfig>(text).map(|PolicyConfig(policy)| policy);
    let month = read(r#"{ "name": "plan", "quota": "100000/month" }"#).unwrap();
    assert_eq!(month, Policy::new("plan", Quota::per_month(100_000)));
    let table = r#"{ "limit": 100000, "per": "month", "from_day": 15, "zone": "Europe/Berlin" }"#;
    let berlin = read(&format!(r#"{{ "name": "plan", "quota": {table} }}"#)).unwrap();
    let windows = FixedWindow::aligned().from_day(15).time_zone("Europe/Berlin");
    assert_eq!(berlin, Policy::new("plan", Quota::per_month(100_000)).algorithm(windows));
    let week = r#"{ "limit": 5, "per": "week", "from_weekday": "sunday", "utc_offset": "-05:00" }"#;
    let week = read(&format!(r#"{{ "name": "plan", "quota": {week} }}"#)).unwrap();
    let windows =
        FixedWindow::aligned().utc_offset_west(Duration::from_secs(5 * 3_600)).from_weekday(Weekday::Sunday);
    assert_eq!(week, Policy::new("plan", Quota::per_week(5)).algorithm(windows));
    for (quota, part) in [
        (r#"{ "limit": 5, "per": "month", "from_day": 32 }"#, "from 1 to 31"),
        (r#"{ "limit": 5, "per": "month", "zone": "Mars" }"#, "unknown time zone `Mars`"),
        (r#"{ "limit": 5, "per": "7h" }"#, "cannot be aligned"),
        (r#"{ "limit": 5, "per": "week", "from_weekday": "someday" }"#, "unknown weekday `someday`"),
        (r#"{ "limit": 5 }"#, "missing field `per`"),
        (r#"{ "limit": 5, "per": "month", "day": 3 }"#, "unknown field `day`"),
        (r#"{ "limit": 5, "per": "month" }, "algorithm": "gcra""#, "leave out `algorithm`"),
    ] {
        let error = read(&format!(r#"{{ "name": "plan", "quota": {quota} }}"#)).unwrap_err().to_string();
        assert!(error.contains(part), "{quota}: {error}");
    }
}

#[test]
fn a_penalty_is_read_from_a_configuration() {
    let policy = |entry: &str| {
        let json = format!(r#"{{ "name": "login", "quota": "5/min", "penalty": {entry} }}"#);
        serde_json::from_str::<PolicyConfig>(&json).map(|config| config.0)
    };
    let plain = || Policy::new("login", Quota::per_minute(5));
    let rows = [
        (r#"{ "after": 10, "within": "10min" }"#, Penalty::after(10, 10 * MINUTE)),
        (
            r#"{ "after": 10, "within": "10min", "ban": "1h", "up_to": "1d" }"#,
            Penalty::after(10, 10 * MINUTE).ban(HOUR).up_to(DAY),
        ),
        (r#""manual""#, Penalty::manual()),
    ];
    for (entry, penalty) in rows {
        assert_eq!(policy(entry).unwrap(), plain().penalty(penalty), "{entry}");
        assert_ne!(policy(entry).unwrap(), plain(), "{entry}");
    }
    let errors = [
        (r#"{ "within": "10min" }"#, "missing field `after`"),
        (r#"{ "after": 3 }"#, "missing field `within`"),
        (r#"{ "after": 3, "within": "10min", "for": "1h" }"#, "unknown field `for`"),
        (r#"{ "after": 3, "within": "10" }"#, "invalid duration `10`: write a whole number and a unit"),
        (
            r#"{ "after": 0, "within": "10min" }"#,
            "policy `login`: a penalty must be after 1 to 1,000,000 denials",
        ),
        (r#"{ "after": 3, "within": "10min", "ban": "20y" }"#, "invalid duration `20y`"),
        (
            r#"{ "after": 3, "within": "1h", "up_to": "1min" }"#,
            "the longest ban is shorter than the first one",
        ),
        (r#""auto""#, "a table with `after`, `within`, `ban` and `up_to`, or \"manual\""),
        ("7", "a table with `after`, `within`, `ban` and `up_to`, or \"manual\""),
    ];
    for (entry, expected) in errors {
        let error = policy(entry).unwrap_err().to_string();
        assert!(error.contains(expected), "{entry}: {error}");
    }
    let leased = r#"{ "name": "login", "quota": "5/min", "max_lease": 9, "penalty": "manual" }"#;
    let error = serde_json::from_str::<PolicyConfig>(leased).unwrap_err().to_string();
    assert!(error.contains("policy `login`: a policy with a penalty cannot be leased"), "{error}");
}

#[test]
fn headroom_is_read_from_a_configuration_and_shown() {
    let policy = |entry: &str| {
        let json = format!(r#"{{ "name": "site", "quota": "100/min", "headroom": {entry} }}"#);
        serde_json::from_str::<PolicyConfig>(&json).map(|config| config.0)
    };
    let plain = || Policy::new("site", Quota::per_minute(100));
    let both = plain()
        .headroom(Criticality::Critical, Headroom::Units(10))
        .headroom(Criticality::Sheddable, Headroom::Percent(50));
    for entry in [r#"{ "critical": 10, "sheddable": "50%" }"#, r#"{ "sheddable": "50 %", "critical": "10" }"#]
    {
        assert_eq!(policy(entry).unwrap(), both, "{entry}");
    }
    for entry in ["{}", "null"] {
        assert_eq!(policy(entry).unwrap(), plain(), "{entry}");
    }
    let summary = serde_json::to_value(PolicySummary::of(&both)).unwrap();
    assert_eq!(summary["headroom"], json!({ "sheddable": "50%", "critical": "10" }));
    assert_eq!(serde_json::from_value::<PolicySummary>(summary).unwrap(), PolicySummary::of(&both));
    for (entry, expected) in [
        (
            r#"{ "crawler": 10 }"#,
            "invalid criticality `crawler`: write `sheddable`, `sheddable-plus`, `critical` or `critical-plus`",
        ),
        (
            r#"{ "sheddable": "half" }"#,
            "invalid headroom `half`: write units such as `60`, or a part such as `20%`",
        ),
        (r#"{ "sheddable": -1 }"#, "invalid headroom `-1`"),
        (r#"{ "sheddable": true }"#, "units such as 60, or a part such as \"20%\""),
        (r#"{ "sheddable": "101%" }"#, "policy `site`: a headroom must be from 0 to 100 percent"),
        (r#"{ "critical-plus": 1 }"#, "policy `site`: the most critical requests leave no headroom"),
        ("10", "invalid type: integer `10`"),
    ] {
        let error = policy(entry).unwrap_err().to_string();
        assert!(error.contains(expected), "{entry}: {error}");
    }
}
