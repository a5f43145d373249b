//! Random changes in random order, many of them invalid, always end at the last valid state. `LIVE_STEPS` sets the number.

use std::{collections::BTreeMap, fs, thread};

use super::{
    error,
    file::followed as file_followed,
    redis::{defaults, followed as hash_followed},
};
use support::{Directory, file_of, redis_store};
use tokio::runtime::Builder;
use tower_ratelimit::{Policy, policy::Enforcement};
use tower_ratelimit_operate::live::LivePolicies;

fn steps(usual: usize) -> usize {
    std::env::var("LIVE_STEPS").map_or(usual, |steps| steps.parse().unwrap())
}

fn pick<'a, T: ?Sized>(random: &mut fastrand::Rng, values: &[&'a T]) -> &'a T {
    values[random.usize(..values.len())]
}

/// What a service that starts now would read.
fn fresh(path: &std::path::Path) -> Option<(Vec<Policy>, Enforcement)> {
    let fresh = LivePolicies::file(path).ok()?;
    Some((fresh.current(), fresh.enforcement().get()))
}

/// A valid file, an invalid one, or one that may be either.
fn random_file(random: &mut fastrand::Rng) -> Vec<u8> {
    let quotas = ["1/s", "2/min", "3/h burst 9", "4/day", "5/90s"];
    let mut policies = vec![("a", pick(random, &quotas)), ("b", pick(random, &quotas))];
    if random.bool() {
        policies.push(("unused", pick(random, &quotas)));
    }
    if random.u8(..8) == 0 {
        policies.remove(random.usize(..policies.len()));
    }
    let setting =
        ["", "", "enforcement = \"report-only\"\n", "enforcement = \"off\"\n", "enforcement = \"no\"\n"];
    let mut file = format!("{}{}", pick(random, &setting), file_of(&policies)).into_bytes();
    match random.u8(..6) {
        0 => file.truncate(random.usize(..=file.len())),
        1 => {
            let at = random.usize(..file.len());
            file[at] = random.u8(..);
        }
        _ => {}
    }
    file
}

/// Changes a file as the seed says, and compares what is followed with what a service that starts then reads.
async fn file_of_a_seed(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let directory = Directory::new();
    let path = directory.file("limits.toml");
    fs::write(&path, file_of(&[("a", "1/s"), ("b", "1/s")])).unwrap();
    let live = LivePolicies::file(&path).unwrap();
    let _in_use = [live.get("a").unwrap(), live.get("b").unwrap()];
    let mut expected = fresh(&path).unwrap();
    let mut valid = 0;
    for step in 0..steps(40) {
        // Policies that are overwritten immediately are never seen.
        for _ in 0..random.usize(1..4) {
            if random.u8(..10) == 0 {
                let _ = fs::remove_file(&path);
            } else {
                fs::write(&path, random_file(&mut random)).unwrap();
            }
        }
        file_followed().await;
        let has_both = |(policies, _): &(Vec<Policy>, _)| {
            ["a", "b"].iter().all(|name| policies.iter().any(|policy| policy.name() == *name))
        };
        let seen = fresh(&path).filter(has_both);
        let place = format!("seed {seed}, step {step}: {}", error(&live));
        assert_eq!(live.last_error().is_none(), seen.is_some(), "{place}");
        valid += usize::from(seen.is_some());
        expected = seen.unwrap_or(expected);
        assert_eq!((live.current(), live.enforcement().get()), expected, "{place}");
    }
    assert!((1..steps(40)).contains(&valid), "{valid} valid files");
}

/// The seeds run side by side: [`fresh`] waits until the file does not change any more.
#[test]
fn a_file_ends_at_its_last_valid_state() {
    thread::scope(|scope| {
        for seed in 0..5 {
            scope.spawn(move || {
                let mut runtime = Builder::new_current_thread();
                runtime.enable_time().start_paused(true).build().unwrap().block_on(file_of_a_seed(seed));
            });
        }
    });
}

/// A hash as the documentation explains it, independent of the crate's own reading.
#[derive(Default)]
struct Model {
    hash: BTreeMap<&'static str, &'static str>,
    is_of_another_type: bool,
    active: BTreeMap<&'static str, &'static str>,
    enforcement: &'static str,
    is_rejected: bool,
    /// Whether a change waits for another version.
    waits: bool,
}

impl Model {
    const VALID: [&'static str; 3] = ["1/s", "7/min burst 9", "{\"quota\":\"8/h\"}"];
    const INVALID: [&'static str; 3] = ["-1/s", "{\"quota\":1}", ""];

    fn is_valid(&self) -> bool {
        self.hash.iter().all(|(field, value)| match *field {
            "@version" => true,
            "@enforcement" => ["on", "report-only", "off"].contains(value),
            "api" | "login" => Self::VALID.contains(value),
            _ => *value == Self::VALID[2],
        })
    }

    /// An instance reads the hash.
    fn read(&mut self) {
        if self.is_of_another_type {
            return;
        }
        // Regardless of the rest of the hash.
        let switch = self.hash.get("@enforcement").copied().unwrap_or("on");
        if ["on", "report-only", "off"].contains(&switch) {
            self.enforcement = switch;
        }
        let policies = |fields: &BTreeMap<&'static str, &'static str>| {
            let mut fields = fields.clone();
            fields.remove("@enforcement");
            fields
        };
        let version = |fields: &BTreeMap<&str, &'static str>| fields.get("@version").copied();
        self.waits = !self.is_rejected
            && version(&self.hash).is_some()
            && version(&self.hash) == version(&self.active)
            && policies(&self.hash) != policies(&self.active);
        if self.hash == self.active || self.waits {
            self.is_rejected = false;
        } else if self.is_valid() {
            self.active = self.hash.clone();
            self.is_rejected = false;
        } else {
            self.is_rejected = true;
        }
    }

    /// The active policies, as `name quota`.
    fn quotas(&self) -> Vec<String> {
        let mut quotas: BTreeMap<&str, String> =
            [("api", "2/h".to_owned()), ("login", "5/min".to_owned())].into();
        for (field, value) in self.active.iter().filter(|(field, _)| !field.starts_with('@')) {
            let quota = if *value == Self::VALID[2] { "8/h" } else { value };
            quotas.insert(field, quota.to_owned());
        }
        quotas.into_iter().map(|(name, quota)| format!("{name} {quota}")).collect()
    }

    /// Changes something, in Redis too.
    fn change(&mut self, random: &mut fastrand::Rng, connection: &mut redis::Connection) {
        let key = "rl:policies";
        let mut send = |words: &[&str]| {
            let mut command = redis::cmd(words[0]);
            let _: redis::Value = command.arg(&words[1..]).query(connection).unwrap();
        };
        if std::mem::take(&mut self.is_of_another_type) {
            send(&["DEL", key]);
            self.hash.clear();
        }
        match random.u8(..20) {
            0 => {
                send(&["DEL", key]);
                self.hash.clear();
            }
            1 => {
                send(&["SET", key, "1/s"]);
                self.hash.clear();
                self.is_of_another_type = true;
            }
            2..8 => {
                let field = pick(random, &["api", "login", "export", "@version", "@enforcement"]);
                send(&["HDEL", key, field]);
                self.hash.remove(field);
            }
            other => {
                let field = pick(random, &["api", "login", "export", "@version", "@enforcement"]);
                let value = match field {
                    "@version" => pick(random, &["1", "2", "3"]),
                    "@enforcement" => pick(random, &["on", "report-only", "off", "no"]),
                    _ if other < 10 => pick(random, &Self::INVALID),
                    _ => pick(random, &Self::VALID),
                };
                send(&["HSET", key, field, value]);
                self.hash.insert(field, value);
            }
        }
    }
}

#[tokio::test]
async fn a_hash_ends_at_its_last_valid_state() {
    let (server, store) = redis_store().await;
    let live = LivePolicies::redis(&store, defaults()).await.unwrap();
    let live = live.poll_every(std::time::Duration::from_millis(10));
    let (mut random, mut model) =
        (fastrand::Rng::with_seed(7), Model { enforcement: "on", ..Model::default() });
    let mut connection = server.connection();
    let mut rejected = 0;
    let steps = steps(40);
    for step in 0..steps {
        model.change(&mut random, &mut connection);
        hash_followed(&server).await;
        model.read();
        let place = format!("step {step}, {:?}: {}", model.hash, error(&live));
        assert_eq!(super::quotas(&live), model.quotas(), "{place}");
        assert_eq!(live.enforcement().get().to_string(), model.enforcement, "{place}");
        let is_wrong = model.is_rejected || model.is_of_another_type || model.waits;
        assert_eq!(live.last_error().is_some(), is_wrong, "{place}");
        rejected += usize::from(is_wrong);
    }
    assert!((1..steps).contains(&rejected), "{rejected} of {steps} invalid");
}
