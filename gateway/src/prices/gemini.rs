//! Gemini's `generateContent` and `streamGenerateContent`.

use serde::{Deserialize, de::IgnoredAny};

use super::{
    chunk::{Chunk, Report},
    text_bytes::TextBytes,
};

/// A whole answer, or a part of a stream, whose usage is the one until then.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    candidates: Option<Vec<Candidate>>,
    usage_metadata: Option<Tokens>,
    prompt_feedback: Option<IgnoredAny>,
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Candidate {
    content: Option<TextBytes>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tokens {
    prompt_token_count: Option<u64>,
    tool_use_prompt_token_count: Option<u64>,
    cached_content_token_count: Option<u64>,
    candidates_token_count: Option<u64>,
    thoughts_token_count: Option<u64>,
}

pub(super) fn read(json: &[u8]) -> Option<Chunk> {
    // Without `alt=sse`, a stream is a list of its parts.
    if json.trim_ascii_start().starts_with(b"[") {
        let parts: Vec<Answer> = serde_json::from_slice(json).ok()?;
        let join = |before: Chunk, part: Chunk| Chunk {
            text: before.text.saturating_add(part.text),
            report: part.report.or(before.report),
            is_error: before.is_error || part.is_error,
            is_only_usage: false,
        };
        return parts
            .into_iter()
            .map(chunk)
            .try_fold(Chunk::default(), |before, part| Some(join(before, part?)));
    }
    chunk(serde_json::from_slice(json).ok()?)
}

fn chunk(answer: Answer) -> Option<Chunk> {
    let Answer { candidates, usage_metadata: usage, prompt_feedback, error } = answer;
    if candidates.is_none() && usage.is_none() && prompt_feedback.is_none() && error.is_none() {
        return None;
    }
    let text = candidates.iter().flatten().filter_map(|candidate| candidate.content);
    let report = usage.map(|usage| {
        let prompt = sum(usage.prompt_token_count, usage.tool_use_prompt_token_count);
        let output = sum(usage.candidates_token_count, usage.thoughts_token_count);
        Report::with_cached_in_prompt(prompt, usage.cached_content_token_count, output)
    });
    let text = text.map(|text| text.0).sum();
    Some(Chunk { text, report, is_error: error.is_some(), is_only_usage: false })
}

/// The sum of what is there.
fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    }
}
