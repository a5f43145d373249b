//! The answers that are lists, and those about the server.

use serde::{Deserialize, Serialize};

use super::history::Change;
use crate::config::PolicySummary;
#[cfg(feature = "live")]
use crate::live::BlockedNetwork;

/// The answer of `GET /policies`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct PolicyList {
    /// The settings of each policy.
    pub policies: Vec<PolicySummary>,
    /// What may not be as it was meant.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Why live policies stay as they are.
    pub error: Option<String>,
}

/// The answer of `GET /denials/recent`, with [`DeniedKey`](super::DeniedKey), and of `GET /denials/top`, with
/// [`FrequentlyDenied`].
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Denials<T> {
    /// The keys.
    pub denials: Vec<T>,
}

/// A key that is one of the most denied.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct FrequentlyDenied {
    /// The name of the policy.
    pub policy: String,
    /// The key, in its stored form.
    pub key: String,
    /// The identity, if it is known.
    pub identity: Option<String>,
    /// By it, logs name the key.
    pub key_hash: String,
    /// The most denials that it has had.
    pub denials: u64,
    /// How many of them may be other keys'.
    pub error: u64,
}

/// The answer of `GET /policies/{policy}/bans`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Bans {
    /// The longest bans.
    pub bans: Vec<Ban>,
    /// Whether there are no others.
    pub is_complete: bool,
}

/// A key that is banned.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Ban {
    /// The key, in its stored form.
    pub key: String,
    /// The identity, if it is known.
    pub identity: Option<String>,
    /// By it, logs name the key.
    pub key_hash: String,
    /// The rest of the ban.
    pub banned_for: f64,
}

/// The answer of `GET /blocklist`.
#[cfg(feature = "live")]
#[cfg_attr(docsrs, doc(cfg(feature = "live")))]
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Networks {
    /// The blocked networks.
    pub networks: Vec<BlockedNetwork>,
    /// The instances that a change with the router applies to.
    pub applies_to: Option<AppliesTo>,
    /// Why the list is not what Redis has.
    pub error: Option<String>,
}

/// The instances that a change applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AppliesTo {
    /// All of them.
    AllInstances,
    /// The one whose router makes the change.
    ThisInstance,
}

/// The answer of `GET /changes`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct ChangeList {
    /// The latest first.
    pub changes: Vec<Change>,
}

/// The answer of `GET /probe`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Probe {
    /// Whether the server can make decisions.
    pub can_decide: bool,
    /// What is wrong, or may be.
    #[serde(default)]
    pub findings: Vec<String>,
    /// All of it as a text.
    pub report: String,
}

/// The answer of `GET /acl`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct AclRule {
    /// The permissions that the Redis user needs.
    pub acl_rule: String,
}
