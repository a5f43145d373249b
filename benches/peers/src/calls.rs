//! What a decision costs Redis by the size of the call that it is in, without a limiter around it: the calls of this
//! crate, recorded and repeated, and the commands of the module.
//!
//! All of it from one blocking connection. 64 decisions are written together and their replies awaited together,
//! regardless of the size of a call, so that it is the call and not the wake-up of the server that is measured.

use std::{
    error::Error,
    thread,
    time::{Duration, Instant},
};

use redis::Value;
use serde::Serialize;
use tokio::{runtime, task::JoinSet};
use tower_ratelimit::{Key, Limiter, Policy, Quota, RedisStore, bb8_redis::bb8::Pool};
use tower_redis_cell::redis_cell;

use crate::{
    bench::Bench,
    contender::{Limit, Place},
    contenders::tower_redis_cell::policy,
    cpu::Meter,
    recorder::{Call, Recorded, Recorder},
    redis_server::RedisServer,
};

/// Decisions that are written together.
const TOGETHER: usize = 64;
/// Decisions in a call.
const SIZES: [usize; 3] = [1, 16, 64];
/// How many decisions of each size are recorded, each with its own key.
const RECORDED: usize = 4096;

/// Microseconds of Redis for a decision, in each round.
#[derive(Serialize)]
pub(crate) struct Row {
    /// In a call of ours. The module decides one in each command.
    pub(crate) decisions: usize,
    pub(crate) ours: Vec<f64>,
    pub(crate) module: Vec<f64>,
}

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut rows = Vec::new();
    let module = Writes::new(&commands());
    for decisions in SIZES {
        let url = bench.plain.url();
        // In a thread, because a runtime cannot start another one.
        let calls = thread::scope(|scope| scope.spawn(|| record(&url, decisions)).join())
            .map_err(|_| "the recording panicked")??;
        rows.push((Row { decisions, ours: Vec::new(), module: Vec::new() }, Writes::new(&calls)));
    }
    let time = bench.time / 2;
    for _ in 0..bench.rounds {
        for (row, ours) in &mut rows {
            row.ours.extend(ours.repeat(&bench.plain, time)?);
            if let Some(server) = bench.server(Place::RedisCell) {
                row.module.extend(module.repeat(server, time)?);
            }
        }
    }
    Ok(rows.into_iter().map(|(row, _)| row).collect())
}

/// Calls of this crate with exactly this many decisions, or nothing if it makes no call of that size.
fn record(url: &str, decisions: usize) -> Result<Vec<Call>, String> {
    let text = |error: &dyn Error| error.to_string();
    // With one thread, decisions that begin together are in one call, but for those that go ahead.
    let runtime =
        runtime::Builder::new_current_thread().enable_all().build().map_err(|error| text(&error))?;
    runtime.block_on(async {
        let recorder = Recorder::default();
        let client = redis::Client::open(url).map_err(|error| text(&error))?;
        let manager = Recorded { client, recorder: recorder.clone() };
        let pool =
            Pool::builder().test_on_check_out(false).build(manager).await.map_err(|error| text(&error))?;
        let store = RedisStore::builder().prefix(format!("calls{decisions}")).build(pool);
        let limiter = Limiter::new(store.map_err(|error| text(&error))?);
        let quota =
            Quota::try_new(Limit::STORED.count.into(), Limit::STORED.period).map_err(|error| text(&error))?;
        let policy = Policy::new("p", quota);
        let mut calls: Vec<Call> = Vec::new();
        let mut keys = (0..RECORDED * 16).map(|n| Key::new(format!("client-c-{n:011}")));
        let mut ahead = 0;
        while calls.len() * decisions < RECORDED {
            let mut asked = JoinSet::new();
            for key in keys.by_ref().take(decisions + ahead) {
                asked.spawn(limiter.check(&policy, &key, 1));
            }
            if asked.is_empty() {
                break;
            }
            while let Some(decided) = asked.join_next().await {
                decided.map_err(|error| text(&error))?.map_err(|error| text(&error))?;
            }
            calls.extend(recorder.take().into_iter().filter(|call| call.keys == decisions));
            // A lane may take a decision ahead of the others: try with more of them.
            ahead = if decisions == 1 { 0 } else { (ahead + 1) % 16 };
        }
        Ok(calls)
    })
}

fn commands() -> Vec<Call> {
    let policy = policy(Limit::STORED);
    let call = |n| {
        let identity = format!("client-c-{n:011}");
        let key = redis_cell::Key::pair("calls", &identity);
        let command: redis::Cmd = redis_cell::Cmd::new(&key, &policy).into();
        Call { packed: command.get_packed_command(), keys: 1 }
    };
    (0..RECORDED).map(call).collect()
}

/// What is written together, again and again.
struct Writes {
    /// The number of calls in each.
    calls: usize,
    writes: Vec<Vec<u8>>,
}

impl Writes {
    /// Of calls of one size.
    fn new(calls: &[Call]) -> Self {
        let together = calls.first().map_or(1, |call| TOGETHER / call.keys);
        let packed = |calls: &[Call]| calls.iter().flat_map(|call| call.packed.clone()).collect();
        Self { calls: together, writes: calls.chunks_exact(together).map(packed).collect() }
    }

    /// Microseconds of the server for a decision, or `None` if there are no such calls.
    fn repeat(&self, server: &RedisServer, time: Duration) -> Result<Option<f64>, Box<dyn Error>> {
        if self.writes.is_empty() {
            return Ok(None);
        }
        let mut connection = redis::Client::open(server.url())?.get_connection()?;
        for write in &self.writes {
            self.once(&mut connection, write)?;
        }
        let meter = Meter::start(Some(server))?;
        let started = Instant::now();
        let mut written = 0;
        for write in self.writes.iter().cycle() {
            self.once(&mut connection, write)?;
            written += 1;
            if started.elapsed() > time {
                break;
            }
        }
        let used = meter.stop()?.server.ok_or("no server")?;
        Ok(Some(used.cpu * 1e6 / (written * TOGETHER) as f64))
    }

    fn once(&self, connection: &mut redis::Connection, write: &[u8]) -> Result<(), Box<dyn Error>> {
        connection.send_packed_command(write)?;
        for _ in 0..self.calls {
            if let Value::ServerError(error) = connection.recv_response()? {
                return Err(format!("a repeated call fails: {error:?}").into());
            }
        }
        Ok(())
    }
}
