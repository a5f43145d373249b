//! The simulated server against a real one: the same commands and the same decisions, the same replies and data.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use redis::Value;
use tower_ratelimit::store::Store as _;
use tower_ratelimit::{
    Charge, Decision, Key, Limiter, Policy, Quota, RedisStore,
    algorithm::{Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    bb8_redis::bb8::Pool,
    store::ManualClock,
};

use super::{
    connection::Manager,
    log::Log,
    network::{Network, Owner, value},
    random::Random,
};
use support::{RedisServer, eventually, settings};

const COMMANDS: usize = 4_000;
const DECISIONS: usize = 1_000;

/// The reply of the real server. Of an error, only the code: the rest names the script.
fn real(connection: &mut redis::Connection, words: &[Vec<u8>]) -> Value {
    let reply = redis::cmd(str::from_utf8(&words[0]).unwrap()).arg(&words[1..]).query(connection);
    reply.unwrap_or_else(|error| Value::SimpleString(format!("error {:?}", error.code())))
}

fn simulated(network: &Network, words: &[Vec<u8>]) -> Value {
    match value(network.server.lock().unwrap().execute(words)) {
        Value::ServerError(error) => Value::SimpleString(format!("error {:?}", Some(error.code()))),
        value => value,
    }
}

fn words(command: &str) -> Vec<Vec<u8>> {
    command.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

#[tokio::test]
async fn every_command_of_the_scripts_does_what_redis_does() {
    let redis = RedisServer::start();
    let mut connection = redis.connection();
    let network = Network::new(Arc::new(Log::new(false)), Random::new(1));
    let mut random = Random::new(7);
    for step in 0..COMMANDS {
        let key = ["a", "b", "c", "d"][random.below(4) as usize];
        let index = random.between(0, 8) as i64 - 4;
        let (other, score, member) = (random.between(0, 8) as i64 - 4, random.below(20), random.below(6));
        let command = match random.below(24) {
            0 => format!("SET {key} -{score} PX 3600000"),
            1 => format!("SET {key} -{score} PX 3600000 NX"),
            2 => format!("SET {key} -{score} KEEPTTL"),
            3 => format!("GET {key}"),
            4 => "MGET a b c d".to_owned(),
            5 => format!("EXISTS {key} a b"),
            6 => format!("DEL {key}"),
            7 => format!("PEXPIRE {key} 3600000"),
            8 => format!("LLEN {key}"),
            9 => format!("LINDEX {key} {index}"),
            10..=11 => format!("RPUSH {key} {score} {member}"),
            12 => format!("LSET {key} {index} {score}"),
            13 => format!("LTRIM {key} {index} {other}"),
            14 => format!("ZSCORE {key} {member}"),
            15..=17 => format!("ZADD {key} {score} {member}"),
            18 => format!("ZREM {key} {member}"),
            19 => format!("ZREMRANGEBYRANK {key} {index} {other}"),
            20 => format!("ZREVRANGE {key} {index} {other} WITHSCORES"),
            21 => format!("ZRANGEBYSCORE {key} ({score} +inf WITHSCORES LIMIT 0 {member}"),
            22 => format!("ZRANGEBYSCORE {key} {member} {score} WITHSCORES LIMIT 0 3"),
            _ => format!("ZADD {key} -{score} units"),
        };
        let words = words(&command);
        assert_eq!(simulated(&network, &words), real(&mut connection, &words), "step {step}: {command}");
    }
}

/// A limiter and its store.
struct Side {
    store: RedisStore,
    limiter: Limiter,
    latest: Option<Decision>,
    /// They hold permits.
    kept: Vec<Decision>,
}

impl Side {
    fn new(store: RedisStore) -> Self {
        Self { limiter: Limiter::new(store.clone()), store, latest: None, kept: Vec::new() }
    }

    /// Carries out a step. The random numbers are the same for both sides.
    async fn step(&mut self, policies: &[Policy], mut random: Random) -> Option<Decision> {
        let mut policy = || random.pick(policies);
        let (one, other) = (policy(), policy());
        let key = Key::new(random.below(2).to_string());
        let cost = *random.pick(&[0, 1, 1, 2, 5, 100]);
        let decided = match random.below(12) {
            0..=4 => self.limiter.check(one, &key, cost).await,
            5 => self.limiter.check_up_to(one, &key, cost).await,
            6 => self.limiter.peek(one, &key, cost).await,
            7 if one.name() != other.name() => {
                self.limiter.check_all(&[Charge::new(one, &key, cost), Charge::new(other, &key, 1)]).await
            }
            8 => self.limiter.operator().refund_latest(one, &key, cost).await,
            9 => match self.latest.take() {
                Some(latest) => self.limiter.refund(&latest, cost).await,
                None => return None,
            },
            10 => {
                self.limiter.operator().reset(one, &key).await.unwrap();
                return None;
            }
            _ => {
                // Several in one batch.
                let keys = [Key::new("0"), Key::new("1"), Key::new("2")];
                let all = keys.iter().map(|key| self.limiter.check(one, key, cost));
                let mut all = futures_util::future::join_all(all).await;
                let last = all.pop().unwrap();
                self.kept.extend(all.into_iter().map(Result::unwrap));
                last
            }
        };
        self.settled().await;
        let decision = decided.unwrap();
        self.latest = Some(decision.clone());
        self.kept.push(decision.clone());
        Some(decision)
    }

    /// Releases all permits, which happens in the background.
    async fn release(&mut self, permits: &Policy) {
        (self.latest, self.kept) = (None, Vec::new());
        for key in 0..3 {
            let key = Key::new(key.to_string());
            let is_released = async || {
                let peek = self.limiter.peek(permits, &key, 0).await.unwrap();
                peek.remaining() == Some(permits.quota().limit())
            };
            assert!(eventually(is_released).await);
        }
    }

    /// Waits for what goes on in the background.
    async fn settled(&self) {
        while self.store.lease_status().calls > 0 {
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
    }
}

/// The data of a key, without the holders of permits, which differ.
fn data(mut run: impl FnMut(&[Vec<u8>]) -> Value, key: &str) -> Vec<String> {
    let mut data: Vec<String> = [format!("GET {key}"), format!("LLEN {key}")]
        .iter()
        .map(|command| format!("{:?}", run(&words(command))))
        .collect();
    data.extend((0..8).map(|index| format!("{:?}", run(&words(&format!("LINDEX {key} {index}"))))));
    if let Value::Array(members) = run(&words(&format!("ZREVRANGE {key} 0 -1 WITHSCORES"))) {
        let text = |value: &Value| redis::from_redis_value_ref::<String>(value).unwrap();
        let mut members: Vec<_> = members
            .chunks(2)
            .map(|pair| format!("{} {}", text(&pair[0]).split(':').next_back().unwrap(), text(&pair[1])))
            .collect();
        members.sort();
        data.extend(members);
    }
    data
}

#[tokio::test]
async fn every_script_decides_as_in_redis_and_leaves_the_same_data() {
    let redis = RedisServer::start();
    let mut connection = redis.connection();
    let clock = ManualClock::new();
    let network = Arc::new(Network::new(Arc::new(Log::new(false)), Random::new(1)));
    let manager = Manager { network: network.clone(), owner: Owner::new("i".into()) };
    let pool = Pool::builder().test_on_check_out(false).build(manager).await.unwrap();
    let settings = settings().manual_clock(clock.clone());
    let mut here = Side::new(settings.clone().build(pool).unwrap());
    let mut there = Side::new(settings.connect(&redis.url()).await.unwrap());
    let quota = Quota::new(12, Duration::from_secs(3));
    let policies = [
        Policy::new("gcra", quota.burst(20)),
        Policy::new("steps", quota).algorithm(TokenBucket::new().refill_every(quota.period())),
        Policy::new("meter", quota).algorithm(LeakyBucket::meter()),
        Policy::new("queue", quota).algorithm(LeakyBucket::queue(Duration::from_secs(2))),
        Policy::new("anchored", quota).algorithm(FixedWindow::anchored()),
        Policy::new("aligned", quota).algorithm(FixedWindow::aligned()),
        Policy::new("log", quota).algorithm(SlidingLog::new()),
        Policy::new("cells", quota).algorithm(SlidingWindow::new().segments(6)),
        Policy::new("permits", Quota::per_hour(12)).algorithm(Concurrency::new()),
        Policy::new("leased", Quota::new(500, Duration::from_secs(3))).max_lease(40),
    ];
    let permits = policies[8].clone();
    let mut random = Random::new(11);
    let mut leased_ahead = false;
    for step in 0..DECISIONS {
        if random.chance(300) {
            // Leases that are returned by time are returned at a moment of each side's own.
            for side in [&here, &there] {
                side.store.drain().await.unwrap();
            }
            let most = *random.pick(&[1_000, 1_000_000, 1_000_000, 2_000_000_000]);
            let by = Duration::from_micros(random.below(most));
            if random.chance(100) { clock.step_back(by) } else { clock.advance(by) }
        }
        // One policy for some time, so that it is hot.
        let policies = if step / 100 % 3 == 2 { &policies[9..] } else { &policies[..] };
        let same = random.fork();
        let (simulated_one, real_one) =
            (here.step(policies, same.clone()).await, there.step(policies, same).await);
        assert_eq!(simulated_one, real_one, "step {step}");
        leased_ahead |= here.store.lease_status().units > 0;
        assert_eq!(here.store.lease_status(), there.store.lease_status(), "step {step}");
        if step % 50 == 0 {
            if random.chance(500) {
                here.release(&permits).await;
                there.release(&permits).await;
            }
            let names: BTreeSet<String> = redis.command(&["KEYS", "*"]);
            let known = network.server.lock().unwrap().data.names();
            assert_eq!(known, names, "step {step}");
            for name in names {
                let here = data(|words| simulated(&network, words), &name);
                assert_eq!(here, data(|words| real(&mut connection, words), &name), "step {step}: {name}");
            }
        }
    }
    assert!(leased_ahead);
}
