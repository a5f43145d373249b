//! Each version reads what earlier ones keep in Redis: the files `fixtures/state-*.txt`, one for each version that changed it.
//!
//! A part of a file has the name of a policy of [`policies`], the time in microseconds, the keys with their types and values,
//! and what is decided some time later. For a new release, this writes its file:
//!
//! ```text
//! WRITE_STATES=yes cargo test -p tests --test it stored_states
//! ```

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use support::{PATIENT, RedisServer, settings};
use tower_ratelimit::{
    Decision, Error, FailureMode, Key, Limiter, Policy, Quota,
    algorithm::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    policy::Penalty,
    store::ManualClock,
};

use Step::{Ban, Charge, Debit, Raise, Refund, Wait};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone)]
enum Step {
    Charge(u64),
    /// Of the last charge.
    Debit(u64),
    Refund(u64),
    /// Charges these units under a limit that is larger by them.
    Raise(u64),
    Ban(Duration),
    Wait(Duration),
}

/// What makes the state of each policy, at the end without a wait.
fn policies() -> Vec<(&'static str, Policy, Vec<Step>)> {
    let of = |name, quota| Policy::new(name, quota).failure_mode(FailureMode::Closed);
    let ten = |name| of(name, Quota::per_minute(10));
    let some = || vec![Charge(3), Wait(2 * SECOND), Charge(2), Wait(SECOND)];
    let refunded = || vec![Charge(3), Wait(SECOND), Charge(2), Refund(1), Wait(SECOND)];
    let owing = || vec![Charge(6), Debit(9)];
    let denied = || vec![Charge(10), Charge(3), Charge(3)];
    let banned = [denied(), vec![Charge(3), Wait(SECOND)]].concat();
    let by_operator = vec![Charge(2), Ban(90 * SECOND)];
    let leased = |name| of(name, Quota::per_hour(1_000)).max_lease(50);
    let raised = || vec![Charge(8), Wait(SECOND), Raise(5), Wait(30 * SECOND), Charge(1)];
    let penalty = Penalty::after(3, 60 * SECOND).ban(60 * SECOND).up_to(3_600 * SECOND);
    let (window, log, cells) = (FixedWindow::anchored(), SlidingLog::new(), SlidingWindow::new());
    let bucket = TokenBucket::new().starting_at(4).refill_every(6 * SECOND);
    vec![
        ("gcra", ten("gcra"), some()),
        ("gcra, burst", of("gcra, burst", Quota::per_minute(7).burst(20)), some()),
        ("gcra, refunded", ten("gcra, refunded"), refunded()),
        ("gcra, debt", ten("gcra, debt").max_debt(20), owing()),
        ("gcra, raised", ten("gcra, raised"), raised()),
        ("gcra, leased", leased("gcra, leased"), vec![Charge(1); 200]),
        ("meter", ten("meter").algorithm(LeakyBucket::meter()), some()),
        ("queue", ten("queue").algorithm(LeakyBucket::queue(30 * SECOND)), some()),
        ("tokens", ten("tokens").algorithm(TokenBucket::new()), some()),
        ("tokens, in steps", ten("tokens, in steps").algorithm(bucket), some()),
        ("anchored", ten("anchored").algorithm(window), some()),
        ("anchored, refunded", ten("anchored, refunded").algorithm(window), refunded()),
        ("anchored, debt", ten("anchored, debt").algorithm(window).max_debt(20), owing()),
        ("anchored, leased", leased("anchored, leased").algorithm(window), vec![Charge(1); 200]),
        ("aligned", ten("aligned").algorithm(FixedWindow::aligned()), some()),
        ("log", ten("log").algorithm(log), some()),
        ("log, refunded", ten("log, refunded").algorithm(log), refunded()),
        ("log, debt", ten("log, debt").algorithm(log).max_debt(20), owing()),
        ("segments", ten("segments").algorithm(cells), some()),
        ("segments, refunded", ten("segments, refunded").algorithm(cells), refunded()),
        ("segments, debt", ten("segments, debt").algorithm(cells).max_debt(20), owing()),
        ("segments, raised", ten("segments, raised").algorithm(cells), raised()),
        ("permits", Policy::concurrency("permits", 10).failure_mode(FailureMode::Closed), some()),
        ("penalty, denials", ten("penalty, denials").penalty(penalty), denied()),
        ("penalty, ban", ten("penalty, ban").penalty(penalty), banned),
        ("penalty, operator", ten("penalty, operator").penalty(Penalty::manual()), by_operator),
    ]
}

/// Its stored form has an escaped character.
fn key() -> Key {
    Key::new("a:{lice}%")
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("it/fixtures")
}

async fn limiter(server: &RedisServer, clock: &ManualClock) -> Limiter {
    let store = settings().manual_clock(clock.clone()).deny_cache(Duration::ZERO);
    Limiter::new(store.connect(&server.url()).await.unwrap())
}

/// Printable characters as they are, all other bytes as `\xNN`.
fn escaped(bytes: &[u8]) -> String {
    let escape = |byte: &u8| match byte {
        b'!'..=b'~' if *byte != b'\\' => char::from(*byte).to_string(),
        byte => format!("\\x{byte:02x}"),
    };
    bytes.iter().map(escape).collect()
}

fn unescaped(text: &str) -> Vec<u8> {
    let mut parts = text.split("\\x");
    let mut bytes = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend(&part.as_bytes()[2..]);
    }
    bytes
}

/// A line for each key: its type, its name, and the arguments of the command that stores its value.
fn stored(server: &RedisServer) -> Vec<String> {
    let mut keys: Vec<String> = server.command(&["KEYS", "rl:*:{*"]);
    keys.sort();
    let line = |key: &String| {
        let kind: String = server.command(&["TYPE", key]);
        let values: Vec<Vec<u8>> = match &*kind {
            "string" => vec![server.command(&["GET", key])],
            "list" => server.command(&["LRANGE", key, "0", "-1"]),
            "zset" => server.command(&["ZRANGE", key, "0", "-1", "WITHSCORES"]),
            _ => panic!("{key} is a {kind}"),
        };
        let mut values: Vec<_> = values.iter().map(|value| escaped(value)).collect();
        if kind == "zset" {
            values.chunks_exact_mut(2).for_each(|pair| pair.swap(0, 1));
        }
        format!("{kind} {} {}", escaped(key.as_bytes()), values.join(" "))
    };
    keys.iter().map(line).collect()
}

/// Stores what a line of [`stored`] describes.
fn store(server: &RedisServer, line: &str) {
    let mut words = line.split(' ');
    let command = match words.next().unwrap() {
        "string" => "SET",
        "list" => "RPUSH",
        "zset" => "ZADD",
        kind => panic!("unknown type {kind}"),
    };
    let words: Vec<_> = words.map(unescaped).collect();
    let connection = &mut server.connection();
    let () = redis::cmd(command).arg(&words).query(connection).unwrap();
    let () = redis::cmd("EXPIRE").arg(&words[0]).arg(86_400).query(connection).unwrap();
}

/// What is decided with the stored state, as a line for each time after it was stored.
async fn answers(server: &RedisServer, policy: &Policy, time: Duration) -> Vec<String> {
    let clock = ManualClock::new();
    let limiter = limiter(server, &clock).await;
    let text = |decision: Result<&Decision, Error>| match decision {
        Ok(decision) => {
            let one = &decision.outcomes()[0];
            let (reset, banned) = (one.reset_after(), one.banned_for());
            format!(
                "{:?}, {} remain, reset after {reset:?}, banned for {banned:?}",
                one.verdict(),
                one.remaining()
            )
        }
        Err(error) => error.to_string(),
    };
    let mut lines = Vec::new();
    for after in [0, 1, 5, 30, 61, 3_700] {
        clock.set(time + after * SECOND);
        lines.push(match limiter.peek(policy, &key(), 4).await {
            Ok(decision) => {
                let owed = limiter.operator().owed(policy, &key()).await.unwrap();
                format!("after {after} s: {}, {owed} owed", text(Ok(&decision)))
            }
            Err(error) => format!("after {after} s: {}", text(Err(error))),
        });
    }
    clock.set(time + SECOND);
    let charged = limiter.check(policy, &key(), 1).await;
    lines.push(format!("charged: {}", charged.map_or_else(|error| text(Err(error)), |one| text(Ok(&one)))));
    lines
}

/// Takes the steps. Returns the time, and what is stored while the permits are held and the units are on lease.
async fn make(server: &RedisServer, policy: &Policy, steps: &[Step]) -> (Duration, Vec<String>) {
    let clock = ManualClock::new();
    clock.set(Duration::from_secs(1_900_000_001));
    let limiter = limiter(server, &clock).await;
    // A permit is released when its decision is dropped.
    let mut made = Vec::new();
    for step in steps {
        match *step {
            Charge(cost) => made.push(limiter.check(policy, &key(), cost).await.unwrap()),
            Debit(units) => drop(limiter.debit(made.last().unwrap(), units).await.unwrap()),
            Refund(units) => drop(limiter.refund(made.last().unwrap(), units).await.unwrap()),
            Raise(by) => {
                let raised = policy.with_quota(Quota::per_minute(10 + by)).unwrap();
                made.push(limiter.check(&raised, &key(), by).await.unwrap());
            }
            Ban(time) => limiter.operator().ban(policy, &key(), time).await.unwrap(),
            Wait(time) => clock.advance(time),
        }
    }
    let lines = stored(server);
    drop(made);
    limiter.drain(PATIENT).await.unwrap();
    (clock.now(), lines)
}

async fn write(version: &str) {
    let server = RedisServer::start();
    let mut text = format!(
        "# What version {version} keeps in Redis, and what is decided with it. See `stored_states.rs`.\n"
    );
    for (name, policy, steps) in policies() {
        let () = server.command(&["FLUSHALL"]);
        let (time, lines) = make(&server, &policy, &steps).await;
        assert!(!lines.is_empty(), "{name}");
        let () = server.command(&["FLUSHALL"]);
        lines.iter().for_each(|line| store(&server, line));
        writeln!(text, "\n[{name}]\ntime {}", time.as_micros()).unwrap();
        for line in lines.into_iter().chain(answers(&server, &policy, time).await) {
            writeln!(text, "{line}").unwrap();
        }
    }
    fs::write(fixtures().join(format!("state-{version}.txt")), text).unwrap();
}

#[tokio::test]
async fn the_states_of_earlier_versions_are_read() {
    if std::env::var_os("WRITE_STATES").is_some() {
        let manifest =
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml")).unwrap();
        let version = manifest.lines().find_map(|line| line.strip_prefix("version = ")).unwrap();
        write(version.trim_matches('"')).await;
    }
    let server = RedisServer::start();
    for file in fs::read_dir(fixtures()).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let parts: Vec<_> = text.split("\n[").skip(1).collect();
        assert!(parts.len() >= 20, "{}", path.display());
        for part in parts {
            let (name, rest) = part.split_once("]\n").unwrap();
            let (_, policy, _) = policies().into_iter().find(|(found, ..)| *found == name).unwrap();
            let mut lines = rest.trim_end().lines();
            let time = lines.next().unwrap().strip_prefix("time ").unwrap().parse().unwrap();
            let (expected, stored): (Vec<_>, Vec<_>) =
                lines.partition(|line| line.starts_with("after ") || line.starts_with("charged"));
            let () = server.command(&["FLUSHALL"]);
            stored.iter().for_each(|line| store(&server, line));
            let answers = answers(&server, &policy, Duration::from_micros(time)).await;
            assert_eq!(answers, expected, "{}, {name}", path.display());
        }
    }
}
