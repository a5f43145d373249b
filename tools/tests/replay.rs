//! The tool `replay`, as users run it.

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};
use support::RedisServer;

fn replay(options: &[&str], input: &str) -> Output {
    let mut process = Command::new(env!("CARGO_BIN_EXE_replay"))
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that rejects its options does not read.
    let _ = process.stdin.take().unwrap().write_all(input.as_bytes());
    process.wait_with_output().unwrap()
}

fn verdicts(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

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
    let summary = String::from_utf8(output.stderr).unwrap();
    assert!(summary.contains("8 requests of 2 keys, 1 denied (12.5 %)"), "{summary}");
    assert!(summary.contains("         1  a\n"), "{summary}");
}

#[test]
fn access_logs_are_read_and_invalid_lines_are_skipped() {
    let log = "\
203.0.113.7 - - [10/Oct/2026:13:55:36 +0000] \"GET / HTTP/1.1\" 200 12 \"-\" \"curl\"\n\
203.0.113.7 - - [10/Oct/2026:15:55:36 +0200] \"GET / HTTP/1.1\" 200 12 \"-\" \"curl\"\n\
this is not an access log\n\
2001:db8::1 - bob [10/Oct/2026:13:55:37 +0000] \"GET / HTTP/1.1\" 200 12\n\
\n";
    let output = replay(&["--limit", "1", "--period", "1min", "--format", "combined", "--verdicts"], log);
    assert!(output.status.success());
    let allowed: Vec<Value> =
        verdicts(&output).into_iter().map(|verdict| verdict["allowed"].clone()).collect();
    // The second line has the same time in another time zone.
    assert_eq!(allowed, [json!(true), json!(false), Value::Null, json!(true), Value::Null]);
    let summary = String::from_utf8(output.stderr).unwrap();
    assert!(summary.contains("2 lines did not parse"), "{summary}");
    assert_eq!(summary.matches("this is not an access log").count(), 1, "{summary}");
}

#[test]
fn invalid_options_are_errors_that_name_the_problem() {
    let rows: [(&[&str], &str); 6] = [
        (&["--limit", "0", "--period", "1s"], "limit must be at least 1"),
        (&["--limit", "1", "--period", "soon"], "--period"),
        (&["--limit", "1", "--period", "1s", "--algorithm", "sliding-log", "--burst", "2"], "has no burst"),
        (&["--limit", "1", "--period", "1s", "--segments", "5"], "--segments is of no use"),
        (&["--limit", "1", "--period", "1s", "no such file"], "cannot read no such file"),
        (&["--limit", "1", "--period", "1s", "--store", "redis://127.0.0.1:1"], "cannot connect to Redis"),
    ];
    for (options, message) in rows {
        let output = replay(options, "");
        assert!(!output.status.success(), "{options:?}");
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains(message), "{options:?}: {errors}");
    }
}
