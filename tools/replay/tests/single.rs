//! JSON lines about one policy.

use serde_json::json;
use support::RedisServer;

use crate::{errors, replay, verdicts};

const LINES: &str = r#"{"t": 1767225600000000, "key": "a", "cost": 3}
{"t": 1767225600100000, "key": "a", "cost": 4, "op": "peek"}
{"t": 1767225600100000, "key": "a", "cost": 4, "op": "take-up-to"}
{"t": 1767225600200000, "key": "b"}
{"t": 1767225600200000, "key": "a"}
{"t": 1767225600200000, "key": "a", "cost": 7}
{"t": 1767225600300000, "key": "a", "cost": 2, "op": "refund"}
{"t": 1767225600300000, "key": "a", "cost": 2}
{"t": 1767225600300000, "key": "a", "op": "set-quota", "limit": 10, "period_us": 1000000}
{"t": 1767225600300000, "key": "a", "cost": 2}
{"t": 1767225600300000, "key": "a", "op": "reset"}
{"t": 1767225600299999, "key": "a", "cost": 10}
"#;

#[test]
fn each_algorithm_decides_the_same_on_either_store() {
    let server = RedisServer::start();
    let algorithms: [&[&str]; 10] = [
        &["gcra"],
        &["gcra", "--burst", "6"],
        &["fixed-window"],
        &["fixed-window", "--aligned"],
        &["sliding-log"],
        &["sliding-window", "--segments", "10"],
        &["token-bucket", "--refill-every", "200ms"],
        &["token-bucket", "--initial", "3"],
        &["leaky-bucket"],
        &["leaky-bucket-queue", "--max-wait", "2s", "--delay-after", "3"],
    ];
    for algorithm in algorithms {
        let mut options = vec!["--limit", "5", "--period", "1s", "--verdicts", "--algorithm"];
        options.extend(algorithm);
        let memory = verdicts(&replay(&options, LINES));
        let url = server.url();
        options.extend(["--store", &url]);
        let redis = verdicts(&replay(&options, LINES));
        assert_eq!(memory, redis, "{algorithm:?}");
        assert_eq!(memory.len(), LINES.lines().count(), "{algorithm:?}");
        assert_eq!(memory[0]["key"], "a", "{algorithm:?}");
    }
    let left: Vec<String> = server.command(&["KEYS", "*"]);
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_verdict_line_has_every_field() {
    let output = replay(&["--limit", "5", "--period", "1s", "--verdicts"], LINES);
    let verdicts = verdicts(&output);
    assert_eq!(
        verdicts[2],
        json!({
            "t": 1_767_225_600_100_000_u64, "key": "a", "op": "take-up-to", "allowed": true, "granted": 2, "limit": 5,
            "remaining": 0, "retry_after_us": null, "reset_after_us": 900_000, "delay_us": 0,
        })
    );
    assert_eq!(verdicts[5]["retry_after_us"], "never");
    let summary = errors(&output);
    assert!(summary.contains("8 requests of 2 keys, 1 denied (12.5 %)"), "{summary}");
    assert!(summary.contains("         1  a\n"), "{summary}");
}

#[test]
fn the_histogram_has_every_request_over_any_time_and_in_any_order() {
    let mut random = fastrand::Rng::with_seed(5);
    let (second, start) = (1_000_000, 1_767_225_600_000_000_u64);
    for span in [1, 90, 4_000, 86_400, 40 * 86_400, 200 * 365 * 86_400] {
        let mut times: Vec<u64> = (0..500).map(|_| start + random.u64(..span * second)).collect();
        if random.bool() {
            times.sort_unstable();
        }
        let log: String = times.iter().map(|time| format!("{{\"t\": {time}, \"key\": \"a\"}}\n")).collect();
        let summary = errors(&replay(&["--limit", "1", "--period", "1s"], log));
        let (_, rows) = summary.split_once("= admitted:\n").unwrap();
        let counts = rows.lines().map(|row| row.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
        assert_eq!(counts.clone().sum::<u64>(), 500, "{span}: {summary}");
        assert!(counts.count() <= 24, "{span}: {summary}");
    }
}
