//! Callers: each makes decisions on one instance, one after another.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout};
use tower_ratelimit::{Answer, Charge, Decision, Error, Key};

use super::{
    asked::{Ask, By, Held, Made},
    instance::{Instance, Instances},
    ledger::Ledger,
    network::Network,
    permits::Permits,
    random::Random,
    rules::{Kind, shadow},
    sides::Sides,
    usage::Usage,
};

/// What callers share.
pub(super) struct Shared {
    pub(super) ledger: Ledger,
    pub(super) permits: Permits,
    pub(super) usage: Usage,
    pub(super) instances: Instances,
    pub(super) sides: Arc<Sides>,
    pub(super) network: Arc<Network>,
}

type Charges = Vec<(usize, usize, u64)>;

impl Shared {
    fn charges(&self, charges: &Charges, is_changed: bool) -> Vec<Charge> {
        let charge = |(rule, identity, cost): &(usize, usize, u64)| {
            let policy = self.ledger.rules[*rule].policy(is_changed);
            Charge::new(policy, &Key::new(identity.to_string()), *cost)
        };
        let mut all: Vec<Charge> = charges.iter().map(charge).collect();
        if let (true, Some(first)) = (all.len() > 1, all.first()) {
            all.push(Charge::new(&shadow(), first.key(), first.cost()));
        }
        all
    }

    /// Makes a decision, and drops it after `patience`.
    pub(super) async fn decide(
        &self,
        instance: &Instance,
        ask: Ask,
        charges: Charges,
        patience: Duration,
    ) -> Option<(Result<Decision, Error>, Vec<Held>)> {
        let asked = self.ledger.ask(ask, charges, instance.by());
        let all = self.charges(&asked.charges, asked.by.is_changed);
        let limiter = &instance.limiter;
        let one =
            |decide: fn(&tower_ratelimit::Limiter, &Charge) -> Answer<Decision>| decide(limiter, &all[0]);
        let answer = match (ask, &*all) {
            (Ask::Charge, [_]) => one(|limiter, one| limiter.check(one.policy(), one.key(), one.cost())),
            (Ask::Charge, _) => limiter.check_all(&all),
            (Ask::Debit, _) => unreachable!("a debit is of a decision"),
            (Ask::UpTo, _) => one(|limiter, one| limiter.check_up_to(one.policy(), one.key(), one.cost())),
            (Ask::Peek, [_]) => one(|limiter, one| limiter.peek(one.policy(), one.key(), one.cost())),
            (Ask::Peek, _) => limiter.peek_all(&all),
        };
        let Ok(answer) = timeout(patience, answer).await else {
            self.ledger.dropped(&asked);
            return None;
        };
        // After a crash the caller is gone too.
        if !self.instances.is_running(instance) {
            return None;
        }
        let held = self.ledger.answered(&asked, &answer);
        Some((answer, held))
    }
}

pub(super) const PATIENT: Duration = Duration::from_secs(60);

/// One caller of a schedule. It ends after this many decisions.
pub(super) async fn call(shared: Arc<Shared>, mut random: Random) {
    let number = random.below(shared.instances.count() as u64) as usize;
    let (rules, identities) = (&shared.ledger.rules, shared.ledger.identities);
    let hot = rules.len() - 1;
    let is_hot = random.chance(200);
    let pause = *random.pick(&[1, 5, 20, 60]);
    let decisions = if is_hot { random.between(50, 300) } else { random.between(5, 60) };
    sleep(Duration::from_millis(random.below(100))).await;
    let mut latest: Option<(Made, bool)> = None;
    for _ in 0..decisions {
        let instance = shared.instances.get(number);
        let patience =
            if random.chance(80) { Duration::from_millis(*random.pick(&[0, 1, 2, 5, 40])) } else { PATIENT };
        let identity = |random: &mut Random| random.below(identities) as usize;
        let plain = |random: &mut Random| random.below(hot as u64 - 1) as usize;
        let cost = *random.pick(&[1, 1, 1, 1, 2, 3]);
        let banned = plain(&mut random);
        if rules[banned].penalty.is_some() && random.chance(30) {
            let time = Duration::from_millis(random.below(2) * random.between(1, 3_000));
            set_ban(&shared, &instance, (banned, identity(&mut random)), time).await;
            continue;
        }
        let (ask, charges) = match random.below(20) {
            // One identity, so that it is hot, and leases end in one order.
            _ if is_hot => (Ask::Charge, vec![(hot, 0, 1)]),
            0..=9 => (Ask::Charge, vec![(plain(&mut random), identity(&mut random), cost)]),
            10..=12 => {
                let identity = identity(&mut random);
                let all = (0..hot - 1).filter(|_| random.chance(600)).map(|rule| (rule, identity, cost));
                let all: Charges = all.collect();
                if all.is_empty() {
                    continue;
                }
                (Ask::Charge, all)
            }
            13 => (Ask::UpTo, vec![(plain(&mut random), identity(&mut random), 3)]),
            14..=15 => {
                let cost = random.below(2);
                (Ask::Peek, vec![(plain(&mut random), identity(&mut random), cost)])
            }
            16..=17 => (Ask::Charge, vec![(hot - 1, identity(&mut random), 1)]),
            18 => {
                let identity = identity(&mut random);
                (Ask::Charge, vec![(plain(&mut random), identity, 1), (hot - 1, identity, 1)])
            }
            _ => {
                if let Some((made, is_changed)) = latest.take() {
                    let by = By { is_changed, ..instance.by() };
                    if random.chance(400) {
                        debit(&shared, &instance, by, &made, random.between(1, 30)).await;
                    } else {
                        refund(&shared, &instance, by, &made).await;
                    }
                }
                continue;
            }
        };
        let (is_changed, at) = (instance.is_changed(), Instant::now());
        let answer = shared.decide(&instance, ask, charges.clone(), patience).await;
        let answered = Instant::now();
        if let Some((Ok(decision), held)) = answer {
            if !held.is_empty() {
                sleep(Duration::from_millis(random.below(200))).await;
            }
            let is_plain = held.is_empty() && !charges.iter().any(|(rule, ..)| *rule >= hot - 1);
            if is_plain
                && !decision.verdict().is_denied()
                && !decision.outcomes().is_empty()
                && ask == Ask::Charge
            {
                let by = instance.owner.name.clone();
                let charges = shared.ledger.charged(&decision, charges);
                latest = Some((Made { decision, charges, by, at, answered }, is_changed));
            } else {
                drop(decision);
            }
            held.iter().for_each(|held| shared.ledger.released(held));
        }
        sleep(Duration::from_millis(random.below(2 * pause))).await;
    }
}

async fn debit(shared: &Shared, instance: &Instance, by: By, made: &Made, units: u64) {
    let charges = made.charges.iter().map(|&(rule, identity, _)| (rule, identity, units)).collect();
    let asked = shared.ledger.ask(Ask::Debit, charges, by);
    let answer = instance.limiter.debit(&made.decision, units).await;
    if shared.instances.is_running(instance) {
        shared.ledger.answered(&asked, &answer);
    }
}

async fn refund(shared: &Shared, instance: &Instance, by: By, made: &Made) {
    let charges = &made.charges;
    debug_assert!(charges.iter().all(|(rule, ..)| shared.ledger.rules[*rule].kind != Kind::Concurrency));
    let most = charges.iter().map(|(_, _, cost)| *cost).max().unwrap_or_default();
    shared.ledger.refunding(made, most);
    let asked = shared.ledger.ask(Ask::Peek, charges.clone(), by);
    let answer = instance.limiter.refund(&made.decision, most).await;
    if shared.instances.is_running(instance) {
        shared.ledger.refunded(&asked, &answer, made);
    }
}

/// Bans the key of an account for `time`, or ends its ban if that is 0. Returns whether that succeeded.
pub(super) async fn set_ban(
    shared: &Shared,
    instance: &Instance,
    account: (usize, usize),
    time: Duration,
) -> bool {
    let asked = shared.ledger.setting_ban(account, time, instance.by());
    let policy = shared.ledger.rules[account.0].policy(asked.by.is_changed);
    let key = Key::new(account.1.to_string());
    let answer = if time.is_zero() {
        instance.limiter.operator().unban(policy, &key).await
    } else {
        instance.limiter.operator().ban(policy, &key, time).await
    };
    if shared.instances.is_running(instance) {
        shared.ledger.set_ban(&asked, time, &answer);
    }
    answer.is_ok()
}
