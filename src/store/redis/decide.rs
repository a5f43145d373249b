//! [`RedisStore`] as a store. It makes a decision from a lease or the deny cache if possible, otherwise with
//! a job for Redis.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redis::{Cmd, Value};
use tokio::{
    runtime::Handle,
    time::{Instant, timeout_at},
};

use super::{
    connect::{
        ProbeReport,
        probe::{decide_once, probe},
    },
    deny_cache::DenyObserver,
    instances::{Instances, MOST as MOST_INSTANCES},
    job::Job,
    lease::Spent,
    listing::list,
    script::{RESET, Script, text_of},
    store::RedisStore,
    transport::{PROBE_TIMEOUT, current, deadline_in, in_task},
};
use crate::{
    base::{Answer, Error, ErrorKind},
    decision::{Charge, Charges, Decision},
    key::Key,
    policy::Policy,
    store::{
        Action, Backend, BackendRef, LocalCounts, ManualClock, Store, StoreIdentity,
        list::{Extent, StoredKeys},
    },
};

impl Store for RedisStore {
    // A plain charge takes the short way: the deny cache, and a job of this charge. Only the others look up a
    // lease, or bring charges against penalties.
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        let now = self.clock.micros();
        if action.charges_units()
            && let Some(instances) = &self.instances
            && instances.due.load(Ordering::Relaxed) <= now
        {
            self.announce(instances, now);
        }
        let mut hot = None;
        if let Some(charge) = leased(action, charges) {
            let hash = self.leases.table.hash_of(charge);
            match self.leases.table.spend(charge, hash, now) {
                Spent::Decided(decision, is_low) => {
                    if is_low && let Ok(runtime) = Handle::try_current() {
                        self.lease_ahead(charge, hash, &runtime);
                    }
                    return Answer::ready(Ok(decision));
                }
                Spent::Hot => hot = Some((charge, hash)),
                Spent::Cold => {}
            }
        }
        let deny_cache = self.deny_cache.as_ref().filter(|_| !matches!(action, Action::Peek | Action::Renew));
        // The lookup serves the other actions too: it ends a denial from before the clock stepped back.
        if let Some(deny_cache) = deny_cache
            && let Some(decision) = deny_cache.lookup(charges, now)
            && action == Action::Charge
        {
            return Answer::ready(Ok(decision));
        }
        let script = match self.scripts.script_for(charges) {
            Ok(script) => script,
            Err(error) => return Answer::ready(Err(error)),
        };
        if action == Action::Peek && charges.iter().any(Charge::is_patient) {
            return self.peek_patiently(charges, script);
        }
        let lease = hot.and_then(|(charge, hash)| self.leases.fetch(charge, hash, false));
        let frees_units = matches!(action, Action::Refund | Action::Ban)
            || lease.as_ref().is_some_and(|lease| lease.returned().frees_units());
        let denial = deny_cache.map(|deny_cache| DenyObserver::new(deny_cache, now, frees_units));
        if action == Action::Refund && charges.iter().any(|charge| charge.policy().most_leased().is_some()) {
            return self.return_leases_and_refund(charges, script, denial);
        }
        // `Arc::new` would copy the job: it allocates after its argument is made. `new_cyclic` allocates first, and
        // nothing else of it is used.
        Answer::shared(Arc::new_cyclic(|_| Job { lease, denial, ..self.job(action, charges.into(), script) }))
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        let reply = self.link.clone().ask(self.reset_command(policy, key), self.deadline);
        let link = self.link.clone();
        let (deny_cache, leases) = (self.deny_cache.clone(), self.leases.clone());
        let (policy, key) = (policy.clone(), key.clone());
        let forget = move || {
            leases.table.forget(&policy, &key);
            deny_cache.iter().for_each(|deny_cache| deny_cache.invalidate(&policy, &key));
        };
        // The denials are dropped before the command too, in case the caller never polls the answer.
        forget();
        // A task sends the command, because a denial from before the reset may be stored until the command
        // has ended.
        Answer::pending(async move {
            current()?;
            in_task(async move {
                let reply = reply.await;
                link.health().record(&reply);
                forget();
                match reply? {
                    Value::Int(_) => Ok(()),
                    _ => Err(Error::new(ErrorKind::StoreReply, "the reply to a reset is not the script's")),
                }
            })
            .await?
        })
    }

    /// Returns all units on lease. Otherwise other instances cannot use the units for up to
    /// [`Policy::lease_bound`].
    ///
    /// It takes at most a second and a half, regardless of the deadline of a decision. This includes up to
    /// half a second for leases that are under way or already being returned. If it fails, or is dropped before
    /// its end, some leases may not be returned: further calls fail too until these leases have ended, and their
    /// units count as used.
    fn drain(&self) -> Answer<()> {
        let leases = self.leases.clone();
        Answer::pending(async move {
            let runtime = current()?;
            // Leases that are under way would be missed, so they are awaited first.
            leases.wait_until_idle().await;
            // The jobs are sent concurrently, so they share batches.
            let (jobs, attempt) = leases.remove_all();
            let calls: Vec<_> = jobs.into_iter().map(|job| leases.spawn(job, &runtime)).collect();
            let mut result = Ok(());
            for call in calls {
                let ended = Error::new(ErrorKind::StoreUnreachable, "the Tokio runtime was shut down");
                result = result.and(call.await.unwrap_or(Err(ended)));
            }
            leases.wait_until_idle().await;
            leases.returned(attempt, result)
        })
    }

    fn backend(&self) -> Option<BackendRef<'_>> {
        Some(BackendRef(self))
    }
}

impl Backend for RedisStore {
    fn known_denial(&self, charges: &[Charge]) -> Option<Decision> {
        self.deny_cache.as_ref()?.lookup(charges, self.clock.micros())
    }

    fn has_denied(&self, charges: &[Charge]) -> bool {
        let deny_cache = self.deny_cache.as_ref();
        deny_cache.is_some_and(|deny_cache| deny_cache.has_denied(charges, self.clock.micros()))
    }

    fn identity(&self) -> &StoreIdentity {
        &self.identity
    }

    fn stored_name(&self, policy: &Policy, key: &Key) -> Option<String> {
        Some(self.names.name(policy, key))
    }

    fn stored_keys(&self, policies: &[Policy], extent: Extent) -> Answer<StoredKeys> {
        Answer::pending(list(self.clone(), policies.to_vec(), extent))
    }

    fn local_counts(&self) -> Option<Arc<LocalCounts<dyn Store>>> {
        Some(self.local.clone())
    }

    fn manual_clock(&self) -> Option<ManualClock> {
        self.clock.manual().cloned()
    }

    fn supports(&self, policy: &Policy) -> Result<(), Error> {
        self.scripts.register(policy)
    }
}

// The probe is not in `store.rs`, because it makes decisions, and so stands above that file.
impl RedisStore {
    /// Checks whether the server can make the decisions of this store: its version and kind, its eviction
    /// policy, the round trip, and the Redis user's permissions. Makes decisions on unused keys with the
    /// store's prefix and removes the keys.
    ///
    /// [`connect`](Self::connect) calls this, fails unless the report [can decide](ProbeReport::can_decide),
    /// and logs the other findings at warn. Call it yourself after `connect_lazy`, or in a health check of a
    /// deployment. Each command takes at most a second and a half.
    ///
    /// To see the eviction policy, the Redis user needs `+info`, which is not part of
    /// [`acl_rule`](Self::acl_rule). In a Redis Cluster, the decisions are made on one node.
    ///
    /// # Errors
    ///
    /// [`StoreUnreachable`](ErrorKind::StoreUnreachable), [`StoreTimeout`](ErrorKind::StoreTimeout) or
    /// [`StoreBusy`](ErrorKind::StoreBusy) if the server does not answer;
    /// [`StoreFailed`](ErrorKind::StoreFailed) if it answers PING with an error, for example because it
    /// requires a password; [`StoreDisconnected`](ErrorKind::StoreDisconnected) or
    /// [`StoreReply`](ErrorKind::StoreReply) if the connection breaks or a reply is not a decision. All other
    /// problems are in the report.
    ///
    /// # Example
    ///
    /// ```no_run
    /// use tower_ratelimit::RedisStore;
    ///
    /// # async fn example() -> Result<(), tower_ratelimit::Error> {
    /// // Starts even without Redis, and prints what should be changed.
    /// let store = RedisStore::builder().connect_lazy("redis://127.0.0.1:6379")?;
    /// match store.probe().await {
    ///     Ok(report) if report.findings().next().is_none() => {}
    ///     Ok(report) => eprintln!("{report}"),
    ///     Err(error) => eprintln!("starting without Redis: {error}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn probe(&self) -> Result<ProbeReport, Error> {
        probe(self).await
    }

    /// Makes one decision under `policy` on an unused key, including the charge, and removes the key. Call it
    /// when the service starts, to find errors in your own [`Algorithm`](crate::algorithm::Algorithm).
    ///
    /// # Errors
    ///
    /// [`StoreFailed`](crate::ErrorKind::StoreFailed) with the error of the Lua file, and every error of a
    /// decision.
    pub async fn probe_policy(&self, policy: &Policy) -> Result<(), Error> {
        decide_once(self, policy).await
    }

    // Inlined because a call would copy the job once more.
    #[inline(always)]
    pub(super) fn job(&self, action: Action, charges: Charges, script: Arc<Script>) -> Job {
        let time = self.clock.manual().map(ManualClock::micros);
        Job {
            time,
            ..Job::new(action, charges, self.names.clone(), script, self.deadline, self.link.clone())
        }
    }

    // A function apart, because inside of `decide` it would copy each job once more.
    #[cold]
    fn peek_patiently(&self, charges: &[Charge], script: Arc<Script>) -> Answer<Decision> {
        let job = self.job(Action::Peek, charges.into(), script);
        Job { deadline: self.deadline.max(PROBE_TIMEOUT), is_patient: true, ..job }.into_answer()
    }

    /// The command that removes the count of a key, and leaves a mark that it was reset.
    #[cold]
    fn reset_command(&self, policy: &Policy, key: &Key) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command
            .arg(&*text_of(RESET))
            .arg(2)
            .arg(self.names.name(policy, key))
            .arg(self.names.name(policy.resets(), key));
        let time = self.clock.manual().map_or(0, ManualClock::micros);
        command.arg(policy.refundable_for().as_millis() as u64).arg(time);
        command
    }

    /// Removes all that is stored for `key` under `policy`: [`Operator::reset`](crate::Operator::reset) leaves a mark for a
    /// while. For tests and simulations, which leave no keys. A refund of an earlier charge then gives units back that
    /// were not charged.
    ///
    /// # Errors
    ///
    /// The failure of the store.
    pub async fn erase(&self, policy: &Policy, key: &Key) -> Result<(), Error> {
        self.reset(policy, key).await?;
        self.link.clone().ask(self.delete(policy.resets(), key), self.deadline).await.map(drop)
    }

    /// The command that removes the count of a key, and leaves nothing.
    pub(super) fn delete(&self, policy: &Policy, key: &Key) -> Cmd {
        let mut command = redis::cmd("DEL");
        command.arg(self.names.name(policy, key));
        command
    }

    /// Announces this instance in the background, if that is due. Called with a charge.
    #[cold]
    fn announce(&self, instances: &Instances, now: u64) {
        if instances.is_due(now)
            && let Ok(runtime) = Handle::try_current()
        {
            // A renewal adds a permit that Redis does not have. If it fails, the next interval tries again.
            let (store, permit) = (self.clone(), instances.permit.clone());
            runtime.spawn(async move { store.count_instances(Action::Renew, permit).await });
        }
    }

    /// Learns how many instances run already.
    pub(super) async fn look_for_instances(&self) {
        if let Some(instances) = &self.instances {
            self.count_instances(Action::Peek, instances.permit.clone().with_cost(0)).await;
        }
    }

    /// The number of instances that have announced themselves in the last 15 seconds, without this one if it has not. This
    /// queries Redis. `None` if it does not answer.
    pub async fn announced_instances(&self) -> Option<u32> {
        let permit = self.instances.as_ref()?.permit.clone().with_cost(0);
        self.ask_for_instances(Action::Peek, permit).await
    }

    async fn count_instances(&self, action: Action, permit: Charge) {
        if let Some(instances) = self.ask_for_instances(action, permit).await {
            let instances = instances.max(1);
            self.local.reported(instances);
            metric!(instances_seen(instances));
        }
    }

    async fn ask_for_instances(&self, action: Action, permit: Charge) -> Option<u32> {
        let job = self.job(action, Charges::One(permit), Script::built_in().clone());
        let job = Job { deadline: self.deadline.min(PROBE_TIMEOUT), ..job };
        let remaining = job.into_answer().await.ok()?.remaining()?;
        Some(u32::try_from(MOST_INSTANCES.saturating_sub(remaining)).unwrap_or(u32::MAX))
    }

    /// Leases more units before the lease is used up.
    fn lease_ahead(&self, charge: &Charge, hash: u64, runtime: &Handle) {
        if let Some(lease) = self.leases.fetch(charge, hash, true) {
            let no_units = Charge::new(charge.policy(), charge.key(), 0);
            let job = self.job(Action::Charge, Charges::One(no_units), Script::built_in().clone());
            self.leases.spawn(Job { lease: Some(lease), ..job }, runtime);
        }
    }

    /// Returns the leases of the charges, and then refunds: Redis can refund units that were spent from a
    /// lease only once it knows of them. Reports under way are awaited too.
    // A function apart for the same reason as `peek_patiently`.
    #[cold]
    fn return_leases_and_refund(
        &self,
        charges: &[Charge],
        script: Arc<Script>,
        denial: Option<DenyObserver>,
    ) -> Answer<Decision> {
        let job = Job { denial, ..self.job(Action::Refund, charges.into(), script) };
        let leases = self.leases.clone();
        Answer::pending(async move {
            // Leases are returned even if the refund is dropped. If their return fails, the units are free
            // when the lease ends.
            current()?;
            let (deadline, halfway) = (deadline_in(job.deadline), deadline_in(job.deadline / 2));
            for charge in &*job.charges {
                // The wait is bounded, because a report may be part of a decision that its caller keeps and
                // does not poll. Without the report, less is refunded.
                let _ = timeout_at(halfway, leases.settle(charge.policy(), charge.key())).await;
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            Job { deadline: rest.max(Duration::from_millis(1)), ..job }.into_answer().await
        })
    }
}

/// The charge of a decision that may be made from a lease.
fn leased(action: Action, charges: &[Charge]) -> Option<&Charge> {
    let [charge] = charges else { return None };
    let is_leased = action == Action::Charge && charge.policy().most_leased().is_some();
    (is_leased && charge.cost() > 0 && !charge.never_denies()).then_some(charge)
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, atomic::AtomicBool};

    use futures_util::future::BoxFuture;
    use redis::Value;
    use tokio::{sync::Semaphore, task::yield_now, time::sleep};

    use super::*;
    use crate::{
        algorithm::twin::Receipt,
        base::{Quota, sync::lock},
        decision::{DecisionSource, Outcome, Verdict},
        store::redis::{
            connect::RedisStoreBuilder,
            job::{Decides, Fate, KeyNames, Leased},
            transport::{Found, Health, Link, Scan},
        },
    };

    /// Admits and leases everything, or denies it. Commands, and leases that are fetched ahead, end when they
    /// get a permit.
    struct Controlled {
        sent: Mutex<Vec<(Action, u64)>>,
        denies: AtomicBool,
        permits: Semaphore,
        health: Health,
    }

    fn controlled() -> (Arc<Controlled>, RedisStore) {
        controlled_by(RedisStore::builder().manual_clock(ManualClock::new()))
    }

    fn controlled_by(settings: RedisStoreBuilder) -> (Arc<Controlled>, RedisStore) {
        let (permits, health) = (Semaphore::new(0), Health::default());
        let link = Controlled { sent: Mutex::default(), denies: AtomicBool::new(false), permits, health };
        let link = Arc::new(link);
        let store = settings.with_link(link.clone(), KeyNames::new("test"));
        (link, store)
    }

    impl Decides for Controlled {
        fn begin(self: Arc<Self>, job: Arc<Job>) -> Option<BoxFuture<'static, Result<Decision, Error>>> {
            Some(Box::pin(async move {
                let [charge] = &*job.charges else { unreachable!("each job has one charge") };
                lock(&self.sent).push((job.action, charge.cost()));
                job.sending();
                if job.action == Action::Charge && charge.cost() == 0 {
                    self.permits.acquire().await.unwrap().forget();
                }
                let receipt = Receipt { made: 0, mark: 0 };
                let leased = job.lease.as_ref().map(|lease| Leased {
                    units: lease.wanted,
                    lifetime: 1_000_000,
                    name: 7,
                    receipt,
                });
                let second = Duration::from_secs(1);
                let outcome = match self.denies.load(Ordering::Relaxed) {
                    true => Outcome::new(charge, Verdict::Deny { retry_after: Some(second) }, 0, second),
                    false => Outcome::new(charge, Verdict::Admit, 500, second),
                };
                let decision = Decision::one(outcome, 0);
                job.settled(&decision, leased);
                job.end();
                Ok(decision)
            }))
        }

        fn finish(&self, _: &Job, _: Fate) -> Result<Decision, Error> {
            unreachable!("its callers poll futures")
        }
    }

    impl Link for Controlled {
        fn ask(self: Arc<Self>, _: Cmd, _: Duration) -> Answer<Value> {
            Answer::pending(async move {
                self.permits.acquire().await.unwrap().forget();
                Ok(Value::Nil)
            })
        }

        fn scan(self: Arc<Self>, _: Scan, _: Duration) -> Answer<Found> {
            unreachable!("no keys are listed")
        }

        fn health(&self) -> &Health {
            &self.health
        }

        fn commands(&self) -> &'static [&'static str] {
            &[]
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refund_is_sent_after_the_report_of_the_units_spent_from_a_lease() {
        let (link, store) = controlled();
        let policy = Policy::new("p", Quota::per_day(1_000)).max_lease(100);
        let charge = Charge::new(&policy, &Key::new("alice"), 1);
        let sent = || lock(&link.sent).len();
        while sent() < 4 {
            store.decide(Action::Charge, std::slice::from_ref(&charge)).await.unwrap();
            yield_now().await;
        }
        assert_eq!(lock(&link.sent).last(), Some(&(Action::Charge, 0)), "more units are fetched");
        let refunds = [1, 2].map(|units| {
            let refund = store.decide(Action::Refund, &[charge.clone().with_cost(units)]);
            tokio::spawn(async move { refund.await.map(|_| ()) })
        });
        let refunded = || {
            lock(&link.sent).iter().filter(|(action, units)| *action == Action::Refund && *units > 0).count()
        };
        for _ in 0..99 {
            yield_now().await;
        }
        assert_eq!(refunded(), 0, "the report is under way");
        link.permits.add_permits(1);
        for refund in refunds {
            refund.await.unwrap().unwrap();
        }
        assert_eq!(refunded(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_that_spends_only_leased_units_is_announced() {
        let (link, store) = controlled_by(RedisStore::builder());
        link.permits.add_permits(Semaphore::MAX_PERMITS);
        let policy = Policy::new("p", Quota::per_day(1_000_000)).max_lease(100);
        let charge = [Charge::new(&policy, &Key::new("alice"), 1)];
        let mut sources = Vec::new();
        for _ in 0..5_500 {
            sources.push(store.decide(Action::Charge, &charge).await.unwrap().source());
            sleep(Duration::from_millis(1)).await;
        }
        assert!(sources[1_000..].iter().all(|source| *source == DecisionSource::Lease));
        assert!(lock(&link.sent).iter().any(|(action, _)| *action == Action::Renew));
    }

    #[tokio::test]
    async fn a_denial_that_arrives_during_a_reset_ends_with_it() {
        for is_awaited in [true, false] {
            denied_during_a_reset(is_awaited).await;
        }
    }

    async fn denied_during_a_reset(is_awaited: bool) {
        let (link, store) = controlled();
        let charge = [Charge::new(&Policy::new("p", Quota::per_day(1)), &Key::new("alice"), 1)];
        let reset = tokio::spawn(store.reset(charge[0].policy(), charge[0].key()));
        yield_now().await;
        link.denies.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            assert!(store.decide(Action::Charge, &charge).await.unwrap().is_denied());
        }
        assert_eq!(lock(&link.sent).len(), 1, "the second denial is the stored one");
        link.denies.store(false, Ordering::Relaxed);
        if !is_awaited {
            reset.abort();
            yield_now().await;
        }
        link.permits.add_permits(1);
        assert_eq!(reset.await.is_ok(), is_awaited);
        // The reset goes on if its answer is dropped.
        for _ in 0..9 {
            yield_now().await;
        }
        assert!(!store.decide(Action::Charge, &charge).await.unwrap().is_denied());
    }
}
