//! [`Usage`]: the tokens of a call.

/// The tokens of a call. No token is in two of the four numbers.
///
/// The vendors count differently, and their numbers are converted:
///
/// | | `input` | `cached_input` | `cache_write` | `output` |
/// |---|---|---|---|---|
/// | chat completions | `prompt_tokens` without the cached ones | `cached_tokens` | | `completion_tokens`, which include reasoning |
/// | responses | `input_tokens` without the cached ones | `cached_tokens` | | `output_tokens`, which include reasoning |
/// | Anthropic's messages | `input_tokens`, which are without the cached ones | `cache_read_input_tokens` | `cache_creation_input_tokens` | `output_tokens` |
/// | Gemini | `promptTokenCount` without the cached ones, and `toolUsePromptTokenCount` | `cachedContentTokenCount` | | `candidatesTokenCount` and `thoughtsTokenCount` |
///
/// # Example
///
/// ```
/// use tower_ratelimit_gateway::prices::{Price, Usage};
///
/// let price = Price::new("2.50", "10").cached_input("1.25");
/// let usage = Usage::new(1_000, 200).cached_input(300);
/// assert_eq!(usage.tokens(), 1_500);
/// assert_eq!(price.micro_dollars(&usage), 2_500 + 375 + 2_000);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens of the prompt that were neither read from a cache nor written to one.
    pub input: u64,
    /// Tokens of the prompt that were read from a cache.
    pub cached_input: u64,
    /// Tokens of the prompt that were written to a cache.
    pub cache_write: u64,
    /// Tokens of the answer, including reasoning.
    pub output: u64,
}

impl Usage {
    /// A usage without a cache.
    #[must_use]
    pub const fn new(input: u64, output: u64) -> Self {
        Self { input, cached_input: 0, cache_write: 0, output }
    }

    /// Sets the tokens that were read from a cache, which are not in `input`.
    #[must_use]
    pub const fn cached_input(mut self, tokens: u64) -> Self {
        self.cached_input = tokens;
        self
    }

    /// Sets the tokens that were written to a cache, which are not in `input`.
    #[must_use]
    pub const fn cache_write(mut self, tokens: u64) -> Self {
        self.cache_write = tokens;
        self
    }

    /// The sum of the four numbers, at most [`u64::MAX`].
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.input
            .saturating_add(self.cached_input)
            .saturating_add(self.cache_write)
            .saturating_add(self.output)
    }
}
