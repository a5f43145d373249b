//! What the router for operators answers to most requests, as types that serde writes and reads: the router and the command
//! `ratelimit-admin` share them, and your program can read an answer with them. Times are in seconds, points in time
//! since 1970.
//!
//! A member that a later version adds is ignored. What an answer is about is required; of the rest, what a later version
//! leaves out is `None`, or an empty list. A verdict that this version does not know is read as `Unknown`, and
//! a kind of change as `Other`; a quota, a unit or a failure mode that it does not know is an error.
//!
//! # Example
//!
//! ```
//! use tower_ratelimit_operate::answer::{AboutKey, VerdictWord};
//!
//! # fn main() -> Result<(), serde_json::Error> {
//! let answer = r#"{ "verdict": "admitted", "explanations": [], "errors": [], "denials": [], "changes": [] }"#;
//! assert_eq!(serde_json::from_str::<AboutKey>(answer)?.verdict, VerdictWord::Admitted);
//! # Ok(())
//! # }
//! ```

mod about;
mod explained;
mod history;
mod lists;

#[cfg(feature = "live")]
#[cfg_attr(docsrs, doc(cfg(feature = "live")))]
pub use self::lists::Networks;
pub use self::{
    about::{AboutKey, AboutLayer, AboutRequest, Rejected, Undecided},
    explained::{Explained, ExplainedKey, VerdictWord},
    history::{Change, ChangeKind, DenialKind, DeniedKey, History},
    lists::{AclRule, AppliesTo, Ban, Bans, ChangeList, Denials, FrequentlyDenied, PolicyList, Probe},
};
