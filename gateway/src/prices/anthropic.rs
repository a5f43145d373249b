//! Anthropic's messages.

use std::borrow::Cow;

use serde::{Deserialize, de::IgnoredAny};

use super::{
    chunk::{Chunk, Report},
    text_bytes::TextBytes,
};

/// A whole message, or an event of a stream.
#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(rename = "type", borrow)]
    event: Cow<'a, str>,
    /// Of a whole message.
    content: Option<TextBytes>,
    /// Of the event that begins a stream.
    message: Option<Message>,
    content_block: Option<TextBytes>,
    delta: Option<TextBytes>,
    usage: Option<Tokens>,
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Message {
    usage: Option<Tokens>,
}

#[derive(Deserialize)]
struct Tokens {
    input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

impl Tokens {
    const fn report(&self) -> Report {
        Report {
            input: self.input_tokens,
            cached_input: self.cache_read_input_tokens,
            cache_write: self.cache_creation_input_tokens,
            output: self.output_tokens,
        }
    }
}

pub(super) fn read(json: &[u8]) -> Option<Chunk> {
    let Answer { event, content, message, content_block, delta, usage, error } =
        serde_json::from_slice(json).ok()?;
    let (text, report) = match &*event {
        "message" => (content, usage.map(|usage| usage.report())),
        // Its output is a first part of what the deltas have.
        "message_start" => {
            let usage = message.and_then(|message| message.usage);
            (None, usage.map(|usage| Report { output: None, ..usage.report() }))
        }
        "content_block_start" => (content_block, None),
        "content_block_delta" => (delta, None),
        // The usage until then, in total.
        "message_delta" => (None, usage.map(|usage| usage.report())),
        _ => (None, None),
    };
    Some(Chunk { text: text.unwrap_or_default().0, report, is_error: error.is_some(), is_only_usage: false })
}
