//! [`Price`]: what the tokens of a model cost.

use std::fmt;

use serde::{Deserialize, Deserializer};
use tower_ratelimit::Error;

use super::{only_table::only_table, rate::Rate, usage::Usage};

/// The price of a model: four decimal numbers of dollars for a million tokens.
///
/// A price has at most six digits after the point and is below a million dollars. It is kept as an integer,
/// so no digit is lost: [`micro_dollars`](Self::micro_dollars) adds exactly, and rounds its sum up once.
///
/// In a [file](super#files) it is a table with `input`, `output`, and optionally `cached_input` and
/// `cache_write`, each a number or a text, and `count_text`.
///
/// # Example
///
/// ```
/// use tower_ratelimit_gateway::prices::{Price, Usage};
///
/// let price = Price::new("3", "15").cached_input("0.30").cache_write("3.75");
/// // 3 + 1.5 + 3.75 + 15 micro-dollars, rounded up.
/// let usage = Usage::new(1, 1).cached_input(5).cache_write(1);
/// assert_eq!(price.micro_dollars(&usage), 24);
///
/// let error = Price::try_new("3,50", "15").unwrap_err().to_string();
/// assert!(error.starts_with("invalid price `3,50`"), "{error}");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Price {
    input: Rate,
    cached_input: Option<Rate>,
    cache_write: Option<Rate>,
    output: Rate,
    counts_text: bool,
}

impl Price {
    /// The dollars for a million tokens of the prompt and of the answer, such as `"2.50"`.
    ///
    /// # Panics
    ///
    /// If one of them is not such a decimal: see [`try_new`](Self::try_new).
    #[must_use]
    #[track_caller]
    pub fn new(input: &str, output: &str) -> Self {
        or_panic(Self::try_new(input, output))
    }

    /// [`new`](Self::new) for texts from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](tower_ratelimit::ErrorKind::InvalidConfig): one of them is not digits with at most
    /// six digits after a point, or is a million or more.
    pub fn try_new(input: &str, output: &str) -> Result<Self, Error> {
        let (input, output) = (input.parse()?, output.parse()?);
        Ok(Self { input, cached_input: None, cache_write: None, output, counts_text: false })
    }

    /// Sets the price of tokens that are read from a cache. Defaults to the price of the prompt.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new).
    #[must_use]
    #[track_caller]
    pub fn cached_input(self, price: &str) -> Self {
        or_panic(self.try_cached_input(price))
    }

    /// [`cached_input`](Self::cached_input) for a text from a configuration.
    ///
    /// # Errors
    ///
    /// As [`try_new`](Self::try_new).
    pub fn try_cached_input(self, price: &str) -> Result<Self, Error> {
        Ok(Self { cached_input: Some(price.parse()?), ..self })
    }

    /// Sets the price of tokens that are written to a cache. Defaults to the price of the prompt.
    ///
    /// If a vendor has several prices, by the lifetime of the cache, set the dearest: a client chooses the
    /// lifetime, such as an hour (`"ttl": "1h"`) in Anthropic's messages, which costs twice the price of the prompt.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new).
    #[must_use]
    #[track_caller]
    pub fn cache_write(self, price: &str) -> Self {
        or_panic(self.try_cache_write(price))
    }

    /// [`cache_write`](Self::cache_write) for a text from a configuration.
    ///
    /// # Errors
    ///
    /// As [`try_new`](Self::try_new).
    pub fn try_cache_write(self, price: &str) -> Result<Self, Error> {
        Ok(Self { cache_write: Some(price.parse()?), ..self })
    }

    /// Charges an answer whose usage is not reported for the text that was sent, such as one whose client has
    /// left. Defaults to the estimate from before the call, if that is more.
    ///
    /// Set it only for models that send every token that they bill. Of others, such as models with hidden
    /// reasoning, a client could leave each answer before its end, and be charged for what it has seen. An answer
    /// that goes on without its client (`background`, `deferred`) is charged the estimate nevertheless.
    #[must_use]
    pub const fn count_text(mut self) -> Self {
        self.counts_text = true;
        self
    }

    pub(super) const fn counts_text(&self) -> bool {
        self.counts_text
    }

    /// What `usage` costs in micro-dollars: the exact sum, rounded up. At most [`u64::MAX`].
    #[must_use]
    pub fn micro_dollars(&self, usage: &Usage) -> u64 {
        // Each product is below 2^104.
        let sum = self.input.of(usage.input)
            + self.cached_rate().of(usage.cached_input)
            + self.write_rate().of(usage.cache_write)
            + self.output.of(usage.output);
        u64::try_from(sum.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    /// The price that has the dearer of each of the four numbers.
    pub(super) fn dearer(self, other: Self) -> Self {
        Self {
            input: self.input.max(other.input),
            cached_input: Some(self.cached_rate().max(other.cached_rate())),
            cache_write: Some(self.write_rate().max(other.write_rate())),
            output: self.output.max(other.output),
            counts_text: self.counts_text && other.counts_text,
        }
    }

    fn cached_rate(&self) -> Rate {
        self.cached_input.unwrap_or(self.input)
    }

    fn write_rate(&self) -> Rate {
        self.cache_write.unwrap_or(self.input)
    }
}

#[track_caller]
#[allow(clippy::panic, reason = "documented")]
fn or_panic(price: Result<Price, Error>) -> Price {
    match price {
        Ok(price) => price,
        Err(error) => panic!("{error}"),
    }
}

impl fmt::Debug for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Price")
            .field("input", &format_args!("{}", self.input))
            .field("cached_input", &format_args!("{}", self.cached_rate()))
            .field("cache_write", &format_args!("{}", self.write_rate()))
            .field("output", &format_args!("{}", self.output))
            .field("counts_text", &self.counts_text)
            .finish()
    }
}

impl<'de> Deserialize<'de> for Price {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected =
            "a table with `input`, `output`, and optionally `cached_input`, `cache_write` and `count_text`";
        let PriceTable { input, cached_input, cache_write, output, count_text } =
            only_table(deserializer, expected)?;
        Ok(Self { input, cached_input, cache_write, output, counts_text: count_text })
    }
}

#[derive(Deserialize)]
#[serde(rename = "a price", deny_unknown_fields)]
struct PriceTable {
    input: Rate,
    cached_input: Option<Rate>,
    cache_write: Option<Rate>,
    output: Rate,
    #[serde(default)]
    count_text: bool,
}
