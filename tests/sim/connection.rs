//! The pool's side of a connection to the simulated server.

use std::{io, mem, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use redis::{Cmd, Pipeline, RedisError, RedisFuture, RedisResult, Value, aio::ConnectionLike};
use tokio::time::{Instant, sleep};
use tower_ratelimit::bb8_redis::bb8::ManageConnection;

use super::{
    faults::Connects,
    network::{Command, Network, Owner, Wire, broken, pause},
};

/// The time after which the crate's own connections give up connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// Makes the connections of an instance.
pub(super) struct Manager {
    pub(super) network: Arc<Network>,
    pub(super) owner: Arc<Owner>,
}

pub(super) struct Connection {
    network: Arc<Network>,
    id: u64,
    wire: Arc<Wire>,
}

impl ManageConnection for Manager {
    type Connection = Connection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Connection, RedisError> {
        let network = &self.network;
        let _connects = network.connects();
        let connects = network.connecting(&self.owner);
        if connects == Connects::Hang {
            sleep(CONNECT_TIMEOUT).await;
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
        pause(network.latency()).await;
        if connects == Connects::Fail {
            return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
        }
        let (id, wire) = network.open_wire(&self.owner);
        Ok(Connection { network: network.clone(), id, wire })
    }

    async fn is_valid(&self, _: &mut Connection) -> Result<(), RedisError> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Connection) -> bool {
        false
    }
}

/// Notes the keys of a call that fails or is dropped.
struct Attempt<'a> {
    network: &'a Network,
    commands: &'a [Command],
    /// The number of the call, once it is sent.
    call: Option<u64>,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.network.trouble(self.commands);
        self.call.into_iter().for_each(|call| self.network.give_up(call));
    }
}

impl Connection {
    async fn exchange(&self, commands: Vec<Command>) -> RedisResult<Vec<Value>> {
        let mut attempt = Attempt { network: &self.network, commands: &commands, call: None };
        let (call, reply) = self.network.send(self.id, &self.wire, &commands)?;
        attempt.call = Some(call);
        let sent = Instant::now();
        let replies = reply.await.map_err(|_| broken())?;
        self.network.replied(sent.elapsed());
        self.wire.was_read();
        if replies.iter().all(|reply| matches!(reply, Value::BulkString(_) | Value::Int(0..=1))) {
            mem::forget(attempt);
        }
        Ok(replies)
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        let commands = vec![words(command.args_iter())];
        async move { Ok(self.exchange(commands).await?.remove(0)) }.boxed()
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        let commands = pipeline.cmd_iter().map(|command| words(command.args_iter())).collect();
        self.exchange(commands).boxed()
    }

    fn get_db(&self) -> i64 {
        0
    }
}

fn words<'a>(arguments: impl Iterator<Item = redis::Arg<&'a [u8]>>) -> Command {
    let words = arguments.map(|argument| match argument {
        redis::Arg::Simple(bytes) => bytes.to_vec(),
        _ => panic!("only plain arguments are simulated"),
    });
    words.collect()
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.network.close_wire(self.id, &self.wire);
    }
}
