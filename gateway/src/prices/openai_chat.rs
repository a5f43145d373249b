//! OpenAI's chat completions, and services with the same interface.

use serde::{Deserialize, de::IgnoredAny};

use super::{
    chunk::{Chunk, Report},
    text_bytes::TextBytes,
};

/// A whole answer, or an event of a stream. The usage of a stream is in its last event, if the request has
/// `stream_options.include_usage`.
#[derive(Deserialize)]
struct Answer {
    choices: Option<Vec<Choice>>,
    usage: Option<Tokens>,
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<TextBytes>,
    message: Option<TextBytes>,
    /// Of the older interface for completions.
    text: Option<TextBytes>,
}

#[derive(Deserialize)]
struct Tokens {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptTokens>,
}

#[derive(Deserialize)]
struct PromptTokens {
    cached_tokens: Option<u64>,
}

pub(super) fn read(json: &[u8]) -> Option<Chunk> {
    let Answer { choices, usage, error } = serde_json::from_slice(json).ok()?;
    if choices.is_none() && usage.is_none() && error.is_none() {
        return None;
    }
    let text = choices.iter().flatten().flat_map(|choice| [choice.delta, choice.message, choice.text]);
    let report = usage.map(|usage| {
        let cached = usage.prompt_tokens_details.and_then(|details| details.cached_tokens);
        Report::with_cached_in_prompt(usage.prompt_tokens, cached, usage.completion_tokens)
    });
    let is_only_usage = report.is_some() && error.is_none() && choices.as_ref().is_none_or(Vec::is_empty);
    let text = text.flatten().map(|text| text.0).sum();
    Some(Chunk { text, report, is_error: error.is_some(), is_only_usage })
}
