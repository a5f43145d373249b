//! Runs the lines `curl ..` in the doc comment of an example.

use axum::Router;
use http::Request;
use tower_ratelimit::{MemoryStore, store::ManualClock};

use crate::http::{Client, serve};

/// A store whose clock stands still, so that the numbers are exact.
pub fn store() -> MemoryStore {
    MemoryStore::with_clock(ManualClock::new())
}

/// A line `curl ..`, and the lines below it: a status, headers, a body.
struct Exchange {
    curl: Vec<String>,
    answers: Vec<String>,
}

/// The exchanges in the doc comment at the top of `source`.
fn exchanges(source: &str) -> Vec<Exchange> {
    let mut found: Vec<Exchange> = Vec::new();
    for line in source.lines().map_while(|line| line.strip_prefix("//!")) {
        if let Some(curl) = line.strip_prefix(" curl ") {
            // Words are quoted or not, as in a shell.
            let curl = curl.split('\'').enumerate().flat_map(|(i, text)| match i % 2 {
                0 => text.split_whitespace().map(String::from).collect(),
                _ => vec![text.to_owned()],
            });
            found.push(Exchange { curl: curl.collect(), answers: Vec::new() });
        } else if let (Some(answer), Some(exchange)) = (line.strip_prefix("     "), found.last_mut()) {
            exchange.answers.push(answer.to_owned());
        }
    }
    found
}

/// Sends every curl line to `app` and asserts that the response is the one below it. `count` is the expected number
/// of lines, so that none is overlooked.
pub async fn says_what_is_written(app: Router, source: &str, count: usize) {
    let server = serve(app).await;
    let client = Client::new();
    let exchanges = exchanges(source);
    assert_eq!(exchanges.len(), count);
    for Exchange { curl, answers } in exchanges {
        let line = curl.join(" ");
        let url = curl.last().unwrap().replace("http://127.0.0.1:3000", &format!("http://{server}"));
        let option = |name: &str| curl.iter().position(|word| word == name).map(|at| curl[at + 1].clone());
        let data = option("-d");
        let usual = if data.is_some() { "POST" } else { "GET" };
        let method = option("-X").unwrap_or_else(|| usual.to_owned());
        let mut request = Request::builder().method(&*method).uri(&url);
        for (at, _) in curl.iter().enumerate().filter(|(_, word)| *word == "-H") {
            let (name, value) = curl[at + 1].split_once(": ").unwrap();
            request = request.header(name, value);
        }
        let response = client.send(request.body(data.unwrap_or_default()).unwrap()).await;
        assert_eq!(response.status().as_str(), answers[0], "{line}");
        let headers = response.headers().clone();
        let body = response.into_body();
        for answer in &answers[1..] {
            match answer.split_once(": ") {
                Some((name, value)) if !name.contains([' ', '"']) => {
                    let lines: Vec<_> =
                        headers.get_all(name).iter().map(|line| line.to_str().unwrap()).collect();
                    assert_eq!(lines.join(", "), value, "{name} of {line}");
                }
                _ => assert_eq!(body.trim_end(), answer, "{line}"),
            }
        }
    }
}
