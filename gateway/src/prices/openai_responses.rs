//! OpenAI's responses.

use std::borrow::Cow;

use serde::{Deserialize, de::IgnoredAny};

use super::{
    chunk::{Chunk, Report},
    text_bytes::TextBytes,
};

/// A whole response, or an event of a stream, whose last event has the response.
#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(rename = "type", borrow)]
    event: Option<Cow<'a, str>>,
    response: Option<Response>,
    delta: Option<TextBytes>,
    output: Option<TextBytes>,
    usage: Option<Tokens>,
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Response {
    usage: Option<Tokens>,
}

#[derive(Deserialize)]
struct Tokens {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    input_tokens_details: Option<InputTokens>,
}

#[derive(Deserialize)]
struct InputTokens {
    cached_tokens: Option<u64>,
}

pub(super) fn read(json: &[u8]) -> Option<Chunk> {
    let Answer { event, response, delta, output, usage, error } = serde_json::from_slice(json).ok()?;
    let usage = usage.or_else(|| response?.usage);
    if event.is_none() && output.is_none() && usage.is_none() && error.is_none() {
        return None;
    }
    let report = usage.map(|usage| {
        let cached = usage.input_tokens_details.and_then(|details| details.cached_tokens);
        Report::with_cached_in_prompt(usage.input_tokens, cached, usage.output_tokens)
    });
    let text = [delta, output].into_iter().flatten().map(|text| text.0).sum();
    let is_error = error.is_some() || matches!(event.as_deref(), Some("error" | "response.failed"));
    Some(Chunk { text, report, is_error, is_only_usage: false })
}
