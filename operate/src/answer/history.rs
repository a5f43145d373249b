//! What an instance knows about keys in addition to their state.

use serde::{Deserialize, Serialize};
use tower_ratelimit::policy::Enforcement;

#[cfg(feature = "live")]
use crate::live::BlockedNetwork;

/// What an instance knows about keys in addition to their state.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct History {
    /// The position of the switch. `None` without one.
    pub enforcement: Option<Enforcement>,
    /// The blocked networks that contain an address of the client.
    #[cfg(feature = "live")]
    #[cfg_attr(docsrs, doc(cfg(feature = "live")))]
    #[serde(default)]
    pub blocked: Vec<BlockedNetwork>,
    /// The denials of the keys.
    #[serde(default)]
    pub denials: Vec<DeniedKey>,
    /// What was changed about the keys, or about all keys, the latest first.
    #[serde(default)]
    pub changes: Vec<Change>,
}

/// A key that was denied lately.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct DeniedKey {
    /// The name of the policy.
    pub policy: String,
    /// The key, in its stored form.
    pub key: String,
    /// The identity, if it is known.
    pub identity: Option<String>,
    /// By it, logs name the key.
    pub key_hash: String,
    /// How the latest request was denied.
    pub verdict: DenialKind,
    /// What has decided: `store`, or what took its place.
    pub source: String,
    /// When the request would have been admitted.
    pub retry_after: Option<f64>,
    /// The number of denials between the first and the last one.
    pub denials: u64,
    /// The time of the first denial.
    pub first: f64,
    /// The time of the last denial.
    pub last: f64,
}

/// How a request was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DenialKind {
    /// The key was banned.
    Banned,
    /// By a shadow, which lets the request pass.
    ShadowDenied,
    /// For the sake of more critical requests.
    Shed,
    /// By a rule that lets the request go on without it.
    Degraded,
    /// By the quota, or in a way that this version does not know.
    #[serde(other)]
    Denied,
}

/// A change of a key, of the switch, of a policy or of the blocklist.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Change {
    /// When it was made.
    pub time: f64,
    /// What was changed.
    pub kind: ChangeKind,
    /// The name of the policy.
    pub policy: Option<String>,
    /// The hash of the key.
    pub key_hash: Option<String>,
    /// The refunded units, or the seconds of a ban or a block.
    pub amount: Option<u64>,
    /// The operator.
    pub who: Option<String>,
    /// The old and the new value, or the network.
    pub detail: Option<String>,
    /// What was blocked or unblocked.
    #[serde(skip)]
    pub(crate) network: Option<String>,
}

/// What a [`Change`] has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ChangeKind {
    /// A key was reset.
    Reset,
    /// Units were refunded.
    Refund,
    /// A key was banned.
    Ban,
    /// A ban was ended.
    Unban,
    /// A key was unlocked.
    Unlock,
    /// A network was blocked.
    Block,
    /// A network was unblocked.
    Unblock,
    /// The switch was moved with the router.
    Enforcement,
    /// A file or a hash of live policies has changed.
    Policies,
    /// A kind that this version does not know.
    #[serde(other)]
    Other,
}

impl ChangeKind {
    /// The name, as it is serialized.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Refund => "refund",
            Self::Ban => "ban",
            Self::Unban => "unban",
            Self::Unlock => "unlock",
            Self::Block => "block",
            Self::Unblock => "unblock",
            Self::Enforcement => "enforcement",
            Self::Policies => "policies",
            Self::Other => "other",
        }
    }
}
