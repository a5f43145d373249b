//! Several policies from a file, decided together.

use std::fs;

use serde_json::{Value, json};
use support::{Directory, RedisServer};

use crate::{each, errors, replay, verdicts};

/// Replays `log` through the policies of a TOML file.
fn replay_with(policies: &str, options: &[&str], log: &str) -> std::process::Output {
    let directory = Directory::new();
    let path = directory.file("limits.toml");
    fs::write(&path, policies).unwrap();
    let file = ["--policies", path.to_str().unwrap(), "--verdicts"];
    replay(&[&file, options].concat(), log)
}

fn allowed(output: &std::process::Output) -> Vec<bool> {
    verdicts(output).iter().map(|verdict| verdict["allowed"].as_bool().unwrap()).collect()
}

/// The part of a verdict about a policy.
fn policy<'a>(verdict: &'a Value, name: &str) -> &'a Value {
    verdict["policies"].as_array().unwrap().iter().find(|policy| policy["policy"] == name).unwrap()
}

/// Lines of the combined log, with the time of day on 2026-10-10 and the bytes of each response.
fn combined(lines: &[(&str, u64)]) -> String {
    let line = |(time, bytes): &(&str, u64)| {
        format!("203.0.113.7 - - [10/Oct/2026:{time} +0000] \"GET /a HTTP/1.1\" 200 {bytes} \"-\" \"curl\"\n")
    };
    lines.iter().map(line).collect()
}

/// Lines of nginx with durations, with the time of the request's end.
fn timed(lines: &[(&str, &str)]) -> String {
    let line = |(end, duration): &(&str, &str)| {
        format!(
            "203.0.113.7 - - [10/Oct/2026:{end} +0000] \"GET /a HTTP/1.1\" 200 7 \"-\" \"curl\" {duration}\n"
        )
    };
    lines.iter().map(line).collect()
}

#[test]
fn policies_are_charged_together_or_not_at_all() {
    let policies = "
        [[policies]]
        name = 'minute'
        quota = '1/min'
        algorithm = 'fixed-window'
        [[policies]]
        name = 'hour'
        quota = '5/hour'
        algorithm = 'fixed-window'";
    let output = replay_with(policies, &[], &combined(&[("10:00:00", 1), ("10:00:01", 1), ("10:01:00", 1)]));
    let verdicts = verdicts(&output);
    assert_eq!(each(&verdicts, "allowed"), [&json!(true), &json!(false), &json!(true)]);
    assert_eq!(each(&verdicts, "policy"), [&json!("minute"); 3]);
    let left = verdicts.iter().map(|verdict| policy(verdict, "hour")["remaining"].clone());
    assert_eq!(left.collect::<Vec<_>>(), [json!(4), json!(4), json!(3)]);
    assert_eq!(verdicts[1]["retry_after_us"], 59_000_000);
    let summary = errors(&output);
    assert!(summary.contains("3 requests, 1 denied (33.3 %)"), "{summary}");
    assert!(
        summary.contains("minute by address (1/min): 1 denied, 1 by no other policy; 1 of 1 clients"),
        "{summary}"
    );
    assert!(summary.contains("hour by address (5/h): 0 denied"), "{summary}");
}

#[test]
fn a_json_line_has_several_charges_and_each_policy_a_verdict() {
    let policies = "
        [[policies]]
        name = 'a'
        quota = '3/min'
        algorithm = 'fixed-window'
        [[policies]]
        name = 'b'
        quota = '10/hour'
        algorithm = 'fixed-window'";
    let line = |cost: u64| {
        json!({"t": 1_767_225_600_000_000_u64, "op": "charge", "charges": [
            {"policy": "b", "key": "k", "cost": cost}, {"policy": "a", "key": "k"}]})
    };
    let verdicts = verdicts(&replay_with(policies, &[], &format!("{}\n{}\n", line(6), line(6))));
    let part = |name: &str,
                cost: u64,
                allowed: bool,
                granted: u64,
                limit: u64,
                remaining: u64,
                wait: Value,
                reset: u64| {
        json!({
            "policy": name, "key": "k", "cost": cost, "shadow": false, "allowed": allowed, "granted": granted,
            "limit": limit, "remaining": remaining, "retry_after_us": wait, "reset_after_us": reset, "delay_us": 0,
            "banned_for_us": null,
        })
    };
    let (minute, hour) = (60_000_000, 3_600_000_000);
    assert_eq!(
        verdicts[0],
        json!({
            "t": 1_767_225_600_000_000_u64, "op": "charge", "policy": "b", "allowed": true, "granted": 6, "limit": 10,
            "remaining": 4, "retry_after_us": null, "reset_after_us": hour, "delay_us": 0,
            "policies": [
                part("b", 6, true, 6, 10, 4, Value::Null, hour), part("a", 1, true, 1, 3, 2, Value::Null, minute),
            ],
        })
    );
    assert_eq!((&verdicts[1]["allowed"], &verdicts[1]["policy"]), (&json!(false), &json!("b")));
    assert_eq!(verdicts[1]["retry_after_us"], hour);
    let denied =
        [part("b", 6, false, 0, 10, 4, json!(hour), hour), part("a", 1, true, 1, 3, 2, Value::Null, minute)];
    assert_eq!(verdicts[1]["policies"], json!(denied));
}

#[test]
fn a_rule_has_its_own_key_and_cost() {
    let policies = "
        [[policies]]
        name = 'client'
        quota = '100/min'
        [[policies]]
        name = 'plan'
        quota = '10/min'";
    let log =
        [("a", "free", 4), ("b", "free", 6), ("c", "free", 1), ("c", "paid", 1)].map(|(key, plan, units)| {
            let line =
                json!({"t": 1_767_225_600_000_000_u64, "key": key, "user": {"plan": plan}, "units": units});
            format!("{line}\n")
        });
    let options = ["--key", "plan=field:user.plan", "--cost", "plan=field:units"];
    let output = replay_with(policies, &options, &log.concat());
    assert_eq!(allowed(&output), [true, true, false, true]);
    let verdicts = verdicts(&output);
    let keys = ["client", "plan"].map(|name| policy(&verdicts[2], name)["key"].clone());
    assert_eq!(keys, [json!("c"), json!("free")]);
    assert_eq!(policy(&verdicts[1], "plan")["cost"], 6);
}

#[test]
fn a_request_without_a_key_is_not_charged_and_is_counted() {
    let policies = "[[policies]]\nname = 'user'\nquota = '1/min'";
    let log = combined(&[("10:00:00", 1), ("10:00:00", 1)]).replacen("- -", "- bob", 1);
    let output = replay_with(policies, &["--key", "user"], &log);
    assert_eq!(verdicts(&output)[1]["error"], "no user for the policy `user`");
    let note = "note: 1 requests have no user, so the policy user cannot identify the client";
    assert!(errors(&output).contains(note), "{}", errors(&output));
}

#[test]
fn a_json_line_without_a_key_is_not_charged_to_the_key_of_all_such_lines() {
    let policies = "[[policies]]\nname = 'user'\nquota = '1/min'";
    let line = r#"{"t": 1767225600000000}"#;
    let output = replay_with(policies, &[], &format!("{line}\n{line}\n"));
    assert_eq!(verdicts(&output)[1]["error"], "no key for the policy `user`");
    let keyed = r#"{"t": 1767225600000000, "key": "alice"}"#;
    let output = replay_with(policies, &["--key", "key|all"], &format!("{line}\n{keyed}\n{line}\n"));
    assert_eq!(allowed(&output), [true, true, false]);
}

#[test]
fn response_bytes_beyond_the_quota_are_debt() {
    let policies = "
        [[policies]]
        name = 'bytes'
        quota = '100/min'
        max_debt = 200
        quota_unit = 'content-bytes'";
    // Of 250 bytes, 150 are debt, which takes 90 seconds.
    let log = combined(&[("10:00:00", 250), ("10:00:30", 1), ("10:01:30", 1), ("10:01:31", 1)]);
    assert_eq!(allowed(&replay_with(policies, &["--cost", "bytes"], &log)), [true, false, false, true]);
    // Without the bytes, each request costs one unit.
    assert_eq!(allowed(&replay_with(policies, &[], &log)), [true; 4]);
}

#[test]
fn a_penalty_bans_a_client() {
    let policies = "
        [[policies]]
        name = 'login'
        quota = '1/min'
        penalty = { after = 2, within = '1min', ban = '10min' }";
    let times = ["10:00:00", "10:00:01", "10:00:02", "10:05:00", "10:10:03"].map(|time| (time, 1));
    let output = replay_with(policies, &[], &combined(&times));
    assert_eq!(allowed(&output), [true, false, false, false, true]);
    let verdicts = verdicts(&output);
    let bans = verdicts.iter().map(|verdict| policy(verdict, "login")["banned_for_us"].clone());
    let (whole, rest) = (json!(600_000_000), json!(302_000_000));
    assert_eq!(bans.collect::<Vec<_>>(), [Value::Null, Value::Null, whole, rest, Value::Null]);
}

#[test]
fn permits_are_held_from_the_arrival_to_the_end_of_a_request() {
    let policies = "
        [[policies]]
        name = 'in-flight'
        quota = '1/30s'
        algorithm = 'concurrency'";
    // The second line arrived first, and was running when the first line's request came.
    let log = timed(&[("10:00:05", "0.500"), ("10:00:10", "10.000"), ("10:00:10", "0.000")]);
    let output = replay_with(policies, &[], &log);
    assert_eq!(allowed(&output), [true, false, true]);
    let lines = [json!(2), json!(1), json!(3)];
    assert_eq!(each(&verdicts(&output), "line"), lines.each_ref());
    // A permit is renewed while its request runs longer than the expiry.
    let log = timed(&[("10:01:30", "0.000"), ("10:01:40", "100.000"), ("10:01:41", "0.000")]);
    assert_eq!(allowed(&replay_with(policies, &["--reorder", "3min"], &log)), [true, false, true]);
    // Unsorted, the long request is decided when its line comes.
    let output = replay_with(
        policies,
        &["--reorder", "1s"],
        &timed(&[
            ("10:01:00", "0.000"),
            ("10:01:30", "0.000"),
            ("10:01:40", "100.000"),
            ("10:01:41", "0.000"),
        ]),
    );
    assert!(errors(&output).contains("note: 1 requests were logged too late"), "{}", errors(&output));
    // Without durations, the limit cannot be replayed.
    let output = replay_with(policies, &[], &combined(&[("10:00:00", 1), ("10:00:00", 1)]));
    assert_eq!(allowed(&output), [true, true]);
    assert!(errors(&output).contains("note: 2 admitted requests have no duration"), "{}", errors(&output));
}

#[test]
fn a_shadow_counts_and_denies_nothing() {
    let policies = "
        [[policies]]
        name = 'enforced'
        quota = '2/min'
        [[policies]]
        name = 'strict'
        quota = '1/min'
        enforced = 0";
    let output = replay_with(policies, &[], &combined(&[("10:00:00", 1); 3]));
    assert_eq!(allowed(&output), [true, true, false]);
    let verdicts = verdicts(&output);
    let strict: Vec<&Value> = verdicts.iter().map(|verdict| &policy(verdict, "strict")["allowed"]).collect();
    assert_eq!(strict, [&json!(true), &json!(false), &json!(false)]);
    assert_eq!(policy(&verdicts[0], "strict")["shadow"], true);
    let line =
        "strict by address (1/min): 0 denied, 2 more as a shadow, 0 by no other policy; 1 of 1 clients";
    assert!(errors(&output).contains(line), "{}", errors(&output));
}

#[test]
fn a_month_begins_with_the_calendar_and_its_zone() {
    let log = [
        "30/Sep/2026:21:59:58 +0000",
        "30/Sep/2026:21:59:59 +0000",
        "30/Sep/2026:18:00:00 -0400",
        "30/Sep/2026:23:59:59 +0000",
        "30/Sep/2026:19:00:00 -0500",
    ]
    .map(|time| format!("203.0.113.7 - - [{time}] \"GET / HTTP/1.1\" 200 1\n"));
    let replay = |quota: &str| {
        let policies = format!("[[policies]]\nname = 'plan'\nquota = {quota}");
        allowed(&replay_with(&policies, &[], &log.concat()))
    };
    assert_eq!(replay("'2/month'"), [true, true, false, false, true]);
    // Berlin is two hours ahead.
    let berlin = "{ limit = 2, per = 'month', zone = 'Europe/Berlin' }";
    assert_eq!(replay(berlin), [true, true, true, true, false]);
}

#[test]
fn a_log_in_whole_seconds_is_too_coarse_for_a_short_period() {
    let note = |quota: &str, log: &str| {
        let output = replay_with(&format!("[[policies]]\nname = 'api'\nquota = '{quota}'"), &[], log);
        errors(&output).contains("note: The log's times are whole seconds.")
    };
    let whole = combined(&[("10:00:00", 1)]);
    assert!(note("1/s", &whole));
    assert!(!note("1/min", &whole));
    assert!(!note("1/s", &timed(&[("10:00:00", "0.250")])));
}

#[test]
fn a_json_file_of_policies_is_read_like_toml() {
    let directory = Directory::new();
    let path = directory.file("limits.json");
    let policies = json!({"enforcement": "report-only", "policies": [{"name": "api", "quota": "1/min"}]});
    fs::write(&path, policies.to_string()).unwrap();
    let options = ["--policies", path.to_str().unwrap(), "--verdicts"];
    let output = replay(&options, combined(&[("10:00:00", 1); 2]));
    assert_eq!(allowed(&output), [true, false]);
    assert!(
        errors(&output).contains("note: The file sets the enforcement to report-only"),
        "{}",
        errors(&output)
    );
}

#[test]
fn a_json_line_refunds_debits_releases_and_bans() {
    let policies = "
        [[policies]]
        name = 'in-flight'
        quota = '1/30s'
        algorithm = 'concurrency'
        [[policies]]
        name = 'units'
        quota = '10/min'
        algorithm = 'fixed-window'
        max_debt = 5
        penalty = 'manual'";
    let second = |second: u64| 1_767_225_600_000_000 + second * 1_000_000;
    let units = json!([{"policy": "units", "key": "a", "cost": 4}]);
    let permit = json!([{"policy": "in-flight", "key": "a"}]);
    let rows = [
        (json!({"t": second(0), "op": "charge", "id": "first", "charges": units}), true, 6),
        (json!({"t": second(1), "op": "refund", "of": "first", "cost": 2}), true, 8),
        (
            json!({"t": second(2), "op": "debit", "charges": [{"policy": "units", "key": "a", "cost": 9}]}),
            true,
            0,
        ),
        (json!({"t": second(3), "op": "charge", "charges": units}), false, 0),
        (
            json!({"t": second(4), "op": "refund", "charges": [{"policy": "units", "key": "a", "cost": 8}]}),
            true,
            7,
        ),
        (json!({"t": second(5), "op": "charge", "id": "held", "charges": permit}), true, 0),
        // Longer than the expiry of a permit.
        (json!({"t": second(90), "op": "charge", "charges": permit}), false, 0),
        (json!({"t": second(91), "op": "release", "of": "held", "charges": permit}), true, 1),
        (json!({"t": second(92), "op": "charge", "charges": permit, "duration_us": 2_000_000}), true, 0),
        (json!({"t": second(93), "op": "charge", "charges": permit}), false, 0),
        (json!({"t": second(94), "op": "peek", "charges": permit}), true, 1),
        (json!({"t": second(95), "op": "ban", "ban_us": 1_000_000, "charges": units}), false, 0),
        (json!({"t": second(95), "op": "charge", "charges": units}), false, 0),
        (json!({"t": second(95), "op": "unban", "charges": units}), true, 10),
        (json!({"t": second(95), "op": "set-quota", "limit": 3, "charges": units}), true, 3),
    ];
    let log: String = rows.iter().map(|(line, ..)| format!("{line}\n")).collect();
    let verdicts = verdicts(&replay_with(policies, &[], &log));
    for ((line, allowed, remaining), verdict) in rows.iter().zip(&verdicts) {
        assert_eq!(
            (&verdict["allowed"], &verdict["remaining"]),
            (&json!(allowed), &json!(remaining)),
            "{line}: {verdict}"
        );
    }
}

#[test]
fn several_policies_decide_the_same_on_redis_and_leave_nothing_there() {
    let policies = "
        [[policies]]
        name = 'in-flight'
        quota = '2/30s'
        algorithm = 'concurrency'
        [[policies]]
        name = 'strict'
        quota = '1/min'
        enforced = 0
        [[policies]]
        name = 'units'
        quota = '30/min'
        max_debt = 50
        penalty = { after = 3, within = '1min', ban = '10min' }";
    let mut random = fastrand::Rng::with_seed(1);
    let (mut time, mut log) = (1_767_225_600_000_000_u64, String::new());
    for number in 0..200 {
        time += random.u64(..2_000_000);
        let op = *random.choice(&["charge", "charge", "charge", "peek", "debit"]).unwrap();
        let mut line =
            json!({"t": time, "key": format!("k{}", random.u8(..2)), "op": op, "cost": random.u64(1..3)});
        match random.u8(..3) {
            0 => line["duration_us"] = json!(random.u64(..40_000_000)),
            1 => line["id"] = json!(format!("{number}")),
            _ => {}
        }
        log += &format!("{line}\n");
    }
    let server = RedisServer::start();
    let memory = verdicts(&replay_with(policies, &[], &log));
    let redis = verdicts(&replay_with(policies, &["--store", &server.url()], &log));
    for (memory, redis) in memory.iter().zip(&redis) {
        assert_eq!(memory, redis);
    }
    let denied = |verdict: &&Value| verdict["allowed"] == false;
    assert!((20..180).contains(&memory.iter().filter(denied).count()), "{memory:?}");
    let left: Vec<String> = server.command(&["KEYS", "*"]);
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_line_that_cannot_be_carried_out_is_skipped() {
    let policies = "[[policies]]\nname = 'a'\nquota = '9/min'\n[[policies]]\nname = 'b'\nquota = '9/min'";
    let twice = json!([{"policy": "a", "key": "k"}, {"policy": "a", "key": "k"}]);
    let rows = [
        (json!({"t": 1, "charges": twice}), "two charges have the same key"),
        (json!({"t": 1, "key": "k", "op": "charge-up-to"}), "is for one charge"),
        (json!({"t": 1, "key": "k", "op": "release"}), "needs the id of a decision"),
        (json!({"t": 1, "key": "k", "op": "refund", "of": "x"}), "no decision has the id `x`"),
        (json!({"t": 1, "key": "k", "op": "ban"}), "`ban` needs a time"),
        (json!({"t": 1, "key": "k", "op": "unban", "policy": "a"}), "has no penalty"),
        (json!({"t": 1, "key": "k", "op": "set-quota", "limit": 0}), "limit must be at least 1"),
    ];
    let log: String = rows.iter().map(|(line, _)| format!("{line}\n")).collect();
    let verdicts = verdicts(&replay_with(policies, &[], &log));
    for ((line, message), verdict) in rows.iter().zip(&verdicts) {
        assert!(verdict["error"].as_str().is_some_and(|error| error.contains(message)), "{line}: {verdict}");
    }
}
