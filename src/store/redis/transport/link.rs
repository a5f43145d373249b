//! [`Link`]: what the store needs of its connections, to one server or to a Cluster.

use std::{future::Future, sync::Arc, time::Duration};

use redis::{Cmd, Value, from_redis_value};

use super::health::Health;
use crate::{
    base::{Answer, Error, ErrorKind},
    store::redis::job::Decides,
};

/// A link to Redis, one server or a Cluster, with any connection manager.
pub(crate) trait Link: Decides + 'static {
    /// Runs a command without a script. Does not record a failure as an outage.
    fn ask(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value>;

    /// Runs a command that can wait, as [`ask`](Self::ask) does. Does not send it while a breaker is open
    /// that covers it.
    fn ask_if_available(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        self.ask(command, deadline)
    }

    /// The keys of all primaries that `scan` wants, in any order. A key may be listed twice. Each step may
    /// take as long as `deadline`.
    fn scan(self: Arc<Self>, scan: Scan, deadline: Duration) -> Answer<Found>;

    /// Whether the link is to a Redis Cluster.
    fn is_cluster(&self) -> bool {
        false
    }

    /// Whether Redis is available, and where it is.
    fn health(&self) -> &Health;

    /// The commands that the link sends, as in an ACL.
    fn commands(&self) -> &[&'static str];
}

/// About how many keys Redis reads in a step. A step blocks it for less than a millisecond.
const STEP: usize = 1_000;

/// Which keys to list.
pub(crate) struct Scan {
    /// As of `MATCH`.
    pub(crate) pattern: String,
    /// How many keys are enough.
    pub(crate) most: usize,
    /// About how many keys of each server to look at, regardless of their names.
    pub(crate) looks: usize,
}

/// The keys that were found.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) names: Vec<Vec<u8>>,
    /// Whether there may be others.
    pub(crate) is_partial: bool,
}

impl Scan {
    /// Adds the keys of one server to those `found`, in steps of `step`.
    pub(super) async fn list<F: Future<Output = Result<Value, Error>>>(
        &self,
        found: &mut Found,
        mut step: impl FnMut(Cmd) -> F,
    ) -> Result<(), Error> {
        let mut cursor = 0_u64;
        for _ in 0..self.looks.div_ceil(STEP).max(1) {
            let mut command = redis::cmd("SCAN");
            command.arg(cursor).arg("MATCH").arg(&self.pattern).arg("COUNT").arg(STEP);
            let page: Result<(u64, Vec<Vec<u8>>), _> = from_redis_value(step(command).await?);
            let (next, keys) = page.map_err(|_| {
                Error::new(ErrorKind::StoreReply, "the reply to SCAN is not a cursor and keys")
            })?;
            found.names.extend(keys);
            if next == 0 {
                return Ok(());
            }
            if found.names.len() >= self.most {
                break;
            }
            cursor = next;
        }
        found.is_partial = true;
        Ok(())
    }
}
