//! A route on which clients see their own limits: how much is used, what remains, and until when. [`UsageRoute`].

mod report;
mod usage;

pub use self::usage::UsageRoute;
