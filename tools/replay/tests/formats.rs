//! The formats of access logs: which are detected, what is read from them, and what is done with other lines.

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};

use crate::{each, errors, replay, verdicts};

/// A format, and a line of it: a request that arrived on 2026-10-10 at 13:55:36.
struct Fixture {
    format: &'static str,
    /// The arrival, in microseconds after 13:55:36.
    micros: i64,
    line: &'static str,
}

const FIXTURES: [Fixture; 8] = [
    Fixture {
        format: "jsonl",
        micros: 250_000,
        line: r#"{"t": 1791640536250000, "key": "203.0.113.7", "user": {"id": 42, "roles": ["admin"]}}"#,
    },
    Fixture {
        format: "common",
        micros: 0,
        line: r#"203.0.113.7 - bob [10/Oct/2026:13:55:36 +0000] "GET /api/v1/items?id=7 HTTP/1.1" 200 2326"#,
    },
    Fixture {
        format: "combined",
        micros: 0,
        line: r#"203.0.113.7 - bob [10/Oct/2026:15:55:36 +0200] "GET /api/v1/items?id=7 HTTP/1.1" 200 2326 "https://example.com/\"start\"" "Mozilla/5.0 (X11)""#,
    },
    Fixture {
        format: "nginx-timed",
        micros: 0,
        line: r#"203.0.113.7 - bob [10/Oct/2026:13:55:39 +0000] "GET /api/v1/items?id=7 HTTP/2.0" 200 2326 "-" "Mozilla/5.0 (X11)" 3.000"#,
    },
    Fixture {
        format: "apache-micros",
        micros: 0,
        line: r#"203.0.113.7 - bob [10/Oct/2026:13:55:36 +0000] "GET /api/v1/items?id=7 HTTP/1.1" 200 2326 "-" "Mozilla/5.0 (X11)" 3000000"#,
    },
    Fixture {
        format: "apache-seconds",
        micros: 0,
        line: r#"203.0.113.7 - bob [10/Oct/2026:13:55:36 +0000] "GET /api/v1/items?id=7 HTTP/1.1" 200 2326 "-" "Mozilla/5.0 (X11)" 3"#,
    },
    Fixture {
        format: "caddy",
        micros: 500_000,
        line: r#"{"level":"info","ts":1791640539.5,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"10.0.0.1","remote_port":"41342","client_ip":"203.0.113.7","proto":"HTTP/2.0","method":"GET","host":"example.com","uri":"/api/v1/items?id=7","headers":{"User-Agent":["Mozilla/5.0 (X11)"],"X-Api-Key":["k-17"]}},"bytes_read":0,"user_id":"bob","duration":3,"size":2326,"status":200,"resp_headers":{}}"#,
    },
    Fixture {
        format: "alb",
        micros: 186_641,
        line: r#"https 2026-10-10T13:55:39.186641Z app/my-loadbalancer/50dc6c495c0c9188 203.0.113.7:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 34 2326 "GET https://www.example.com:443/api/v1/items?id=7 HTTP/1.1" "Mozilla/5.0 (X11)" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067 "Root=1-58337281-1d84f3d73c47ec4e58577259" "www.example.com" "arn:aws:acm:us-east-2:123456789012:certificate/1" 1 2026-10-10T13:55:36.186641Z "authenticate,forward" "-" "-" "10.0.0.1:80" "200" "-" "-" TID_dc57cebed65b444ebc8177bf698f4b97"#,
    },
];

/// 2026-10-10T13:55:36Z in microseconds.
const START: i64 = 1_791_640_536_000_000;

const ONCE: [&str; 5] = ["--limit", "1", "--period", "1h", "--verdicts"];

fn with<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&ONCE, options].concat()
}

#[test]
fn each_format_is_detected_and_shows_the_client_and_the_arrival() {
    for Fixture { format, micros, line } in FIXTURES {
        let output = replay(&ONCE, format!("{line}\n{line}\n"));
        let verdicts = verdicts(&output);
        if format != "jsonl" {
            assert!(
                errors(&output).contains(&format!("format of the input is {format}\n")),
                "{}",
                errors(&output)
            );
        }
        assert_eq!(each(&verdicts, "key"), [&json!("203.0.113.7"); 2], "{format}");
        assert_eq!(each(&verdicts, "t"), [&json!(START + micros); 2], "{format}");
        assert_eq!(each(&verdicts, "allowed"), [&json!(true), &json!(false)], "{format}");
    }
}

#[test]
fn a_key_is_any_part_of_a_line() {
    let rows = [
        ("common", "user", "bob"),
        ("common", "address+user", "203.0.113.7 + bob"),
        ("common", "path", "/api/v1/items"),
        ("combined", "path:1", "/api"),
        ("combined", "path:2+method", "/api/v1 + GET"),
        ("combined", "user-agent", "Mozilla/5.0 (X11)"),
        ("combined", "all", "all"),
        ("caddy", "host", "example.com"),
        ("caddy", "user", "bob"),
        ("caddy", "field:request.headers.X-Api-Key.0", "k-17"),
        ("caddy", "field:request.headers.User-Agent.0", "Mozilla/5.0 (X11)"),
        ("caddy", "field:request.headers.Missing.0|address", "203.0.113.7"),
        ("alb", "path", "/api/v1/items"),
        ("alb", "host", "www.example.com"),
        ("alb", "field:target", "10.0.0.1:80"),
        ("alb", "field:ssl_protocol", "TLSv1.2"),
        ("alb", "field:conn_trace_id", "TID_dc57cebed65b444ebc8177bf698f4b97"),
        ("jsonl", "field:user.id", "42"),
        ("jsonl", "field:user.roles.0", "admin"),
    ];
    for (format, key, expected) in rows {
        let line = FIXTURES.iter().find(|fixture| fixture.format == format).unwrap().line;
        let output = replay(&with(&["--format", format, "--key", key]), line);
        let verdicts = verdicts(&output);
        let policies_key = if format == "jsonl" { json!("203.0.113.7") } else { json!(expected) };
        assert_eq!(verdicts[0]["key"], policies_key, "{format}, {key}");
        // What is counted under: the summary names the client if it is denied.
        let twice = replay(&with(&["--format", format, "--key", key]), format!("{line}\n{line}\n"));
        assert!(errors(&twice).contains(&format!("         1  {expected}\n")), "{key}: {}", errors(&twice));
    }
}

#[test]
fn clients_of_one_ipv6_network_are_one_client() {
    let log = "\
2001:db8::1 - - [10/Oct/2026:13:55:36 +0000] \"GET / HTTP/1.1\" 200 12 \"-\" \"curl\"
2001:db8::2 - - [10/Oct/2026:13:55:36 +0000] \"GET / HTTP/1.1\" 200 12 \"-\" \"curl\"
2001:db8:0:1::1 - - [10/Oct/2026:13:55:36 +0000] \"GET / HTTP/1.1\" 200 12 \"-\" \"curl\"
::ffff:203.0.113.7 - - [10/Oct/2026:13:55:36 +0000] \"GET / HTTP/1.1\" 200 12 \"-\" \"curl\"
";
    let keys = |options: &[&str]| {
        let verdicts = verdicts(&replay(&with(options), log));
        verdicts.iter().map(|verdict| verdict["key"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(keys(&[]), ["2001:db8::/64", "2001:db8::/64", "2001:db8:0:1::/64", "203.0.113.7"]);
    let wide = ["2001:db8::/48", "2001:db8::/48", "2001:db8::/48", "203.0.113.7"];
    assert_eq!(keys(&["--key", "address/48"]), wide);
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
    let verdicts = verdicts(&output);
    // The second line has the same time in another time zone.
    let allowed = [json!(true), json!(false), Value::Null, json!(true), Value::Null];
    assert_eq!(each(&verdicts, "allowed"), allowed.each_ref());
    let lines = [1, 2, 3, 4, 5].map(|line| json!(line));
    assert_eq!(each(&verdicts, "line"), lines.each_ref());
    let summary = errors(&output);
    assert!(summary.contains("2 lines did not parse"), "{summary}");
    assert!(summary.contains("line 3: no time in brackets: this is not an access log"), "{summary}");
}

#[test]
fn a_malformed_line_has_a_reason() {
    let caddy = FIXTURES[6].line;
    let alb = FIXTURES[7].line;
    let rows = [
        ("combined", "203.0.113.7".to_owned(), "no address with a space after it"),
        ("combined", "203.0.113.7 - - \"GET / HTTP/1.1\" 200 12".to_owned(), "no time in brackets"),
        (
            "combined",
            "203.0.113.7 - - [yesterday] \"GET / HTTP/1.1\" 200 12".to_owned(),
            "`yesterday` is not like",
        ),
        (
            "combined",
            "203.0.113.7 - - [10/Oct/2026:13:55:36 +0000] \"GET /".to_owned(),
            "no request in quotes",
        ),
        (
            "combined",
            "203.0.113.7 - - [10/Oct/2026:13:55:36 +0000] \"GET / HTTP/1.1\"".to_owned(),
            "no status",
        ),
        (
            "combined",
            "1.1.1.1 - - [10/Oct/2026:13:55:36 +0000] \"GET /\" 200 many".to_owned(),
            "`many` is not a number",
        ),
        ("combined", "1.1.1.1 - - [10/Oct/1926:13:55:36 +0000] \"GET /\" 200 1".to_owned(), "before 1970"),
        ("nginx-timed", FIXTURES[2].line.to_owned(), "no duration"),
        ("nginx-timed", FIXTURES[5].line.to_owned(), "the duration `3` is not a number"),
        ("apache-micros", FIXTURES[3].line.to_owned(), "the duration `3.000` is not a number"),
        ("caddy", "{}".to_owned(), "missing field `ts`"),
        ("caddy", caddy.replace("1791640539.5", "-1"), "not in seconds since 1970"),
        ("caddy", caddy.replace("client_ip", "a").replace("remote_ip", "b"), "no `client_ip`"),
        ("caddy", caddy[..100].to_owned(), "EOF while parsing"),
        ("alb", FIXTURES[1].line.to_owned(), "not a type of request"),
        ("alb", alb.split_at(80).0.to_owned(), "fields instead of at least 14"),
        ("alb", alb.replace(":2817", ""), "no port"),
        ("alb", alb.replacen("2026-10-10T13:55:39.186641Z", "noon", 1), "`noon` is not like"),
        ("jsonl", "{\"key\": \"a\"}".to_owned(), "missing field `t`"),
        ("jsonl", "{\"t\": 9007199254740992}".to_owned(), "after the year 2255"),
        ("jsonl", "{\"t\": 1, \"op\": \"steal\"}".to_owned(), "unknown op `steal`"),
        ("jsonl", "{\"t\": 1, \"policy\": \"other\"}".to_owned(), "no policy `other`"),
    ];
    for (format, line, reason) in rows {
        let output = replay(&with(&["--format", format]), &line);
        let verdicts = verdicts(&output);
        let error = verdicts[0]["error"].as_str().unwrap_or_else(|| panic!("{format}, {line}: {verdicts:?}"));
        assert!(error.contains(reason), "{format}, {line}: {error}");
        assert!(errors(&output).contains("1 line did not parse"), "{}", errors(&output));
    }
}

#[test]
fn damaged_lines_are_skipped_in_every_format() {
    let mut random = fastrand::Rng::with_seed(7);
    for Fixture { format, line, .. } in FIXTURES {
        let mut log = Vec::new();
        for _ in 0..2_000 {
            let mut line = line.as_bytes().to_vec();
            for _ in 0..random.usize(1..6) {
                let at = random.usize(..line.len());
                match random.u8(..4) {
                    0 => line[at] = random.u8(..),
                    1 => line.truncate(at + 1),
                    2 => drop(line.remove(at)),
                    _ => line.insert(at, *random.choice(b"\"[]\\ {}:-9e.,+").unwrap()),
                }
                if line.is_empty() {
                    line.push(b' ');
                }
            }
            line.retain(|byte| *byte != b'\n');
            log.extend(line);
            log.push(b'\n');
        }
        let keys = if format == "combined" { "path:3|address" } else { "address|all" };
        let output = replay(&with(&["--format", format, "--key", keys]), &log);
        assert_eq!(verdicts(&output).len(), 2_000, "{format}");
    }
}

#[test]
fn a_log_compressed_in_parts_is_read() {
    let part = |line: &str| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        writeln!(encoder, "{line}").unwrap();
        encoder.finish().unwrap()
    };
    let log = [part(FIXTURES[1].line), part(FIXTURES[1].line)].concat();
    let verdicts = verdicts(&replay(&ONCE, log));
    assert_eq!(each(&verdicts, "allowed"), [&json!(true), &json!(false)]);
}

#[test]
fn a_line_beyond_the_bound_is_skipped_and_the_next_is_read() {
    let log = format!("{}\n{}\n", "x".repeat(3 << 20), FIXTURES[1].line);
    let verdicts = verdicts(&replay(&with(&["--format", "common"]), log));
    assert_eq!(each(&verdicts, "allowed"), [&Value::Null, &json!(true)]);
}
