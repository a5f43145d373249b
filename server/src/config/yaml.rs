//! The files of envoyproxy/ratelimit, as serde reads them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) domain: String,
    #[serde(default)]
    pub(super) descriptors: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Descriptor {
    pub(super) key: Spanned<String>,
    pub(super) value: Option<String>,
    pub(super) rate_limit: Option<RateLimit>,
    pub(super) descriptors: Option<Vec<Self>>,
    #[serde(default)]
    pub(super) shadow_mode: bool,
    #[serde(default)]
    pub(super) detailed_metric: bool,
    #[serde(default)]
    pub(super) value_to_metric: bool,
    #[serde(default)]
    pub(super) share_threshold: bool,
    #[serde(default)]
    pub(super) quota_mode: bool,
    pub(super) metadata: Option<BTreeMap<String, Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateLimit {
    pub(super) unit: Option<String>,
    pub(super) requests_per_unit: Option<u32>,
    #[serde(default)]
    pub(super) unlimited: bool,
    /// Not a key of envoyproxy/ratelimit: a policy of the project's own file or hash.
    pub(super) policy: Option<String>,
    pub(super) name: Option<String>,
    pub(super) replaces: Option<Vec<Replaces>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Replaces {
    pub(super) name: String,
}

impl File {
    /// Reads `text`. The error has the line.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        serde_saphyr::from_str(text).map_err(|error| {
            let text = error.to_string();
            // An excerpt of the file follows.
            let first = text.lines().next().unwrap_or_default();
            first.strip_prefix("error: ").unwrap_or(first).to_owned()
        })
    }
}
