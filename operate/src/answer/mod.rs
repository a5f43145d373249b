//! What the router for operators answers, as types that serde writes and reads: the router and the command
//! `ratelimit-admin` share them, and your program can read an answer with them. Times are in seconds, points in time
//! since 1970.
//!
//! A member that a later version adds is ignored, and one that it leaves out is `None`, or an empty list.
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

pub use self::{
    about::{AboutKey, AboutRequest, AboutLayer, Rejected, Undecided},
    explained::{Explained, ExplainedKey, VerdictWord},
    history::{Change, ChangeKind, DenialKind, DeniedKey, History},
    lists::{AclRule, AppliesTo, Ban, Bans, ChangeList, Denials, FrequentlyDenied, PolicyList, Probe},
};
#[cfg(feature = "live")]
#[cfg_attr(docsrs, doc(cfg(feature = "live")))]
pub use self::lists::Networks;
