//! A Redis server in this process: the scripts, the clock and the states in which a server can be.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::{
    keyspace::{Keyspace, Reply},
    lua,
};

/// 2026-01-01T08:00:00Z in microseconds: no schedule reaches the next day.
const START: u64 = 1_767_254_400_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Power {
    Up,
    /// Stopped by a signal: what it receives in the meantime is carried out afterwards.
    Frozen,
    Down,
}

pub(super) struct Server {
    pub(super) data: Keyspace,
    scripts: HashMap<Vec<u8>, Vec<u8>>,
    pub(super) power: Power,
    /// How often it was started.
    pub(super) starts: u64,
    /// Instead of every reply: the error, such as `LOADING ...`.
    pub(super) failing: Option<&'static str>,
    started: Instant,
    /// By how many microseconds its clock is ahead of the time of the simulation.
    ahead: i64,
}

impl Server {
    pub(super) fn new() -> Self {
        Self {
            data: Keyspace::default(),
            scripts: HashMap::new(),
            power: Power::Up,
            starts: 1,
            failing: None,
            started: Instant::now(),
            ahead: 0,
        }
    }

    pub(super) fn restart(&mut self, keeps_data: bool) {
        if !keeps_data {
            self.data.clear();
        }
        self.scripts.clear();
        self.power = Power::Up;
        self.starts += 1;
    }

    pub(super) fn flush_scripts(&mut self) {
        self.scripts.clear();
    }

    pub(super) fn step_clock(&mut self, by: Duration, back: bool) {
        let by = i64::try_from(by.as_micros()).unwrap();
        self.ahead += if back { -by } else { by };
    }

    /// The time of its clock, in microseconds since 1970.
    pub(super) fn now(&self) -> u64 {
        let now = START + u64::try_from(self.started.elapsed().as_micros()).unwrap();
        now.saturating_add_signed(self.ahead)
    }

    pub(super) fn execute(&mut self, command: &[Vec<u8>]) -> Reply {
        self.data.now = self.now();
        if let Some(error) = self.failing {
            return Reply::Error(error.into());
        }
        match &*command[0] {
            b"EVALSHA" => match self.scripts.get(&command[1]) {
                Some(text) => evaluate(&mut self.data, &command[1], text, &command[2..]),
                None => Reply::Error("NOSCRIPT No matching script. Please use EVAL.".into()),
            },
            b"EVAL" => {
                let hash = hash(&command[1]);
                let reply = evaluate(&mut self.data, &hash, &command[1], &command[2..]);
                self.scripts.insert(hash, command[1].clone());
                reply
            }
            _ => self.data.run(command),
        }
    }
}

fn hash(text: &[u8]) -> Vec<u8> {
    redis::Script::new(str::from_utf8(text).unwrap()).get_hash().as_bytes().to_vec()
}

/// The keys of a call: those that follow their number.
pub(super) fn keys_of(command: &[Vec<u8>]) -> &[Vec<u8>] {
    match &*command[0] {
        b"EVALSHA" | b"EVAL" => {
            let count = str::from_utf8(&command[2]).unwrap().parse::<usize>().unwrap();
            &command[3..3 + count]
        }
        b"DEL" => &command[1..],
        _ => &[],
    }
}

fn evaluate(data: &mut Keyspace, hash: &[u8], text: &[u8], rest: &[Vec<u8>]) -> Reply {
    let count = str::from_utf8(&rest[0]).unwrap().parse::<usize>().unwrap();
    let (keys, arguments) = rest[1..].split_at(count);
    lua::run(data, hash, text, keys, arguments)
}
