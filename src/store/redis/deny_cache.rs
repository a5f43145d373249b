//! The deny cache: denies requests on an exhausted key without Redis.
//!
//! It stores denials of one unit by a policy that had none left. Until the wait of such a denial is over, no instance
//! can charge that key a unit, so the same request gets the same denial, with the rest of the wait. Four events end a
//! denial early: a reset, a refund, returned leased units, and a policy of the same name with another quota. Events in
//! the same store take effect immediately, events of other instances when the denial has been stored for
//! [`DenyCache::max_age`]. A denial by several policies ends with each such event in the same store: the wait may come
//! from a policy other than the cell's.
//!
//! Denials by a policy whose penalty counts them are not stored, because Redis must count them. But denials of a banned
//! key are, until the ban ends: a ban is ended early by the same events.
//!
//! Denials of several units are not stored: before their wait is over, some of the units may be available and be
//! charged to another request.
//!
//! The table has a fixed number of cells. A cell holds the latest denial whose hash leads there. An overwritten denial
//! only costs one more decision in Redis. A lookup takes no lock and writes nothing that threads share: all clients of an
//! exhausted key read one cell.

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;

use super::clock::Clock;
use crate::{
    base::{sync::lock, time::micros},
    decision::{Charge, Decision, DecisionSource, Outcome, Verdict},
    key::Key,
    policy::Policy,
    store::Action,
};

pub(crate) struct DenyCache {
    cells: Box<[Cell]>,
    clock: Arc<Clock>,
    /// The longest time for which a denial is stored, in microseconds.
    max_age: u64,
    /// How often entries were invalidated. A reply that was under way then is not stored.
    invalidations: AtomicU64,
}

#[derive(Default)]
struct Cell {
    /// Of the policy and the key of its latest denial, so a lookup of another one reads no more.
    hash: AtomicU64,
    denial: ArcSwapOption<CachedDenial>,
    /// Held to insert and to invalidate, so no invalidation comes between the check and the store of an insertion.
    change: Mutex<()>,
}

/// The state of the cache when a request was sent.
#[derive(Clone, Copy)]
pub(crate) struct Stamp {
    sent_at: u64,
    invalidations: u64,
}

struct CachedDenial {
    decision: Decision,
    /// When the reply was received. Redis decided before that, so a wait counted from here is never too short.
    received_at: u64,
    /// When the denial may no longer hold. Counted from before the request was sent, so never too late.
    expires_at: u64,
    /// How often entries were invalidated, if several policies deny. The next invalidation ends the denial.
    invalidations: Option<u64>,
}

const CELLS: usize = 4096;

impl DenyCache {
    pub(crate) fn new(max_age: Duration, clock: Arc<Clock>) -> Self {
        Self {
            cells: (0..CELLS).map(|_| Cell::default()).collect(),
            clock,
            max_age: micros(max_age),
            invalidations: AtomicU64::new(0),
        }
    }

    /// The decision over `charges` at the time of `stamp`, if it is stored.
    pub(crate) fn lookup(&self, charges: &[Charge], stamp: Stamp) -> Option<Decision> {
        let now = stamp.sent_at;
        for charge in charges {
            let hash = hash(charge.policy(), charge.key());
            let cell = self.cell(hash);
            if cell.hash.load(Ordering::Relaxed) != hash {
                continue;
            }
            let loaded = cell.denial.load();
            let Some(cached) = &*loaded else { continue };
            let is_over = !(cached.received_at..cached.expires_at).contains(&now)
                || cached.invalidations.is_some_and(|count| count != stamp.invalidations);
            if is_over || cached.conflicts_with(charge) {
                // The denial has expired, the clock stepped back, another denial of the request may have ended, or the key is
                // charged under another quota, and this request may change its counts. A newer denial stays.
                cell.denial.compare_and_swap(&loaded, None);
            } else if covers(&cached.decision, charges) {
                let elapsed = Duration::from_micros(now - cached.received_at);
                let decision = match (cached.decision.all_outcomes(), charges) {
                    ([outcome], [charge]) => Decision::of_one(after(outcome, charge, elapsed)),
                    (outcomes, charges) => {
                        let pairs = outcomes.iter().zip(charges);
                        Decision::new(pairs.map(|(outcome, charge)| after(outcome, charge, elapsed)))
                    }
                };
                return Some(decision.made_by(DecisionSource::DenyCache));
            }
        }
        None
    }

    /// What [`insert`](Self::insert) needs of a request at the time `sent_at`.
    pub(crate) fn stamp(&self, sent_at: u64) -> Stamp {
        Stamp { sent_at, invalidations: self.invalidations.load(Ordering::Acquire) }
    }

    /// Stores a decision if it is a denial that lasts.
    pub(crate) fn insert(&self, decision: &Decision, stamp: Stamp) {
        if !decision.is_denied() {
            return;
        }
        let mut lifetime = self.max_age;
        let is_banned = decision.is_banned();
        let (mut first, mut denying) = (None, 0);
        for outcome in decision.outcomes() {
            let wait = if is_banned {
                // The request is denied until the ban ends, regardless of the policies that do not ban.
                outcome.banned_for()
            } else if outcome.policy().counts_denials() || outcome.charge().needs_permit() {
                // A permit may be released at any moment.
                return;
            } else if !outcome.is_denied() {
                None
            } else if outcome.charge().cost() == 1
                && outcome.remaining() == 0
                && outcome.retry_after().is_some()
            {
                outcome.retry_after()
            } else {
                return;
            };
            if let Some(wait) = wait {
                lifetime = lifetime.min(micros(wait));
                denying += 1;
                first.get_or_insert(outcome);
            }
        }
        if let Some(first) = first {
            let (received_at, expires_at) = (self.clock.micros(), stamp.sent_at.saturating_add(lifetime));
            let invalidations = (denying > 1).then_some(stamp.invalidations);
            let cached = CachedDenial { decision: decision.clone(), received_at, expires_at, invalidations };
            let hash = hash(first.policy(), first.key());
            let cell = self.cell(hash);
            let _change = lock(&cell.change);
            // Checked under the lock, so a later invalidation also removes this entry.
            if stamp.invalidations == self.invalidations.load(Ordering::Acquire) {
                cell.hash.store(hash, Ordering::Relaxed);
                cell.denial.store(Some(Arc::new(cached)));
            }
        }
    }

    /// Removes the denial of `key` under `policy`. Call it after the store refunded units, so no older reply is stored
    /// afterwards.
    pub(crate) fn invalidate(&self, policy: &Policy, key: &Key) {
        // In this order: a later reply sees the new count, and an earlier one is removed from its cell.
        self.invalidations.fetch_add(1, Ordering::AcqRel);
        let cell = self.cell(hash(policy, key));
        let _change = lock(&cell.change);
        cell.denial.store(None);
    }

    fn cell(&self, hash: u64) -> &Cell {
        &self.cells[hash as usize % CELLS]
    }
}

/// FNV-1a. A client whose keys collide gains nothing: its denials overwrite each other, and Redis makes them again.
fn hash(policy: &Policy, key: &Key) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    key.as_bytes().iter().fold(policy.tag(), step)
}

/// Updates a deny cache with the result of a job.
pub(crate) struct DenyObserver {
    cache: Arc<DenyCache>,
    stamp: Stamp,
    /// Whether the job frees units that other requests can be charged. Then its keys are invalidated, regardless of the
    /// decision.
    frees_units: bool,
    /// How many invalidations were caused by undoing a part of this job. They do not affect its denial.
    undo_invalidations: OnceLock<Arc<AtomicU64>>,
}

impl DenyObserver {
    /// Observes a job that is sent now. `frees_units` is whether it returns units of a lease.
    pub(crate) fn new(cache: &Arc<DenyCache>, stamp: Stamp, action: Action, frees_units: bool) -> Self {
        let frees_units = frees_units || action != Action::Charge;
        Self { cache: cache.clone(), stamp, frees_units, undo_invalidations: OnceLock::new() }
    }

    /// Call it when Redis has made a decision over `charges`, or when it failed as a whole and may have been carried out in
    /// part.
    pub(crate) fn settled(&self, action: Action, charges: &[Charge], decision: Option<&Decision>) {
        if self.frees_units {
            for charge in charges {
                self.cache.invalidate(charge.policy(), charge.key());
                if action == Action::Ban {
                    // The bans of a client hold for its preflights.
                    self.cache.invalidate(charge.policy(), &charge.key().of_preflight());
                }
            }
            if let Some(undo_invalidations) = self.undo_invalidations.get() {
                undo_invalidations.fetch_add(charges.len() as u64, Ordering::AcqRel);
            }
        } else if let Some(decision) = decision {
            let undo_invalidations = self
                .undo_invalidations
                .get()
                .map_or(0, |undo_invalidations| undo_invalidations.load(Ordering::Acquire));
            let stamp = Stamp { invalidations: self.stamp.invalidations + undo_invalidations, ..self.stamp };
            self.cache.insert(decision, stamp);
        }
    }

    /// An observer for a job that undoes a part of this one, which was charged and then denied.
    #[cfg(feature = "cluster")]
    pub(crate) fn undoing(&self) -> Self {
        let undo_invalidations = self.undo_invalidations.get_or_init(Arc::default).clone().into();
        Self { cache: self.cache.clone(), stamp: self.stamp, frees_units: true, undo_invalidations }
    }
}

impl CachedDenial {
    /// Whether `charge` is on the same key, under a policy of the same name that counts differently.
    fn conflicts_with(&self, charge: &Charge) -> bool {
        self.decision.all_outcomes().iter().any(|outcome| {
            outcome.key() == charge.key()
                && outcome.policy().label() == charge.policy().label()
                && !outcome.policy().counts_as(charge.policy())
        })
    }
}

/// Whether `decision` is over the same charges.
fn covers(decision: &Decision, charges: &[Charge]) -> bool {
    let outcomes = decision.all_outcomes();
    outcomes.len() == charges.len()
        && outcomes.iter().zip(charges).all(|(outcome, charge)| {
            outcome.charge().cost() == charge.cost()
                && outcome.key() == charge.key()
                && outcome.policy().counts_as(charge.policy())
                && outcome.is_shadow() == charge.is_shadow()
        })
}

/// The outcome for `charge`, `elapsed` after `cached`. The values of the denying policies are exact, as nothing was
/// charged to them. Outcomes of the other policies are as old as the denial.
fn after(cached: &Outcome, charge: &Charge, elapsed: Duration) -> Outcome {
    let verdict = match cached.verdict() {
        Verdict::Deny { retry_after } => {
            Verdict::Deny { retry_after: retry_after.map(|wait| wait.saturating_sub(elapsed)) }
        }
        other => other,
    };
    let reset = cached.reset_after().saturating_sub(elapsed);
    let outcome = Outcome::new(charge, verdict, cached.remaining(), reset).granting(cached.granted());
    match cached.banned_for() {
        Some(rest) => outcome.banning(rest.saturating_sub(elapsed)),
        None => outcome,
    }
}
