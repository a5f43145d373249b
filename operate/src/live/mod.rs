//! What changes while the service runs: policies from a file or from Redis ([`LivePolicies`]), networks whose clients are
//! rejected ([`Blocklist`]), and, with the feature `prices`, prices of language models from a file (`LivePrices`).

// An `Origin` reads the file or the hash and knows what it says. The task of `follow` polls it and applies
// what is new to the `Set`, which the handles share. A source of a policy is a receiver of the set's channel
// for it, so a request takes no lock that covers other policies, and the task knows whether a policy is in
// use.

mod blocklist;
mod depth;
mod error_place;
mod file;
mod follow;
mod format;
#[cfg(feature = "redis")]
mod hash;
mod health;
mod history;
mod parsed;
mod policies;
#[cfg(feature = "prices")]
mod prices;
#[cfg(feature = "redis")]
mod redis;
mod set;
mod text;
mod text_file;
#[cfg(feature = "yaml")]
mod yaml;

#[cfg(feature = "prices")]
#[cfg_attr(docsrs, doc(cfg(feature = "prices")))]
pub use self::prices::LivePrices;
pub use self::{
    blocklist::{BlockedNetwork, Blocklist},
    history::PolicyChange,
    policies::LivePolicies,
};
