//! What a client may always take of a pool: the twin of `lua/algorithm/guarantee.lua`, which says how it counts.
//!
//! No policy of a user has this algorithm. A policy that is a [guarantee](crate::Rule::guarantee) in a pool has a second policy that
//! has it.

use super::{
    Algorithm,
    bucket::{Bucket, HasBucket, rate},
    counter::Counter,
};
use crate::base::{Error, Quota};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Guarantee;

/// The microseconds for which a full guarantee is remembered: a day.
const KEPT: u64 = 86_400_000_000;

impl Algorithm for Guarantee {
    built_in!("guarantee", "guarantee.lua");

    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        let (period, units) = rate(quota);
        Ok(vec![period, units, quota.capacity()])
    }
}

impl HasBucket for Guarantee {
    fn bucket(arguments: &[u64]) -> Bucket {
        let &[period, units, burst, ref debt @ ..] = arguments else {
            unreachable!("`arguments` above makes three");
        };
        Bucket { initial: 0, kept: KEPT, ..Bucket::continuous(period, units, burst) }.with_debt(debt)
    }
}
