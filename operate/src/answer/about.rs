//! Why a client is denied.

use serde::{Deserialize, Serialize};

use super::{
    explained::{Explained, VerdictWord},
    history::History,
};

/// The answer of `GET /keys/{key}`: a key under all policies.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct AboutKey {
    /// What a request that is charged under all of them would get.
    pub verdict: VerdictWord,
    /// The key under each policy.
    #[serde(default)]
    pub explanations: Vec<Explained>,
    /// The policies under which the key cannot be decided.
    #[serde(default)]
    pub errors: Vec<Undecided>,
    /// What the instance knows about the key.
    #[serde(flatten)]
    pub history: History,
}

/// A policy under which a key cannot be decided.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Undecided {
    /// The name of the policy.
    pub policy: Option<String>,
    /// The key, in its stored form.
    pub key: Option<String>,
    /// Why.
    pub detail: String,
}

/// The answer of `POST /explain`: a request under each layer.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct AboutRequest {
    /// What each layer would do.
    pub layers: Vec<AboutLayer>,
    /// What the instance knows about the keys of the request.
    #[serde(flatten)]
    pub history: History,
}

/// What a layer would do with a request.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct AboutLayer {
    /// In a word.
    pub verdict: VerdictWord,
    /// The decision. `None` if the layer does not limit or rejects the request.
    pub explanation: Option<Explained>,
    /// The rejection.
    pub rejection: Option<Rejected>,
}

/// A rejection, with what a client does not see.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Rejected {
    /// The status of the response.
    pub status: u16,
    /// Why.
    pub detail: String,
}
