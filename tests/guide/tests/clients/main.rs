//! Two of the clients of the guide `clients`, real ones: `.ci/test-clients` installs them and runs this.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use std::{
    env,
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::Request,
    middleware::{Next, from_fn},
    routing::get,
};
use http::header::RETRY_AFTER;
use support::http::serve;
use tokio::process::Command;
use tower_ratelimit::{
    Key, MemoryStore, Policy, Quota, RateLimitLayer, algorithm::FixedWindow, store::ManualClock,
};

/// The status of a response, its `Retry-After`, and when its request came and it was sent.
type Answer = (u16, Option<u64>, [Instant; 2]);

/// What the service answers two requests of `client`, which waits at most `longest` seconds for a retry, and what the
/// client gets. The clock of the limit, one request in `period`, goes on by the wait of a denial.
async fn exchange(client: &str, period: Duration, longest: u64) -> (Vec<Answer>, String) {
    let clock = ManualClock::new();
    let policy = Policy::new("api", Quota::new(1, period)).algorithm(FixedWindow::anchored());
    let limit = RateLimitLayer::new(MemoryStore::with_clock(clock.clone()), policy, Key::new("all"));
    let answers = Arc::<Mutex<Vec<Answer>>>::default();
    let log = {
        let answers = answers.clone();
        from_fn(move |request: Request, next: Next| {
            let (answers, clock, came) = (answers.clone(), clock.clone(), Instant::now());
            async move {
                let response = next.run(request).await;
                let wait =
                    response.headers().get(RETRY_AFTER).map(|wait| wait.to_str().unwrap().parse().unwrap());
                clock.advance(Duration::from_secs(wait.unwrap_or_default()));
                answers.lock().unwrap().push((response.status().as_u16(), wait, [came, Instant::now()]));
                response
            }
        })
    };
    let service = serve(Router::new().route("/", get(async || "hello")).layer(limit).layer(log)).await;
    let python = env::var("CLIENTS_PYTHON").unwrap_or_else(|_| panic!("`.ci/test-clients` runs this test"));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/clients.py");
    let output = Command::new(python)
        .args([script, client, &format!("http://{service}/"), &longest.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{client}");
    let answers = answers.lock().unwrap().clone();
    (answers, String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

fn statuses(answers: &[Answer]) -> Vec<(u16, Option<u64>)> {
    answers.iter().map(|(status, wait, _)| (*status, *wait)).collect()
}

const CLIENTS: [&str; 2] = ["urllib3", "httpx"];

#[tokio::test]
async fn they_wait_as_long_as_a_denial_states() {
    for client in CLIENTS {
        let (answers, got) = exchange(client, Duration::from_secs(2), 60).await;
        assert_eq!(statuses(&answers), [(200, None), (429, Some(2)), (200, None)], "{client}");
        assert_eq!(got, "200 200", "{client}");
        let [(_, _, [_, denied]), (_, _, [again, _])] = answers[1..] else { unreachable!() };
        assert!(again - denied >= Duration::from_secs(2), "{client}: {:?}", again - denied);
    }
}

/// Why the guide tells their users to set a longest wait: otherwise, this would take hours, or minutes.
#[tokio::test]
async fn they_wait_no_longer_than_their_setting() {
    for client in CLIENTS {
        let (answers, got) = exchange(client, Duration::from_secs(864_000), 1).await;
        assert_eq!(statuses(&answers), [(200, None), (429, Some(864_000)), (200, None)], "{client}");
        assert_eq!(got, "200 200", "{client}");
    }
}
