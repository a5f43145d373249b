//! The verdicts are the library's.

use std::{fs, time::Duration};

use fastrand::Rng;
use serde_json::{Value, json};
use support::Directory;
use tower_ratelimit::{
    Charge, Decision, Key, Limiter, MemoryStore, Policy,
    decision::{Outcome, Verdict},
    store::ManualClock,
};
use tower_ratelimit_operate::config::PolicyConfig;

use crate::{replay, verdicts};

/// 2026-01-31T23:00:00Z, an hour before a month ends.
const START: u64 = 1_769_900_400_000_000;

/// Policies of every kind, of which a random few are used.
fn policies(random: &mut Rng) -> Vec<Value> {
    let limit = random.u64(1..8);
    let mut all = [
        json!({"name": "gcra", "quota": format!("{limit}/10s burst {}", limit + 3), "max_debt": 9}),
        json!({"name": "windows", "quota": format!("{limit}/min"), "algorithm": {"name": "fixed-window", "aligned": true}}),
        json!({"name": "month", "quota": format!("{}/month", limit * 20)}),
        json!({"name": "log", "quota": format!("{limit}/5s"), "algorithm": "sliding-log"}),
        json!({"name": "segments", "quota": format!("{limit}/10s"), "algorithm": {"name": "sliding-window", "segments": 5},
            "penalty": {"after": 5, "within": "20s", "ban": "30s"}}),
        json!({"name": "queue", "quota": format!("{limit}/s"), "algorithm": {"name": "leaky-bucket", "max_wait": "2s"}}),
        json!({"name": "permits", "quota": format!("{limit}/1h"), "algorithm": "concurrency"}),
        json!({"name": "shadow", "quota": "2/10s", "enforced": 0}),
        json!({"name": "half", "quota": "3/10s", "enforced": 0.5}),
    ];
    random.shuffle(&mut all);
    all[..random.usize(2..6)].to_vec()
}

/// A decision of the library, as a verdict line has it.
fn expected(decision: &Decision) -> Value {
    let wait = |verdict: Verdict| match verdict {
        Verdict::Deny { retry_after: Some(wait), .. } => json!(wait.as_micros() as u64),
        Verdict::Deny { retry_after: None, .. } => json!("never"),
        _ => Value::Null,
    };
    let each = decision.outcomes().iter().chain(decision.shadows()).map(|outcome: &Outcome| {
        json!([
            outcome.policy().name(),
            !outcome.verdict().is_denied(),
            outcome.granted(),
            outcome.remaining(),
            wait(outcome.verdict()),
            outcome.reset_after().as_micros() as u64,
            outcome.banned_for().map(|ban| ban.as_micros() as u64),
        ])
    });
    json!([!decision.is_denied(), wait(decision.verdict()), each.collect::<Vec<_>>()])
}

/// The same of a verdict line.
fn printed(verdict: &Value) -> Value {
    let fields =
        ["policy", "allowed", "granted", "remaining", "retry_after_us", "reset_after_us", "banned_for_us"];
    let policies = verdict["policies"].as_array().unwrap_or_else(|| panic!("{verdict}"));
    let each: Vec<Value> =
        policies.iter().map(|policy| fields.map(|field| policy[field].clone()).into()).collect();
    json!([verdict["allowed"], verdict["retry_after_us"], each])
}

/// Decides the lines with direct calls of the library.
async fn decide(policies: &[Policy], lines: &[Value]) -> Vec<Value> {
    let clock = ManualClock::new();
    let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
    let mut running: Vec<(u64, Decision)> = Vec::new();
    let mut all = Vec::new();
    for line in lines {
        let time = line["t"].as_u64().unwrap();
        running.sort_by_key(|(end, _)| *end);
        while let Some((end, _)) = running.first().filter(|(end, _)| *end <= time) {
            clock.set(Duration::from_micros(*end));
            drop(running.remove(0));
        }
        clock.set(Duration::from_micros(time));
        let charge = |charge: &Value| {
            let policy = policies.iter().find(|policy| charge["policy"] == policy.name()).unwrap();
            Charge::new(policy, &Key::new(charge["key"].as_str().unwrap()), charge["cost"].as_u64().unwrap())
        };
        let charges: Vec<Charge> = line["charges"].as_array().unwrap().iter().map(charge).collect();
        let decision = match line["op"].as_str().unwrap() {
            "peek" => limiter.peek_all(&charges).await.unwrap(),
            "debit" => {
                let [one] = &charges[..] else { unreachable!("a debit has one charge") };
                let free = limiter.check(one.policy(), one.key(), 0).await.unwrap();
                limiter.debit(&free, one.cost()).await.unwrap()
            }
            _ => limiter.check_all(&charges).await.unwrap(),
        };
        all.push(expected(&decision));
        if let Some(duration) = line["duration_us"].as_u64().filter(|_| !decision.is_denied()) {
            let delay = decision.delay().unwrap_or_default().as_micros() as u64;
            running.push((time + delay + duration, decision));
        }
    }
    all
}

#[tokio::test]
async fn random_charges_under_several_policies_have_the_verdicts_of_the_library() {
    let directory = Directory::new();
    let path = directory.file("limits.json");
    for seed in 0..40 {
        let mut random = Rng::with_seed(seed);
        let tables = policies(&mut random);
        fs::write(&path, json!({"policies": tables}).to_string()).unwrap();
        let mut time = START;
        let lines: Vec<Value> = (0..300)
            .map(|_| {
                time += [0, 1, 300_000, 2_000_000, 40_000_000][random.usize(..5)];
                let charge = |table: &Value, random: &mut Rng| {
                    json!({"policy": table["name"], "key": format!("k{}", random.u8(..3)), "cost": random.u64(..4)})
                };
                let op = *random.choice(&["charge", "charge", "charge", "charge", "peek", "debit"]).unwrap();
                let charges: Vec<Value> = if op == "debit" {
                    vec![charge(random.choice(&tables).unwrap(), &mut random)]
                } else {
                    tables.iter().map(|table| charge(table, &mut random)).collect()
                };
                json!({"t": time, "op": op, "charges": charges, "duration_us": random.u64(..20_000_000)})
            })
            .collect();
        let read: Vec<PolicyConfig> =
            tables.iter().map(|table| serde_json::from_value(table.clone()).unwrap()).collect();
        let read: Vec<Policy> = read.into_iter().map(|config| config.0).collect();
        let expected = decide(&read, &lines).await;

        let log: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let output = replay(&["--policies", path.to_str().unwrap(), "--verdicts"], log);
        let printed: Vec<Value> = verdicts(&output).iter().map(printed).collect();
        for ((line, printed), expected) in lines.iter().zip(&printed).zip(&expected) {
            assert_eq!(printed, expected, "seed {seed}, {line}");
        }
        assert_eq!(printed.len(), expected.len());
    }
}
