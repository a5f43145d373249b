//! Decisions over several shards, made shard by shard.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::{
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use crate::{
    base::{Error, ErrorKind},
    decision::{Charge, Charges, Decision, Outcome},
    policy::FailureMode,
    store::{
        Action, Counts,
        redis::{
            deny_cache::DenyObserver,
            job::Job,
            transport::{
                deadline::{REPLY_TIMEOUT, deadline_in, timed_out},
                runtimes::in_task,
            },
        },
    },
};

/// The shards of a Cluster, whose keys are in one slot each.
pub(super) trait Sharded: Send + Sync + 'static {
    /// Whether the keys of both identities are in one shard.
    fn share_a_shard(&self, one: &Charge, other: &Charge) -> bool;

    /// Makes a decision whose keys are in one shard.
    fn decide_in_shard(&self, job: Arc<Job>) -> impl Future<Output = Result<Decision, Error>> + Send;
}

pub(super) async fn decide_in_several_shards(
    shards: Arc<impl Sharded>,
    job: Arc<Job>,
) -> Result<Decision, Error> {
    let (allowed, deadline) = (job.deadline, deadline_in(job.deadline));
    // In a task, because units to refund must not be lost if the caller drops it.
    let finish = async move { shard_by_shard(&shards, job, deadline).await };
    timeout_at(deadline, in_task(finish)).await.unwrap_or_else(|_| Err(timed_out(allowed)))?
}

/// The caller waits until `deadline`.
async fn shard_by_shard(
    shards: &Arc<impl Sharded>,
    job: Arc<Job>,
    deadline: Instant,
) -> Result<Decision, Error> {
    let latest = deadline.max(deadline_in(REPLY_TIMEOUT));
    let is_charge = matches!(job.action, Action::Charge | Action::ChargeUpTo);
    let mut outcomes: Vec<Option<Outcome>> = vec![None; job.charges.len()];
    let (mut first_error, mut made_at) = (None, None);
    // Whether a shard may have carried out its part.
    let mut may_be_done = false;
    let by_shard = by_shard(&**shards, &job.charges);
    // Once a shard has denied: the shards that have not counted it.
    let mut uncounted: Option<&[Vec<usize>]> = None;
    for (place, positions) in by_shard.iter().enumerate() {
        let (action, until) = match job.action {
            _ if uncounted.is_some() => (Action::Peek, halfway_to(deadline)),
            // Charges stop at the caller's deadline, because they are refunded after it.
            action if is_charge => (action, deadline),
            action => (action, latest),
        };
        let mut part =
            job.part(action, positions.iter().map(|&position| job.charges[position].clone()).collect());
        part.deadline = until.saturating_duration_since(Instant::now());
        // A banned request counts for nothing, so a denial is counted once no later shard bans it.
        let may_be_banned =
            by_shard[place + 1..].iter().flatten().any(|&later| job.charges[later].policy().bans().is_some());
        // Only a part with penalties: the count keeps it apart from other decisions.
        if may_be_banned && !part.penalties.is_empty() {
            part.counts = Counts::Later;
        }
        match shards.decide_in_shard(part.into()).await {
            Ok(decision) => {
                may_be_done = true;
                made_at = made_at.max(decision.made_at());
                for (&position, outcome) in positions.iter().zip(decision.all_outcomes()) {
                    outcomes[position] = Some(outcome.clone());
                }
                if is_charge && uncounted.is_none() && decision.is_denied() {
                    uncounted = Some(&by_shard[place + usize::from(!may_be_banned)..]);
                    let refund = refund_charged(shards, &job, &by_shard[..place], &outcomes);
                    if let Ok(Ok(refunded)) = timeout_at(halfway_to(deadline), refund).await {
                        refunded
                            .into_iter()
                            .for_each(|(position, outcome)| outcomes[position] = Some(outcome));
                    }
                }
            }
            // The request is denied anyway.
            Err(_) if uncounted.is_some() => {}
            // It denies nothing. What the request can go on without is left out, unless that fails open.
            Err(_) if is_charge && positions.iter().all(|&position| job.charges[position].never_denies()) => {
                let is_left_out = |charge: &&Charge| {
                    charge.degrades() && charge.policy().settings().failure_mode != FailureMode::Open
                };
                for &position in positions {
                    let charge = Some(&job.charges[position]).filter(is_left_out);
                    outcomes[position] = charge.map(Outcome::undecided);
                }
            }
            Err(error) if is_charge => {
                refund_charged(shards, &job, &by_shard[..place], &outcomes);
                return Err(error);
            }
            // Refund and renew as much as possible.
            Err(error) => {
                may_be_done |= error.kind().may_have_charged();
                first_error = first_error.or(Some(error));
            }
        }
    }
    if let Some(first_error) = first_error {
        // Some units may have been refunded.
        job.failed();
        if !may_be_done || job.action == Action::Peek || first_error.kind().may_have_charged() {
            return Err(first_error);
        }
        // Nothing may be refunded or debited twice.
        let message = "a shard of the Cluster failed, and others may have carried out their part";
        return Err(Error::new(ErrorKind::StoreDisconnected, message).with_source(first_error));
    }
    let is_banned = outcomes.iter().flatten().any(Outcome::is_banned);
    if let Some(uncounted) = uncounted
        && !is_banned
    {
        let count = |positions: &Vec<usize>| count_denials(shards, &job, positions, &outcomes);
        let counted: Vec<_> = uncounted.iter().filter_map(count).collect();
        let until = halfway_to(deadline);
        for counted in counted {
            // If it fails or is late, the request is denied without a ban.
            let bans = timeout_at(until, counted).await.ok().and_then(Result::ok).unwrap_or_default();
            for (position, rest) in bans {
                outcomes[position] = outcomes[position].take().map(|outcome| outcome.banning(rest));
            }
        }
    }
    let decision = Decision::new(outcomes.into_iter().flatten()).at(made_at.unwrap_or(0));
    job.settled(&decision, None);
    Ok(decision)
}

/// Refunds the charges of these shards for a decision that is not admitted, even if the caller is dropped.
/// Returns the new outcomes with the positions of their charges.
fn refund_charged(
    shards: &Arc<impl Sharded>,
    job: &Job,
    by_shard: &[Vec<usize>],
    outcomes: &[Option<Outcome>],
) -> JoinHandle<Vec<(usize, Outcome)>> {
    let charged = by_shard.iter().filter_map(|positions| {
        let outcome = |&position: &usize| Some((position, outcomes[position].clone()?));
        // A shard that failed has outcomes only for its shadows. Nothing of it is refunded.
        let charged = positions.iter().map(outcome).collect::<Option<Vec<_>>>()?;
        let charges = charged.iter().map(|(_, outcome)| outcome.undo());
        let mut part = job.part(Action::Refund, charges.collect());
        part.deadline = job.deadline.max(REPLY_TIMEOUT);
        part.denial = job.denial.as_ref().map(DenyObserver::undoing);
        Some((part, charged))
    });
    let (charged, shards): (Vec<_>, _) = (charged.collect(), shards.clone());
    tokio::spawn(async move {
        let mut all = Vec::new();
        for (part, charged) in charged {
            // If a refund fails, that much less is admitted until the quota is replenished.
            let Ok(decision) = shards.decide_in_shard(part.into()).await else { continue };
            let refunded = charged.into_iter().zip(decision.all_outcomes());
            all.extend(refunded.map(|((position, outcome), now)| (position, with_values_of(&outcome, now))));
        }
        all
    })
}

/// Counts the denials of one shard for the penalties of the policies that denied, even if the caller is
/// dropped. Returns the positions of the charges whose keys are banned now, each with the rest of the ban.
/// `None` if there is nothing to count.
fn count_denials(
    shards: &Arc<impl Sharded>,
    job: &Job,
    positions: &[usize],
    outcomes: &[Option<Outcome>],
) -> Option<JoinHandle<Vec<(usize, Duration)>>> {
    let is_denied = |position: &usize| {
        outcomes[*position].as_ref().is_some_and(|outcome| outcome.is_denied() && !outcome.is_shed())
    };
    let positions: Vec<usize> = positions.iter().copied().filter(is_denied).collect();
    let mut part =
        job.part(Action::Charge, positions.iter().map(|&position| job.charges[position].clone()).collect());
    if part.penalties.is_empty() {
        return None;
    }
    part.counts = Counts::Earlier;
    part.charges = Charges::Many(part.charges.iter().map(|charge| charge.clone().with_cost(0)).collect());
    part.deadline = job.deadline.max(REPLY_TIMEOUT);
    let shards = shards.clone();
    Some(tokio::spawn(async move {
        let Ok(decision) = shards.decide_in_shard(part.into()).await else { return Vec::new() };
        let bans = positions.into_iter().zip(decision.all_outcomes());
        bans.filter_map(|(position, outcome)| Some((position, outcome.banned_for()?))).collect()
    }))
}

/// The positions of the charges in each shard, in the order of their first charges.
fn by_shard(shards: &impl Sharded, charges: &[Charge]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (position, charge) in charges.iter().enumerate() {
        match groups.iter_mut().find(|group| shards.share_a_shard(&charges[group[0]], charge)) {
            Some(group) => group.push(position),
            None => groups.push(vec![position]),
        }
    }
    // As in the decision of a part.
    groups.iter_mut().for_each(|group| group.sort_by_key(|&position| charges[position].never_denies()));
    groups
}

/// Half of the remaining time, so there is time to answer.
fn halfway_to(deadline: Instant) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) / 2
}

/// `outcome` with the remaining units and the reset of `now`, after its refund.
fn with_values_of(outcome: &Outcome, now: &Outcome) -> Outcome {
    Outcome::new(outcome.charge(), outcome.verdict(), now.remaining_for_all(), now.reset_after())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Mutex};

    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::{
        base::{Quota, sync::lock},
        key::Key,
        policy::Policy,
        store::{MemoryStore, Store},
    };

    const DEADLINE: Duration = Duration::from_millis(50);
    const LIMIT: u64 = 12;

    /// SplitMix64.
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ mixed >> 31) % end
        }
    }

    /// A Cluster in which each identity has a separate shard, on a network with faults.
    struct Faulty {
        store: MemoryStore,
        random: Mutex<Random>,
        /// How many of a hundred calls have a fault.
        faults: u64,
        /// By identity: the most units that stay charged because a call failed.
        lost: Mutex<BTreeMap<String, u64>>,
    }

    impl Sharded for Faulty {
        fn share_a_shard(&self, one: &Charge, other: &Charge) -> bool {
            one.key() == other.key()
        }

        async fn decide_in_shard(&self, job: Arc<Job>) -> Result<Decision, Error> {
            let (fault, time) = {
                let random = &mut *lock(&self.random);
                let fault = if random.below(100) < self.faults { random.below(4) } else { 4 };
                let most = if fault == 3 { 200 } else { 4 };
                (fault, Duration::from_millis(random.below(most)))
            };
            let failed = |kind| {
                let charge = &job.charges[0];
                if job.action != Action::Peek {
                    *lock(&self.lost).entry(charge.key().as_str().to_owned()).or_default() += charge.cost();
                }
                Err(Error::new(kind, "a fault"))
            };
            match fault {
                0 => return failed(ErrorKind::StoreBusy),
                1 => {
                    sleep(time).await;
                    return failed(ErrorKind::StoreDisconnected);
                }
                _ => {}
            }
            let decided = self.store.decide(job.action, &job.charges).await;
            if timeout(job.deadline, sleep(time)).await.is_err() || fault == 2 {
                return failed(ErrorKind::StoreTimeout);
            }
            decided
        }
    }

    /// What a caller saw of its decision.
    async fn decide(shards: Arc<Faulty>, job: Arc<Job>, patience: Duration) -> Option<Result<bool, Error>> {
        let started = Instant::now();
        let decided = timeout(patience, decide_in_several_shards(shards, job)).await.ok()?;
        assert!(started.elapsed() <= DEADLINE + Duration::from_millis(1), "{:?}", started.elapsed());
        Some(decided.map(|decision| !decision.is_denied()))
    }

    async fn schedule(seed: u64) {
        let mut random = Random(seed);
        let shards = Arc::new(Faulty {
            store: MemoryStore::new(),
            faults: [0, 5, 30][random.below(3) as usize],
            random: Mutex::new(Random(random.below(u64::MAX))),
            lost: Mutex::default(),
        });
        // Nothing is replenished during the test.
        let policies = ["a", "b"].map(|name| Policy::new(name, Quota::per_day(LIMIT)));
        let identities = ["0", "1", "2", "3"];
        let mut callers = Vec::new();
        for _ in 0..60 {
            let mut charges: Vec<Charge> = Vec::new();
            for identity in identities {
                if random.below(2) == 0 {
                    let policy = &policies[random.below(2) as usize];
                    charges.push(Charge::new(policy, &Key::new(identity), 1 + random.below(3)));
                }
            }
            if charges.len() < 2 {
                continue;
            }
            let patience =
                Duration::from_millis(if random.below(10) == 0 { random.below(20) } else { 1_000 });
            let job = Job {
                charges: Charges::Many(charges.clone()),
                action: Action::Charge,
                ..Job::for_tests(1, DEADLINE)
            };
            callers.push((charges, tokio::spawn(decide(shards.clone(), job.into(), patience))));
            sleep(Duration::from_millis(random.below(10))).await;
        }
        // By policy and identity: the units that are certainly charged, and that can be.
        let mut bounds: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
        for (charges, caller) in callers {
            let saw = caller.await.unwrap();
            for charge in charges {
                let name = (charge.policy().name().to_owned(), charge.key().as_str().to_owned());
                let (least, most) = bounds.entry(name).or_default();
                let is_admitted = matches!(saw, Some(Ok(true)));
                *least += if is_admitted { charge.cost() } else { 0 };
                // A decision that was dropped, or that was late as a whole, may be admitted.
                let is_unknown = saw.as_ref().is_none_or(|saw| {
                    saw.as_ref().is_err_and(|error| error.to_string().contains("did not answer"))
                });
                *most += if is_admitted || is_unknown { charge.cost() } else { 0 };
            }
        }
        sleep(Duration::from_secs(5)).await;
        for ((policy, identity), (least, most)) in bounds {
            let policy = policies.iter().find(|one| one.name() == policy).unwrap();
            let peek = Charge::new(policy, &Key::new(&*identity), 0);
            let used = LIMIT - shards.store.decide(Action::Peek, &[peek]).await.unwrap().remaining().unwrap();
            let lost = lock(&shards.lost).get(&identity).copied().unwrap_or_default();
            assert!(
                (least..=most + lost).contains(&used),
                "seed {seed}: {used} units of {identity} used, and {least} to {most} and {lost} lost are right"
            );
        }
    }

    /// Does not send what is for the identities that are down.
    struct Down(&'static [&'static str]);

    impl Sharded for Down {
        fn share_a_shard(&self, one: &Charge, other: &Charge) -> bool {
            one.key() == other.key()
        }

        async fn decide_in_shard(&self, job: Arc<Job>) -> Result<Decision, Error> {
            if self.0.contains(&job.charges[0].key().as_str()) {
                return Err(Error::new(ErrorKind::StoreSuspended, "not sent"));
            }
            MemoryStore::new().decide(job.action, &job.charges).await
        }
    }

    #[tokio::test]
    async fn what_a_shard_has_carried_out_is_not_reported_as_certainly_not_carried_out() {
        let policy = Policy::new("p", Quota::per_day(LIMIT));
        let rows = [
            (Action::Refund, &["b"][..], true),
            (Action::Refund, &["a"], true),
            (Action::Refund, &["a", "b"], false),
            (Action::Debit, &["b"], true),
            (Action::Debit, &["a", "b"], false),
            // What the first shard charged is refunded.
            (Action::Charge, &["b"], false),
            (Action::Peek, &["b"], false),
        ];
        for (action, down, expected) in rows {
            let charges = ["a", "b"].map(|identity| Charge::new(&policy, &Key::new(identity), 1));
            let charges = Charges::Many(charges.into());
            let job = Job { charges, action, ..Job::for_tests(1, DEADLINE) };
            let failed = decide_in_several_shards(Arc::new(Down(down)), job.into()).await.unwrap_err();
            assert_eq!(failed.kind().may_have_charged(), expected, "{action:?} without {down:?}: {failed}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_charged_before_a_denial_or_a_failure_is_refunded() {
        for seed in 0..300 {
            schedule(seed).await;
        }
    }
}
