//! The table in which instances publish their shares of an adaptive quota: one hash for each policy.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use redis::{Cmd, Value};

use super::{
    hash,
    store::RedisStore,
    transport::{Link, PROBE_TIMEOUT},
};
use crate::{
    base::{Error, ErrorKind},
    policy::Policy,
};

/// One entry for each instance.
pub(crate) struct ShareTable {
    link: Arc<dyn Link>,
    key: String,
    deadline: Duration,
}

/// After this time, or once no entry counts if that is later, the table of a service that no longer runs is removed.
const TTL: Duration = Duration::from_secs(60);
/// A hash with more fields is not for this crate.
const MAX_ENTRIES: usize = 10_000;

impl RedisStore {
    /// The table of `policy`.
    pub(crate) fn share_table(&self, policy: &Policy) -> ShareTable {
        ShareTable {
            link: self.link.clone(),
            key: format!("{}:adaptive:{}", self.names.prefix(), policy.label()),
            deadline: self.deadline.min(PROBE_TIMEOUT),
        }
    }
}

impl ShareTable {
    /// Writes an entry. All entries count for `expiry` at most.
    pub(crate) async fn write(&self, instance: &str, entry: &str, expiry: Duration) -> Result<(), Error> {
        let mut set = self.command("HSET");
        set.arg(instance).arg(entry);
        self.ask(set).await?;
        let mut expire = self.command("PEXPIRE");
        expire.arg(TTL.max(expiry).as_millis() as u64);
        self.ask(expire).await.map(drop)
    }

    pub(crate) async fn read(&self) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
        let entries = hash::fields(self.ask(self.command("HGETALL")).await?)?;
        if entries.len() > MAX_ENTRIES {
            let message =
                format!("`{}` has more than {MAX_ENTRIES} fields: is it of this service?", self.key);
            return Err(Error::new(ErrorKind::StoreReply, message));
        }
        Ok(entries)
    }

    pub(crate) async fn remove(&self, instances: &[Vec<u8>]) -> Result<(), Error> {
        let mut remove = self.command("HDEL");
        remove.arg(instances);
        self.ask(remove).await.map(drop)
    }

    fn command(&self, name: &str) -> Cmd {
        let mut command = Cmd::new();
        command.arg(name).arg(&self.key);
        command
    }

    async fn ask(&self, command: Cmd) -> Result<Value, Error> {
        self.link.clone().ask_if_available(command, self.deadline).await
    }
}

impl fmt::Debug for ShareTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShareTable").field("key", &self.key).finish_non_exhaustive()
    }
}
