//! The first example of the README, in separate processes.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

use support::{
    RedisServer,
    http::{Client, Tally, hammer},
};

/// A running quickstart, killed when dropped.
struct Quickstart {
    process: Child,
    address: SocketAddr,
}

impl Quickstart {
    fn start(settings: &[(&str, &str)]) -> Self {
        let mut process = command(settings).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.as_mut().unwrap()).lines().map_while(Result::ok);
        // The line about the connection to Redis is the first one.
        let line = lines.find(|line| line.contains("http://")).unwrap();
        let address = line.split("http://").nth(1).and_then(|rest| rest.split(',').next());
        let address = address.unwrap_or_else(|| panic!("no address in {line:?}")).parse().unwrap();
        Self { process, address }
    }
}

impl Drop for Quickstart {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn command(settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quickstart"));
    command.env("PORT", "0").env_remove("REDIS_URL").env_remove("LIMIT").env_remove("PERIOD_SECS");
    command.envs(settings.iter().copied());
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_on_one_redis_admit_exactly_the_limit() {
    let redis = RedisServer::start();
    let settings = [("REDIS_URL", redis.url()), ("LIMIT", "50".into()), ("PERIOD_SECS", "3600".into())];
    let settings = settings.each_ref().map(|(name, value)| (*name, value.as_str()));
    let processes = [Quickstart::start(&settings), Quickstart::start(&settings)];
    let tally = hammer(&processes.each_ref().map(|process| process.address), 64, 2_000).await;
    assert_eq!(tally, Tally { ok: 50, limited: 1_950, other: 0 });
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_in_memory_admits_exactly_the_limit() {
    let process = Quickstart::start(&[("LIMIT", "50"), ("PERIOD_SECS", "3600")]);
    let tally = hammer(&[process.address], 64, 2_000).await;
    assert_eq!(tally, Tally { ok: 50, limited: 1_950, other: 0 });
    let client = Client::new();
    for _ in 0..100 {
        let health = client.get(&format!("http://{}/health", process.address)).await;
        assert_eq!(health.status(), 200);
    }
}

#[test]
fn an_invalid_setting_ends_the_program_with_a_message_that_says_what_to_do() {
    let rows = [
        ("no number", vec![("LIMIT", "many")], "LIMIT must be a number, not \"many\""),
        ("no limit", vec![("LIMIT", "0")], "a quota's limit must be at least 1"),
        (
            "malformed URL",
            vec![("REDIS_URL", "redis//:hunter2@nowhere")],
            "write redis://[user:password@]host",
        ),
        (
            "no server",
            vec![("REDIS_URL", "redis://:hunter2@127.0.0.1:1")],
            "cannot connect to Redis at 127.0.0.1:1",
        ),
    ];
    for (name, settings, message) in rows {
        let output = command(&settings).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{name}");
        assert!(errors.contains(message), "{name}: {errors}");
        assert!(!errors.contains("hunter2"), "{name}: {errors}");
    }
}
