//! What an event of a stream, or a whole answer, reports.

use super::usage::Usage;

/// What an event of a stream, or a whole answer, reports.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chunk {
    /// The bytes of the text that it adds to the answer.
    pub(super) text: u64,
    /// The usage of the call until then, which includes its own text.
    pub(super) report: Option<Report>,
    /// Whether it is an error of the upstream service.
    pub(super) is_error: bool,
    /// Whether it has a usage and no part of the answer.
    pub(super) is_only_usage: bool,
}

/// A usage, of which some numbers may be missing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Report {
    pub(super) input: Option<u64>,
    pub(super) cached_input: Option<u64>,
    pub(super) cache_write: Option<u64>,
    pub(super) output: Option<u64>,
}

impl Report {
    /// A report of the tokens of a prompt that include the cached ones.
    pub(super) fn with_cached_in_prompt(
        prompt: Option<u64>,
        cached: Option<u64>,
        output: Option<u64>,
    ) -> Self {
        let input = prompt.map(|prompt| prompt.saturating_sub(cached.unwrap_or_default()));
        Self { input, cached_input: cached, cache_write: None, output }
    }

    /// `before`, with the numbers that this report has.
    pub(super) fn over(self, before: Usage) -> Usage {
        Usage {
            input: self.input.unwrap_or(before.input),
            cached_input: self.cached_input.unwrap_or(before.cached_input),
            cache_write: self.cache_write.unwrap_or(before.cache_write),
            output: self.output.unwrap_or(before.output),
        }
    }
}
