//! The CPU time of this process and a server during a measurement.

use std::{
    io,
    time::{Duration, Instant},
};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};

use crate::redis_server::{Info, RedisServer};

/// From [`Meter::start`] to [`Meter::stop`].
pub(crate) struct Meter<'a> {
    server: Option<(&'a RedisServer, Info)>,
    started: Instant,
    client: f64,
}

/// Seconds of CPU time, in user space and in the kernel, and commands.
pub(crate) struct Used {
    pub(crate) client: f64,
    pub(crate) server: Option<ServerUsed>,
}

pub(crate) struct ServerUsed {
    /// Above what the idle server uses in the same time.
    pub(crate) cpu: f64,
    /// Commands sent to it, without those called by scripts.
    pub(crate) sent: f64,
    /// All commands, those called by scripts included.
    pub(crate) commands: f64,
}

impl<'a> Meter<'a> {
    pub(crate) fn start(server: Option<&'a RedisServer>) -> io::Result<Self> {
        let server = server.map(|server| Ok::<_, io::Error>((server, server.info()?))).transpose()?;
        Ok(Self { server, started: Instant::now(), client: own()? })
    }

    pub(crate) fn stop(self) -> io::Result<Used> {
        let client = own()? - self.client;
        let server = self.server.map(|(server, before)| server_used(server, &before, self.started.elapsed()));
        Ok(Used { client, server: server.transpose()? })
    }
}

fn server_used(server: &RedisServer, before: &Info, time: Duration) -> io::Result<ServerUsed> {
    let after = server.info()?;
    let since = |of: fn(&Info) -> f64| of(&after) - of(before);
    Ok(ServerUsed {
        cpu: (since(Info::cpu) - server.idle() * time.as_secs_f64()).max(0.0),
        sent: since(Info::sent),
        commands: since(Info::commands),
    })
}

/// Redis and the proxies are other processes, so all of this one is the client.
fn own() -> io::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    Ok((usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6)
}
