//! The usage of each form of an answer, wherever its bytes are split.

use bytes::Bytes;
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestRunner},
};
use support::current_thread;
use tower_ratelimit_gateway::prices::{
    Api::{self, AnthropicMessages, Gemini, OpenAiChat, OpenAiResponses},
    Basis, Usage,
};

use super::{Desk, EVENTS, JSON, REQUEST, Then, all_of, response};

struct Form {
    name: &'static str,
    api: Api,
    kind: &'static str,
    body: &'static str,
    usage: Usage,
    basis: Basis,
}

macro_rules! form {
    ($file:literal, $api:expr, $usage:expr, $basis:expr) => {
        Form {
            name: $file,
            api: $api,
            kind: if $file.ends_with(".sse") { EVENTS } else { JSON },
            body: include_str!(concat!("../fixtures/prices/", $file)),
            usage: $usage,
            basis: $basis,
        }
    };
}

fn forms() -> Vec<Form> {
    vec![
        form!("openai-chat.json", OpenAiChat, Usage::new(176, 310).cached_input(1_024), Basis::Reported),
        form!("openai-chat.sse", OpenAiChat, Usage::new(15, 10).cached_input(4), Basis::Reported),
        // Three events with text.
        form!("openai-chat-without-usage.sse", OpenAiChat, Usage::new(10, 3), Basis::Counted),
        // The name of the function, and 14 bytes of its arguments.
        form!("openai-chat-tools.sse", OpenAiChat, Usage::new(10, 5), Basis::Counted),
        form!("openai-responses.json", OpenAiResponses, Usage::new(30, 87).cached_input(6), Basis::Reported),
        form!("openai-responses.sse", OpenAiResponses, Usage::new(32, 11).cached_input(5), Basis::Reported),
        form!(
            "anthropic.json",
            AnthropicMessages,
            Usage::new(2_095, 503).cached_input(2_052).cache_write(2_051),
            Basis::Reported
        ),
        form!(
            "anthropic.sse",
            AnthropicMessages,
            Usage::new(25, 15).cached_input(3).cache_write(7),
            Basis::Reported
        ),
        form!("gemini.json", Gemini, Usage::new(48, 41).cached_input(60), Basis::Reported),
        form!("gemini.sse", Gemini, Usage::new(7, 26).cached_input(2), Basis::Reported),
        form!("gemini-list.json", Gemini, Usage::new(7, 26).cached_input(2), Basis::Reported),
    ]
}

#[tokio::test]
async fn the_usage_of_each_form_is_charged() {
    let desk = Desk::new();
    for Form { name, api, kind, body, usage, basis } in forms() {
        let sent = desk.send(api, REQUEST, response(kind, vec![body.into()], Then::Ends)).await;
        assert_eq!(all_of(sent).await, (body.as_bytes().to_vec(), None), "{name}");
        desk.assert_charged(name, usage, basis).await;
    }
}

/// Splits `body` after each of these lengths, as often as they fit.
fn split(body: &[u8], lengths: &[usize]) -> Vec<Bytes> {
    let mut rest = Bytes::copy_from_slice(body);
    let mut parts = Vec::new();
    for length in lengths.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        parts.push(rest.split_to((*length).min(rest.len())));
    }
    parts
}

#[test]
fn the_usage_and_the_bytes_do_not_depend_on_how_the_body_is_split() {
    let runtime = current_thread();
    let desk = Desk::new();
    // Some parts are empty.
    let lengths = vec(0..60_usize, 1..20).prop_filter("no bytes", |lengths| lengths.iter().any(|n| *n > 0));
    let ends = prop::sample::select(vec!["\n", "\r\n", "\r"]);
    for Form { name, api, kind, body, usage, basis } in forms() {
        let mut runner =
            TestRunner::new(Config { cases: 60, failure_persistence: None, ..Config::default() });
        runner
            .run(&(lengths.clone(), ends.clone()), |(lengths, end)| {
                let body = body.replace('\n', end);
                let parts = split(body.as_bytes(), &lengths);
                runtime.block_on(async {
                    let sent = desk.send(api, REQUEST, response(kind, parts, Then::Ends)).await;
                    assert_eq!(all_of(sent).await, (body.into_bytes(), None), "{name}");
                    desk.assert_charged(name, usage, basis).await;
                });
                Ok(())
            })
            .unwrap();
    }
}

#[test]
fn a_corrupted_body_passes_unchanged_and_costs_something() {
    let runtime = current_thread();
    let desk = Desk::new();
    let changes = vec((any::<prop::sample::Index>(), any::<u8>()), 1..4);
    for Form { name, api, kind, body, .. } in forms() {
        let mut runner =
            TestRunner::new(Config { cases: 60, failure_persistence: None, ..Config::default() });
        runner
            .run(&(changes.clone(), any::<prop::sample::Index>()), |(changes, cut)| {
                let mut body = body.as_bytes().to_vec();
                for (at, byte) in changes {
                    let at = at.index(body.len());
                    body[at] = byte;
                }
                let parts = split(&body, &[cut.index(body.len()) + 1]);
                runtime.block_on(async {
                    let sent = desk.send(api, REQUEST, response(kind, parts, Then::Ends)).await;
                    assert_eq!(all_of(sent).await, (body, None), "{name}");
                });
                let settled = std::mem::take(&mut *desk.settled.lock().unwrap());
                prop_assert_eq!(settled.len(), 1);
                prop_assert!(
                    settled[0].usage.tokens() > 0 && settled[0].micro_dollars > 0,
                    "{}: {:?}",
                    name,
                    settled
                );
                Ok(())
            })
            .unwrap();
    }
}
