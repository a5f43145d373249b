//! What was charged and admitted as the callers see it, and the invariants of their decisions.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
use tower_ratelimit::{
    Decision, Error, ErrorKind, FailureMode,
    decision::{DecisionSource, Outcome, Verdict},
};

use super::{
    account::Account,
    asked::{Ask, Asked, By, Held, Made},
    bans::Ended,
    log::Log,
    network::Network,
    rules::{Kind, Rule},
};

/// How much later than its deadline a decision may be answered: lanes look for late decisions every 2 ms, and timers
/// count milliseconds.
const SLACK: Duration = Duration::from_millis(5);
/// Waits are rounded up to seconds.
const SECOND: Duration = Duration::from_secs(1);
/// Longer than a deny cache holds a denial.
const DENY_CACHE: Duration = Duration::from_secs(2);

pub(super) struct Ledger {
    pub(super) rules: Vec<Rule>,
    pub(super) identities: u64,
    network: Arc<Network>,
    log: Arc<Log>,
    started: Instant,
    /// Notified when an instance begins to charge what it owes.
    reconciles: Notify,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    accounts: BTreeMap<(usize, usize), Account>,
    losses: u64,
    /// Losses, and steps of the clock that end permits early.
    permit_losses: u64,
    clock_was_set: bool,
    /// By how much the clock of the server was set forward.
    forward: Duration,
    /// Whether the server has no memory for writes, and how often that began.
    is_full: bool,
    times_full: u64,
    decisions: u64,
    asked: u64,
    /// Instances that are drained now, and how often.
    draining: BTreeMap<String, u64>,
    /// Instances that began to charge what they owe of these accounts.
    reconciling: Vec<(String, (usize, usize))>,
    had_failures: bool,
    had_crashes: bool,
    /// Whether units on lease may not return.
    loses_leases: bool,
}

impl Ledger {
    pub(super) fn new(rules: Vec<Rule>, identities: u64, network: Arc<Network>) -> Self {
        let log = network.log.clone();
        let (started, reconciles, inner) = (Instant::now(), Notify::new(), Mutex::default());
        Self { rules, identities, network, log, started, reconciles, inner }
    }

    pub(super) fn data_lost(&self) {
        let inner = &mut *self.inner.lock().unwrap();
        inner.losses += 1;
        inner.permit_losses += 1;
        inner.loses_leases = true;
        inner.accounts.values_mut().for_each(Account::data_lost);
    }

    pub(super) fn clock_set(&self, forward: Duration) {
        let inner = &mut *self.inner.lock().unwrap();
        inner.forward += forward;
        inner.clock_was_set = true;
        inner.loses_leases = true;
        inner.permit_losses += u64::from(!forward.is_zero());
        inner.accounts.values_mut().for_each(|account| account.bans.forget());
    }

    /// The server has no memory for writes from now on, or has it again.
    pub(super) fn full(&self, is_full: bool) {
        let inner = &mut *self.inner.lock().unwrap();
        inner.is_full = is_full;
        inner.times_full += u64::from(is_full);
    }

    /// An instance has crashed.
    pub(super) fn crashed(&self) {
        let inner = &mut *self.inner.lock().unwrap();
        inner.loses_leases = true;
        inner.had_crashes = true;
    }

    pub(super) fn clock_was_set(&self) -> bool {
        self.inner.lock().unwrap().clock_was_set
    }

    pub(super) fn had_crashes(&self) -> bool {
        self.inner.lock().unwrap().had_crashes
    }

    pub(super) fn decisions(&self) -> u64 {
        self.inner.lock().unwrap().decisions
    }

    /// Call it before a decision is made.
    pub(super) fn ask(&self, ask: Ask, charges: Vec<(usize, usize, u64)>, by: By) -> Asked {
        let inner = &mut *self.inner.lock().unwrap();
        inner.asked += 1;
        let number = inner.asked;
        let (mut counted, mut resets, mut known) = (Vec::new(), Vec::new(), Vec::new());
        for &(rule, identity, cost) in &charges {
            let account = inner.accounts.entry((rule, identity)).or_default();
            account.asked(number, if ask == Ask::Peek { 0 } else { cost });
            account.debited += if ask == Ask::Debit { cost } else { 0 };
            resets.push(account.resets.moments);
            counted.push(account.counted);
            known.push(account.bans.asked(ask.counts_denials()));
        }
        let started = Instant::now();
        let (losses, permit_losses) = (inner.losses, inner.permit_losses);
        let times_full = (!inner.is_full).then_some(inner.times_full);
        Asked { number, ask, charges, by, started, losses, permit_losses, times_full, counted, resets, known }
    }

    /// Checks how a decision ended. Returns the permits that it holds.
    pub(super) fn answered(&self, asked: &Asked, answer: &Result<Decision, Error>) -> Vec<Held> {
        self.inner.lock().unwrap().decisions += 1;
        let time = asked.started.elapsed();
        let shown = match answer {
            Ok(decision) => {
                let remaining: Vec<u64> = decision.outcomes().iter().map(Outcome::remaining).collect();
                let failure = decision.failure().map(Error::kind);
                format!(
                    "{:?} {} {remaining:?} {failure:?}",
                    decision.source(),
                    !decision.verdict().is_denied()
                )
            }
            Err(error) => format!("{:?}", error.kind()),
        };
        let Asked { ask, charges, by: By { instance, deadline, .. }, .. } = asked;
        self.log.note(format_args!("{instance} {ask:?} {charges:?}: {shown} after {time:?}"));
        if time > *deadline + SLACK {
            self.violated(asked, format_args!("answered after {time:?} at a deadline of {deadline:?}"));
        }
        let held = match answer {
            Ok(decision) => {
                match decision.failure().inspect(|_| self.inner.lock().unwrap().had_failures = true) {
                    None => self.decided(asked, decision),
                    Some(failure) => self.failed(asked, decision, failure),
                }
            }
            Err(error) => {
                self.inner.lock().unwrap().had_failures = true;
                if !self.modes(asked).any(|mode| mode == FailureMode::Closed)
                    || error.kind() == ErrorKind::InvalidConfig
                {
                    self.violated(asked, format_args!("failed although no policy is closed: {error}"));
                }
                self.not_sent(asked, error.kind(), |_| true);
                Vec::new()
            }
        };
        let failure = answer.as_ref().map_or_else(Some, Decision::failure);
        self.ended(asked, failure.is_none_or(|failure| !failure.kind().may_have_charged()));
        held
    }

    fn ended(&self, asked: &Asked, is_certain: bool) {
        let inner = &mut *self.inner.lock().unwrap();
        for &(rule, identity, _) in &asked.charges {
            inner.accounts.get_mut(&(rule, identity)).unwrap().ended(asked.number, is_certain);
        }
    }

    fn modes<'a>(&'a self, asked: &'a Asked) -> impl Iterator<Item = FailureMode> + 'a {
        asked.charges.iter().map(|(rule, ..)| self.rules[*rule].mode)
    }

    /// A decision of the store, the deny cache or a lease.
    fn decided(&self, asked: &Asked, decision: &Decision) -> Vec<Held> {
        let mut held = Vec::new();
        if decision.outcomes().len() != asked.charges.len() {
            self.violated(asked, format_args!("has {} outcomes", decision.outcomes().len()));
            return held;
        }
        let inner = &mut *self.inner.lock().unwrap();
        let elapsed = self.started.elapsed() + inner.forward;
        let is_certain = asked.losses == inner.losses;
        let allowed = !decision.verdict().is_denied();
        let by_store = decision.source() == DecisionSource::Store;
        for (place, (&(rule_number, identity, cost), outcome)) in
            asked.charges.iter().zip(decision.outcomes()).enumerate()
        {
            let rule = &self.rules[rule_number];
            let key = rule.key(&identity.to_string());
            let account = inner.accounts.get_mut(&(rule_number, identity)).unwrap();
            let charges = asked.ask != Ask::Peek;
            let granted = if allowed && charges { outcome.granted() } else { 0 };
            let is_repeated = self.network.is_repeated(&key);
            // The decision may be older than a reset, or than the end of one.
            let is_current = asked.resets[place] == account.resets.moments
                && (by_store || account.resets.latest.is_none_or(|latest| latest.elapsed() > DENY_CACHE));
            let is_exact = rule.is_slow() && !rule.is_leased() && !is_repeated && is_current;
            let is_certain = is_certain && is_current && !account.resets.failed;
            let policy = rule.policy(asked.by.is_changed);
            let limit = policy.quota().limit();
            let replenished = rule.replenished(rule.largest, elapsed);
            if outcome.policy() != policy || outcome.charge().key().as_str() != identity.to_string() {
                self.violated(asked, format_args!("is about {outcome:?}"));
            }
            let full = rule.replenished_in(limit).max(outcome.banned_for().unwrap_or_default());
            if let (Verdict::Deny { retry_after: Some(wait), .. }, None, Kind::Bucket, true) =
                (outcome.verdict(), outcome.banned_for(), rule.kind, by_store && !is_repeated)
            {
                // What was charged within the limit does not become a debt under a smaller quota.
                let units = u32::try_from(cost + account.debited + 1).unwrap();
                let longest = policy.quota().period() * units / limit as u32 + SECOND;
                if wait > longest {
                    self.violated(asked, format_args!("{key}: denied for {wait:?}, not {longest:?}"));
                }
            }
            if outcome.remaining() > limit || outcome.reset_after() > full {
                self.violated(asked, format_args!("{key}: no such quota: {outcome:?}"));
            }
            if granted > cost || allowed && asked.ask == Ask::Charge && granted != cost {
                self.violated(asked, format_args!("{key}: {granted} units granted"));
            }
            if outcome.verdict().is_denied() && outcome.banned_for().is_none() && is_exact {
                let wanted = if asked.ask == Ask::UpTo { 1 } else { cost };
                let possible = account.possible - if charges { cost } else { 0 };
                if possible + wanted <= limit {
                    self.violated(asked, format_args!("{key}: denied with {possible} possible charges"));
                }
            }
            let used = limit.saturating_sub(outcome.remaining());
            if is_exact && outcome.banned_for().is_none() && used > account.possible {
                let possible = account.possible;
                self.violated(asked, format_args!("{key}: {used} units used, {possible} can be"));
            }
            let certain = rule.level(asked.counted[place] + granted);
            let certain = certain.saturating_sub(account.refunded + replenished);
            // A debt is not shown.
            let certain = certain.min(limit);
            if is_exact && is_certain && by_store && used < certain {
                self.violated(asked, format_args!("{key}: {used} units used, {certain} must be"));
            }
            if charges {
                account.not_charged(asked.number, if allowed { cost - granted } else { cost });
            }
            let ended = Ended {
                by_store,
                denied: outcome.verdict().is_denied(),
                others_banned: decision.banned_for().is_some(),
                banned_for: outcome.banned_for(),
                obeys: cost > 0 && asked.ask != Ask::Debit,
                counts: asked.ask.counts_denials(),
                may_be_uncounted: asked.times_full != Some(inner.times_full),
            };
            if rule.penalty.is_none() && outcome.banned_for().is_some() {
                self.violated(asked, format_args!("{key}: banned without a penalty"));
            }
            if let Some(strikes) = rule.penalty {
                let wrong = account.bans.ended(
                    strikes,
                    asked.known[place],
                    &ended,
                    asked.started,
                    elapsed,
                    inner.losses,
                );
                if let Some(wrong) = wrong.filter(|_| !self.network.is_repeated(&key)) {
                    self.violated(asked, format_args!("{key}: {wrong}"));
                }
            }
            account.admitted += granted;
            if is_certain {
                account.counted += granted;
            }
            if rule.kind == Kind::Concurrency {
                if granted > 0 {
                    let by = asked.permit_losses;
                    let in_use = account.held.entry(by).or_default();
                    *in_use += granted;
                    if by == inner.permit_losses && *in_use > rule.limit {
                        self.violated(asked, format_args!("{key}: {in_use} permits in use"));
                    }
                    held.push(Held { rule: rule_number, identity, units: granted, by: Ok(by) });
                }
                continue;
            }
            let allowance = account.allowance(rule, inner.losses, elapsed);
            if account.admitted > allowance && !self.network.is_repeated(&key) {
                let admitted = account.admitted;
                self.violated(asked, format_args!("{key}: {admitted} units admitted, {allowance} may be"));
            }
            self.over_all_outages(asked, rule, account, allowance, elapsed);
        }
        if by_store {
            self.store_decided(inner, &asked.by.instance);
        }
        held
    }

    /// The store made a decision of `instance`, so what the instance owes is charged now.
    fn store_decided(&self, inner: &mut Inner, instance: &str) {
        let accounts = inner.accounts.iter_mut();
        let begun = accounts.filter_map(|(name, account)| account.store_decided(instance).then_some(*name));
        inner.reconciling.extend(begun.map(|name| (instance.to_owned(), name)));
        self.reconciles.notify_waiters();
    }

    /// The store made another decision of `instance`.
    pub(super) fn store_answered(&self, instance: &str) {
        self.store_decided(&mut self.inner.lock().unwrap(), instance);
    }

    /// A decision of the failure modes.
    fn failed(&self, asked: &Asked, decision: &Decision, failure: &Error) -> Vec<Held> {
        let mut held = Vec::new();
        let is_local = |mode: &FailureMode| matches!(mode, FailureMode::Local { .. });
        if self.modes(asked).any(|mode| mode == FailureMode::Closed) {
            self.violated(asked, format_args!("decided although a policy is closed"));
        }
        if decision.outcomes().len() != self.modes(asked).filter(is_local).count() {
            self.violated(asked, format_args!("has {} outcomes", decision.outcomes().len()));
            return held;
        }
        let allowed = !decision.verdict().is_denied();
        if decision.outcomes().is_empty() && !allowed {
            self.violated(asked, format_args!("denied without a count"));
        }
        self.not_sent(asked, failure.kind(), |mode| !allowed || !is_local(&mode));
        if asked.ask == Ask::Peek || !allowed {
            return held;
        }
        let was_not_sent = !failure.kind().may_have_charged();
        let inner = &mut *self.inner.lock().unwrap();
        let elapsed = self.started.elapsed();
        let locals = asked.charges.iter().filter(|(rule, ..)| is_local(&self.rules[*rule].mode));
        for (&(rule_number, identity, cost), outcome) in locals.zip(decision.outcomes()) {
            let rule = &self.rules[rule_number];
            let granted = outcome.granted();
            let account = inner.accounts.get_mut(&(rule_number, identity)).unwrap();
            if was_not_sent {
                account.not_charged(asked.number, cost - granted);
            }
            if rule.kind == Kind::Concurrency {
                let in_use = account.held_locally.entry(asked.by.instance.clone()).or_default();
                *in_use += granted;
                // A reset forgets those that are in use.
                if *in_use > rule.share() * (1 + account.resets.tried) {
                    self.violated(asked, format_args!("{in_use} permits in use without the store"));
                }
                let by = Err(asked.by.instance.clone());
                held.push(Held { rule: rule_number, identity, units: granted, by });
                continue;
            }
            let local = account.local.entry(asked.by.instance.clone()).or_default();
            local.admitted += granted;
            if was_not_sent {
                local.owed += granted;
            }
            if inner.draining.get(&asked.by.instance).is_some_and(|drains| *drains > 0) {
                account.store_decided(&asked.by.instance);
            }
            let local = &account.local[&asked.by.instance];
            let share = rule.share() * (1 + account.resets.tried);
            let bound = share + local.moved + account.refunded + rule.replenished(rule.share(), elapsed);
            if local.admitted > bound {
                let admitted = local.admitted;
                self.violated(asked, format_args!("{admitted} units admitted locally, {bound} may be"));
            }
            let allowance = account.allowance(rule, inner.losses, self.started.elapsed() + inner.forward);
            self.over_all_outages(asked, rule, account, allowance, elapsed);
        }
        held
    }

    /// Checks what was admitted with and without the store over all outages: no more than the store may admit and, once
    /// for each instance that ran, its share.
    fn over_all_outages(
        &self,
        asked: &Asked,
        rule: &Rule,
        account: &Account,
        allowance: u64,
        elapsed: Duration,
    ) {
        let key = rule.key(&asked.charges[0].1.to_string());
        if self.network.is_repeated(&key) {
            return;
        }
        let share = rule.share() + rule.replenished(rule.share(), elapsed);
        let admitted = account.admitted + account.local.values().map(|local| local.admitted).sum::<u64>();
        // A reset forgets what an instance has admitted.
        let bound = allowance + share * (account.local.len() as u64 + account.resets.tried);
        if admitted > bound {
            let instances = account.local.len();
            self.violated(
                asked,
                format_args!(
                    "{key}: {admitted} units admitted over all outages of {instances} instances, {bound} may be"
                ),
            );
        }
    }

    /// Takes the charges back that were certainly not sent and that are not owed.
    fn not_sent(&self, asked: &Asked, kind: ErrorKind, is_meant: impl Fn(FailureMode) -> bool) {
        if asked.ask == Ask::Peek || kind.may_have_charged() {
            return;
        }
        let inner = &mut *self.inner.lock().unwrap();
        for &(rule, identity, cost) in &asked.charges {
            let account = inner.accounts.get_mut(&(rule, identity)).unwrap();
            if is_meant(self.rules[rule].mode) {
                account.not_charged(asked.number, cost);
            }
            if asked.ask.counts_denials() {
                account.bans.not_counted();
            }
        }
    }

    /// The charges that `decision` made: in an outage, only those that this process counts.
    pub(super) fn charged(
        &self,
        decision: &Decision,
        charges: Vec<(usize, usize, u64)>,
    ) -> Vec<(usize, usize, u64)> {
        let is_local = |rule: usize| matches!(self.rules[rule].mode, FailureMode::Local { .. });
        let by_store = decision.failure().is_none();
        charges.into_iter().filter(|(rule, ..)| by_store || is_local(*rule)).collect()
    }

    /// Checks how a refund of what `made` charged ended.
    pub(super) fn refunded(&self, asked: &Asked, answer: &Result<Decision, Error>, made: &Made) {
        let time = asked.started.elapsed();
        let Asked { charges, by: By { instance, deadline, .. }, .. } = asked;
        let failure = match answer {
            Ok(decision) => decision.failure().map(Error::kind),
            Err(error) => Some(error.kind()),
        };
        self.log.note(format_args!("{instance} Refund {charges:?}: {failure:?} after {time:?}"));
        if time > *deadline + SLACK {
            self.violated(asked, format_args!("refunded after {time:?} at a deadline of {deadline:?}"));
        }
        // What is not charged is so in the end, unless the charge or its refund may have been lost.
        let is_certain =
            |failure: Option<&Error>| failure.is_none_or(|failure| !failure.kind().may_have_charged());
        let is_done = answer.as_ref().is_ok_and(|refunded| {
            is_certain(refunded.failure())
                && (refunded.failure().is_none() || refunded.source() == DecisionSource::Local)
        });
        if is_done && is_certain(made.decision.failure()) && made.by == *instance {
            let inner = &mut *self.inner.lock().unwrap();
            for &(rule, identity, units) in charges {
                let account = inner.accounts.get_mut(&(rule, identity)).unwrap();
                if account.resets.latest.is_none_or(|latest| latest < made.at) {
                    account.given_back.push((instance.clone(), made.at, units));
                }
            }
        }
    }

    /// The caller has dropped the decision. Its charge may stay.
    pub(super) fn dropped(&self, asked: &Asked) {
        let Asked { ask, charges, by: By { instance, .. }, .. } = asked;
        self.log.note(format_args!("{instance} {ask:?} {charges:?}: dropped"));
        self.ended(asked, false);
    }

    /// An operator begins to reset an account. Returns the number of the reset.
    pub(super) fn resetting(&self, account: (usize, usize)) -> u64 {
        let inner = &mut *self.inner.lock().unwrap();
        inner.permit_losses += u64::from(self.rules[account.0].kind == Kind::Concurrency);
        inner.accounts.entry(account).or_default().resetting(inner.losses)
    }

    /// The reset `number` by `instance` has ended.
    pub(super) fn reset(
        &self,
        account: (usize, usize),
        number: u64,
        instance: &str,
        answer: &Result<(), Error>,
    ) {
        let failure = answer.as_ref().err().map(Error::kind);
        self.log.note(format_args!("{instance} Reset {account:?}: {failure:?}"));
        let rule = &self.rules[account.0];
        // What arrives later than the reset stays charged.
        let is_done = failure.is_none() && !self.network.has_late_call(&rule.key(&account.1.to_string()));
        let may_come = failure.is_some_and(ErrorKind::may_have_charged);
        let inner = &mut *self.inner.lock().unwrap();
        inner.permit_losses += u64::from(rule.kind == Kind::Concurrency);
        inner.accounts.get_mut(&account).unwrap().reset(number, instance, is_done, may_come);
    }

    /// The accounts whose units an instance began to charge to the store after an outage, since the last call.
    pub(super) async fn reconciling(&self) -> Vec<(String, (usize, usize))> {
        loop {
            let changed = self.reconciles.notified();
            let begun = mem::take(&mut self.inner.lock().unwrap().reconciling);
            if !begun.is_empty() {
                return begun;
            }
            changed.await;
        }
    }

    /// Whether the data was lost, the clock was set, or an instance has crashed.
    pub(super) fn loses_leases(&self) -> bool {
        self.inner.lock().unwrap().loses_leases
    }

    /// An instance begins to charge what it owes at any moment, because it is drained or makes other decisions, or it has
    /// ended that.
    pub(super) fn drains(&self, instance: &str, begins: bool) {
        let inner = &mut *self.inner.lock().unwrap();
        let drains = inner.draining.entry(instance.to_owned()).or_default();
        *drains = if begins { *drains + 1 } else { *drains - 1 };
        inner.accounts.values_mut().for_each(|account| {
            account.store_decided(instance);
        });
    }

    /// Call it before a caller bans the key of an account for a time, or ends its ban if that is 0.
    pub(super) fn setting_ban(&self, account: (usize, usize), time: Duration, by: By) -> Asked {
        let asked = self.ask(Ask::Peek, vec![(account.0, account.1, 0)], by);
        let inner = &mut *self.inner.lock().unwrap();
        let bans = &mut inner.accounts.get_mut(&account).unwrap().bans;
        bans.setting(time);
        Asked { known: vec![bans.asked(false)], ..asked }
    }

    /// Checks how it ended.
    pub(super) fn set_ban(&self, asked: &Asked, time: Duration, answer: &Result<(), Error>) {
        let Asked { charges, by: By { instance, deadline, .. }, .. } = asked;
        let (failure, elapsed) = (answer.as_ref().err().map(Error::kind), asked.started.elapsed());
        self.log.note(format_args!("{instance} Ban {charges:?} {time:?}: {failure:?} after {elapsed:?}"));
        if elapsed > *deadline + SLACK {
            self.violated(asked, format_args!("set after {elapsed:?} at a deadline of {deadline:?}"));
        }
        if failure.is_none() {
            let (rule, identity, _) = charges[0];
            let inner = &mut *self.inner.lock().unwrap();
            let bans = &mut inner.accounts.get_mut(&(rule, identity)).unwrap().bans;
            bans.set(time, asked.started, asked.known[0]);
        }
    }

    /// Call it before a refund of this many units of a decision.
    pub(super) fn refunding(&self, made: &Made, units: u64) {
        let inner = &mut *self.inner.lock().unwrap();
        for &(rule, identity, _) in &made.charges {
            let account = inner.accounts.get_mut(&(rule, identity)).unwrap();
            // What an instance has charged after an outage, or at another time of the server, may be from after a reset.
            let is_timely = made.decision.failure().is_none() && !inner.clock_was_set;
            if !(is_timely && account.resets.is_after(made.answered, inner.losses)) {
                account.refunded += units;
            }
        }
    }

    pub(super) fn released(&self, held: &Held) {
        let inner = &mut *self.inner.lock().unwrap();
        let account = inner.accounts.get_mut(&(held.rule, held.identity)).unwrap();
        let in_use = match &held.by {
            Ok(losses) => account.held.get_mut(losses),
            Err(instance) => account.held_locally.get_mut(instance),
        };
        *in_use.unwrap() -= held.units;
    }

    /// The least units of the account that are used if `instances` reconcile what they owe.
    pub(super) fn must_be_used(&self, account: (usize, usize), instances: &[String]) -> Option<u64> {
        let rule = &self.rules[account.0];
        let key = rule.key(&account.1.to_string());
        let inner = &*self.inner.lock().unwrap();
        let account = inner.accounts.get(&account)?;
        let resets = &account.resets;
        if !rule.is_slow() || resets.failed || rule.is_leased() && inner.losses + resets.tried > 0 {
            return None;
        }
        let replenished = rule.replenished(rule.largest, self.started.elapsed() + inner.forward);
        let least = account.least_used(instances, self.network.last_trouble(&key));
        // What was reconciled under the smaller quota was charged only up to this quota, and only up to what was not on
        // lease then. The rest counts in the instance.
        let smallest = rule.limit.min(rule.changed.quota().limit());
        let on_lease = rule.leased * instances.len() as u64;
        let least = least.min(account.counted.max(smallest.saturating_sub(on_lease)));
        Some(least.min(rule.limit).saturating_sub(account.refunded + replenished))
    }

    /// The most units that can be used, if no unit is missing because of a lease.
    pub(super) fn can_be_used(&self, account: (usize, usize), instances: &[String]) -> Option<u64> {
        let rule = &self.rules[account.0];
        let key = rule.key(&account.1.to_string());
        let inner = &*self.inner.lock().unwrap();
        let account = inner.accounts.get(&account)?;
        let failed = inner.had_failures || self.network.last_trouble(&key).is_some();
        // Another instance may have spent units of a lease from before a reset.
        let is_reset = account.resets.tried > 0 && instances.len() > 1;
        let loses_units = rule.is_leased() && (inner.loses_leases || failed || is_reset);
        if !rule.is_slow() || loses_units || self.network.is_repeated(&key) {
            return None;
        }
        if inner.clock_was_set || rule.is_leased() {
            return Some(account.possible);
        }
        // A refund returns no more than still counts: what was replenished since is not returned.
        let replenished = rule.replenished(rule.largest, self.started.elapsed());
        let given_back = account.certainly_given_back(instances, self.network.last_trouble(&key));
        Some(account.possible - given_back.saturating_sub(replenished).min(account.possible))
    }

    pub(super) fn accounts(&self) -> Vec<(usize, usize)> {
        self.inner.lock().unwrap().accounts.keys().copied().collect()
    }

    pub(super) fn violated(&self, asked: &Asked, what: std::fmt::Arguments<'_>) {
        let Asked { ask, charges, by: By { instance, .. }, .. } = asked;
        self.log.violated(format_args!("{instance} {ask:?} {charges:?} {what}"));
    }
}
