//! A pool of connections that keep a copy of each script call, so that the calls of this crate can be repeated
//! unchanged.

use std::sync::{Arc, Mutex, PoisonError};

use bb8_redis::bb8::ManageConnection;
use redis::{
    Arg, Client, Cmd, Pipeline, RedisError, RedisFuture, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};

#[derive(Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<Vec<Call>>>);

/// One script call, as it was sent.
pub(crate) struct Call {
    pub(crate) packed: Vec<u8>,
    /// The number of its keys.
    pub(crate) keys: usize,
}

impl Recorder {
    /// All calls since the last time.
    pub(crate) fn take(&self) -> Vec<Call> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn keep(&self, command: &Cmd) {
        let arguments: Vec<_> = command
            .args_iter()
            .take(3)
            .filter_map(|argument| match argument {
                Arg::Simple(bytes) => std::str::from_utf8(bytes).ok(),
                _ => None,
            })
            .collect();
        // EVALSHA, the script's hash, the number of keys.
        let [name, _, keys] = arguments[..] else { return };
        let Ok(keys) = keys.parse() else { return };
        if name.eq_ignore_ascii_case("EVALSHA") || name.eq_ignore_ascii_case("FCALL") {
            let call = Call { packed: command.get_packed_command(), keys };
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(call);
        }
    }
}

/// Makes the connections.
pub(crate) struct Recorded {
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
}

impl ManageConnection for Recorded {
    type Connection = Connection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Connection, RedisError> {
        let inner = self.client.get_multiplexed_async_connection().await?;
        Ok(Connection { inner, recorder: self.recorder.clone() })
    }

    async fn is_valid(&self, _: &mut Connection) -> Result<(), RedisError> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Connection) -> bool {
        false
    }
}

pub(crate) struct Connection {
    inner: MultiplexedConnection,
    recorder: Recorder,
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.recorder.keep(command);
        self.inner.req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        pipeline.cmd_iter().for_each(|command| self.recorder.keep(command));
        self.inner.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.inner.get_db()
    }
}
