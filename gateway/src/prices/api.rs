//! [`Api`]: whose interface a call uses.

use super::{anthropic, chunk::Chunk, gemini, openai_chat, openai_responses};

/// The interface of a call. It decides how the request and the answer are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Api {
    /// OpenAI's chat completions, and services with the same interface.
    ///
    /// A stream has a usage if the request has `"stream_options": { "include_usage": true }`, as
    /// [`Call::prepare`](super::Call::prepare) asks for. Without a usage, the call is charged
    /// [its estimate](super#what-a-call-is-charged). The older interface for completions is read too.
    OpenAiChat,
    /// OpenAI's responses.
    OpenAiResponses,
    /// Anthropic's messages.
    AnthropicMessages,
    /// Gemini's `generateContent` and `streamGenerateContent`. The model is in the path, so use
    /// [`UsageMeter::call_of`](super::UsageMeter::call_of).
    Gemini,
}

impl Api {
    /// What a whole answer or an event of a stream reports. `None` if it is not one of this interface.
    pub(super) fn read(self, json: &[u8]) -> Option<Chunk> {
        match self {
            Self::OpenAiChat => openai_chat::read(json),
            Self::OpenAiResponses => openai_responses::read(json),
            Self::AnthropicMessages => anthropic::read(json),
            Self::Gemini => gemini::read(json),
        }
    }
}
