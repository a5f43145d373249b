//! Leases: a hot key gets units in one script call and spends them in this process.
//!
//! Redis charges a lease, or keeps its room free, before any of its units is spent and until the lease ends;
//! see `lua/decide_in_full/phases.lua` and `lua/bucket_in_full/leases.lua`. So the limit holds as long as
//! each unit is spent once, and before the end. The end is counted from before the request was sent, by the
//! remaining time that Redis returned, so a lease ends here no later than in Redis. Everything else, such as
//! the size of a lease and when to return it, only affects efficiency: see `entry`.
//!
//! A lease is removed from the `table` before it is returned, and the return states its name: Redis ignores
//! the return of a lease that has ended, or that is older than a reset. A lease that was removed before a reset by
//! this instance is not returned at all. A report is sent again only if it was certainly not
//! sent. A report that fails is dropped, and the end of the lease settles it.

mod clock;
mod entry;
mod send;
mod table;

pub use self::send::LeaseStatus;
pub(super) use self::{send::Leases, table::Spent};
