//! The table of prices as a configuration file writes it.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Unexpected, Visitor, value::MapAccessDeserializer},
};

use super::{
    only_table::only_table,
    price::Price,
    prices::{Prices, UnknownModel},
};

impl<'de> Deserialize<'de> for Prices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let PricesTable { version, unknown, models } =
            only_table(deserializer, "a table with `version` and `models`")?;
        let mut prices = Self::new(version).unknown(unknown.unwrap_or_default());
        for (name, price) in models.0 {
            prices = prices.try_model(&name, price).map_err(D::Error::custom)?;
        }
        Ok(prices)
    }
}

#[derive(Deserialize)]
#[serde(rename = "a table of prices", deny_unknown_fields)]
struct PricesTable {
    version: String,
    unknown: Option<UnknownModel>,
    models: Models,
}

/// The entries in their order. A name may be there twice.
struct Models(Vec<(String, Price)>);

impl<'de> Deserialize<'de> for Models {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ModelsVisitor)
    }
}

struct ModelsVisitor;

impl<'de> Visitor<'de> for ModelsVisitor {
    type Value = Models;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table with a price for each model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Models, A::Error> {
        let mut models = Vec::new();
        while let Some(entry) = table.next_entry()? {
            models.push(entry);
        }
        Ok(Models(models))
    }
}

impl<'de> Deserialize<'de> for UnknownModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UnknownVisitor)
    }
}

struct UnknownVisitor;

impl<'de> Visitor<'de> for UnknownVisitor {
    type Value = UnknownModel;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"deny\", \"dearest\" or a price")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<UnknownModel, E> {
        match text {
            "deny" => Ok(UnknownModel::Deny),
            "dearest" => Ok(UnknownModel::Dearest),
            other => Err(E::invalid_value(Unexpected::Str(other), &self)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, price: A) -> Result<UnknownModel, A::Error> {
        Price::deserialize(MapAccessDeserializer::new(price)).map(UnknownModel::Price)
    }
}
