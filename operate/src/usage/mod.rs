//! A route on which clients see their own limits: how much is used, what remains, and until when. [`Usage`].

mod report;
mod usage;

pub use self::usage::Usage;
