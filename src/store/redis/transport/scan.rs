//! Lists keys, step by step, so that Redis makes decisions meanwhile.

use std::future::Future;

use redis::{Cmd, Value, from_redis_value};

use crate::{
    error::{Error, ErrorKind},
    store::redis::error::from_redis,
};

/// About how many keys Redis reads in a step. A step blocks it for less than a millisecond.
const STEP: u32 = 1_000;

/// Which keys to list.
pub(crate) struct Scan {
    /// As of `MATCH`.
    pub(crate) pattern: String,
    /// How many keys are enough.
    pub(crate) most: usize,
}

impl Scan {
    /// The command of the step at `cursor`.
    pub(super) fn command(&self, cursor: u64) -> Cmd {
        let mut command = redis::cmd("SCAN");
        command.arg(cursor).arg("MATCH").arg(&self.pattern).arg("COUNT").arg(STEP);
        command
    }

    /// Lists the keys of one server in steps of `step`, from the step at `cursor` on.
    pub(super) async fn finish<F: Future<Output = Result<Value, Error>>>(
        &self,
        mut cursor: u64,
        found: &mut Vec<Vec<u8>>,
        mut step: impl FnMut(Cmd) -> F,
    ) -> Result<(), Error> {
        loop {
            let keys;
            (cursor, keys) = page(step(self.command(cursor)).await?)?;
            found.extend(keys);
            if cursor == 0 || found.len() >= self.most {
                return Ok(());
            }
        }
    }
}

/// The next cursor and the keys in a reply to `SCAN`.
pub(super) fn page(reply: Value) -> Result<(u64, Vec<Vec<u8>>), Error> {
    if let Value::ServerError(error) = reply {
        return Err(from_redis(&error.into()));
    }
    let page: Result<(u64, Vec<Vec<u8>>), _> = from_redis_value(reply);
    page.map_err(|_| Error::new(ErrorKind::StoreReply, "the reply to SCAN is not a cursor and keys"))
}
