//! [`Prices`]: the table of prices.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Bound::{Included, Unbounded},
    sync::Arc,
};

use tower_ratelimit::{Error, ErrorKind};

use super::price::Price;

/// A table of prices: a version, a [`Price`] for each model, and what holds for unknown models. Cloning it is
/// cheap, and a clone does not change.
///
/// # Names
///
/// A model has the price of the entry with its name, or else of the longest entry that ends with `*` and
/// begins like the name. So `gpt-4o-20*` covers the dated names of `gpt-4o`, and `gpt-4o-*` would cover
/// `gpt-4o-mini` too, if that has no entry. A vendor may know a model by several such names, each of which has its
/// own budget if a budget is for each [model](super::Call::model): list exact names then.
///
/// # Example
///
/// ```
/// use tower_ratelimit_gateway::prices::{Price, Prices, UnknownModel};
///
/// let prices = Prices::new("2025-06")
///     .model("gpt-4o", Price::new("2.50", "10").cached_input("1.25"))
///     .model("gpt-4o-20*", Price::new("2.50", "10").cached_input("1.25"))
///     .model("o3", Price::new("2", "8"));
/// assert_eq!(prices.price("gpt-4o-2024-08-06"), prices.price("gpt-4o"));
/// assert_eq!(prices.price("gpt-5"), None);
///
/// let prices = prices.unknown(UnknownModel::Dearest);
/// assert_eq!(prices.price("gpt-5"), Some(Price::new("2.50", "10").cached_input("2").cache_write("2.50")));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Prices(Arc<Entries>);

#[derive(Clone, PartialEq, Eq)]
struct Entries {
    version: String,
    unknown: UnknownModel,
    by_name: BTreeMap<String, Price>,
    /// The entries that end with `*`, without it.
    by_prefix: BTreeMap<String, Price>,
}

/// What a call of a model costs that the [table](Prices) does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownModel {
    /// The call is an [error](super::CallError::UnknownModel).
    #[default]
    Deny,
    /// Each of the four numbers of its price is the largest one of the table. Without entries, the call is
    /// denied.
    Dearest,
    /// This price.
    Price(Price),
}

impl Prices {
    /// A table without entries. `version` identifies it in logs and in each
    /// [settlement](super::Bill::prices_version).
    #[must_use]
    pub fn new(version: impl Into<String>) -> Self {
        Self(Arc::new(Entries {
            version: version.into(),
            unknown: UnknownModel::Deny,
            by_name: BTreeMap::new(),
            by_prefix: BTreeMap::new(),
        }))
    }

    /// Sets the price of the models with this [name](Self#names).
    ///
    /// # Panics
    ///
    /// If the name is invalid: see [`try_model`](Self::try_model).
    #[must_use]
    #[track_caller]
    #[allow(clippy::panic, reason = "documented")]
    pub fn model(self, name: &str, price: Price) -> Self {
        match self.try_model(name, price) {
            Ok(prices) => prices,
            Err(error) => panic!("{error}"),
        }
    }

    /// [`model`](Self::model) for a name from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig): the name is empty or has a `*` before its end, or the
    /// table has it already.
    pub fn try_model(mut self, name: &str, price: Price) -> Result<Self, Error> {
        let entries = Arc::make_mut(&mut self.0);
        let (prices, text) = match name.strip_suffix('*') {
            Some(prefix) => (&mut entries.by_prefix, prefix),
            None => (&mut entries.by_name, name),
        };
        let problem = if name.is_empty() {
            "a name must not be empty"
        } else if text.contains('*') {
            "`*` may only be the last character of a name"
        } else if prices.contains_key(text) {
            "there are two prices of this name: remove one"
        } else {
            prices.insert(text.to_owned(), price);
            return Ok(self);
        };
        Err(Error::new(ErrorKind::InvalidConfig, format!("model `{name}`: {problem}")))
    }

    /// Sets the price of unknown models. Defaults to [`UnknownModel::Deny`].
    #[must_use]
    pub fn unknown(mut self, unknown: UnknownModel) -> Self {
        Arc::make_mut(&mut self.0).unknown = unknown;
        self
    }

    /// The price of `model`. `None` if it is unknown and calls of unknown models are denied.
    #[must_use]
    pub fn price(&self, model: &str) -> Option<Price> {
        self.entry(model).map(|(_, price)| price)
    }

    /// The version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.0.version
    }

    /// The name of the entry for `model`, without its `*`, and its price. An unknown model has the empty
    /// name.
    pub(super) fn entry(&self, model: &str) -> Option<(&str, Price)> {
        let Entries { unknown, by_name, by_prefix, .. } = &*self.0;
        let by_name = by_name.get_key_value(model);
        let found = by_name.or_else(|| {
            // The entries that the name begins with are in order of their length.
            by_prefix
                .range::<str, _>((Unbounded, Included(model)))
                .rev()
                .find(|(prefix, _)| model.starts_with(prefix.as_str()))
        });
        match (found, unknown) {
            (Some((name, price)), _) => Some((name, *price)),
            (None, UnknownModel::Deny) => None,
            (None, UnknownModel::Dearest) => self.dearest().map(|price| ("", price)),
            (None, UnknownModel::Price(price)) => Some(("", *price)),
        }
    }

    fn dearest(&self) -> Option<Price> {
        self.0.by_name.values().chain(self.0.by_prefix.values()).copied().reduce(Price::dearer)
    }
}

impl fmt::Debug for Prices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entries { version, unknown, by_name, by_prefix } = &*self.0;
        f.debug_struct("Prices")
            .field("version", version)
            .field("unknown", unknown)
            .field("models", &by_name.len().saturating_add(by_prefix.len()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_beginning_of_a_name_decides() {
        let price = |dollars: &str| Price::new(dollars, "1");
        let prices = Prices::new("1")
            .model("gpt-*", price("1"))
            .model("gpt-4o*", price("2"))
            .model("gpt-4o-mini*", price("3"))
            .model("gpt-4o-zeta*", price("4"))
            .model("gpt-4o-mini-x", price("5"));
        let rows = [
            ("gpt-3", "1"),
            ("gpt-4o", "2"),
            ("gpt-4o-2024", "2"),
            ("gpt-4o-mini", "3"),
            ("gpt-4o-mini-2024", "3"),
            ("gpt-4o-mini-x", "5"),
            ("gpt-4o-mini-x2", "3"),
            ("gpt-4o-n", "2"),
            ("gpt-5", "1"),
        ];
        for (model, dollars) in rows {
            assert_eq!(prices.price(model), Some(price(dollars)), "{model}");
        }
        assert_eq!(prices.price("gpt"), None);
        // The star of an entry is not a part of a name.
        assert_eq!(prices.entry("gpt-*").map(|(name, _)| name), Some("gpt-"));
    }
}
