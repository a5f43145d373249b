//! The deny cache: a key that has nothing left is refused here until it has something again.
//!
//! What is remembered is a refusal of one unit by a policy that had none left. From then until the wait it
//! named is over nobody anywhere can be charged a unit under that policy and key, so nothing changes, and
//! the same question has the same answer, with so much less to wait. Four things do change it: a reset,
//! a refund, units on lease that are given back, and a policy of the same name with another quota. Through
//! the same store they take effect at once; what another instance does is seen when the refusal has been
//! remembered for [`DenyCache::longest`].
//!
//! Refusals of several units are not remembered. The wait they name is for all of them, and before it is
//! over fewer may be there and go to somebody else.
//!
//! A table of places that each hold the latest refusal whose hash leads there: of fixed size, with nothing to
//! evict. A refusal that is overwritten costs a question to Redis, and nothing else.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::clock::Clock;
use crate::{
    decision::{Charge, Decision, Outcome, Verdict},
    key::Key,
    policy::Policy,
    store::{
        Action, ManualClock,
        redis::wire::{Job, Observer, Reply},
    },
    util::{sync::lock, time::micros},
};

pub(crate) struct DenyCache {
    places: Box<[Mutex<Option<Box<Refusal>>>]>,
    hasher: RandomState,
    clock: Clock,
    /// How long a refusal is remembered at most.
    longest: u64,
    /// How often something was forgotten. A reply that was on its way meanwhile is not remembered.
    forgotten: AtomicU64,
}

/// What a question was before it was asked.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    at: u64,
    forgotten: u64,
}

struct Refusal {
    decision: Decision,
    /// When the reply came. Redis had decided before that, so this is the latest that the waits count from.
    came: u64,
    /// When it is no longer sure. Counted from before the question was asked, so never too late.
    over: u64,
}

const PLACES: usize = 4096;

impl DenyCache {
    pub(crate) fn new(longest: Duration, clock: Option<ManualClock>) -> Self {
        Self {
            places: (0..PLACES).map(|_| Mutex::new(None)).collect(),
            hasher: RandomState::new(),
            clock: Clock::new(clock),
            longest: micros(longest),
            forgotten: AtomicU64::new(0),
        }
    }

    /// The decision over `charges`, where it is known, or what [`remember`](Self::remember) needs.
    pub(crate) fn look(&self, charges: &[Charge]) -> Result<Decision, Asked> {
        let asked = self.asked();
        let now = asked.at;
        for charge in charges {
            let mut place = self.place(charge.policy(), charge.key());
            let Some(refusal) = &*place else { continue };
            if !(refusal.came..refusal.over).contains(&now) || refusal.is_doubted_by(charge) {
                // It is over, or the clock stepped back, or the key is counted by another rule: what is asked
                // now may change what was so.
                *place = None;
            } else if is_over(&refusal.decision, charges) {
                let passed = Duration::from_micros(now - refusal.came);
                return Ok(match (refusal.decision.outcomes(), charges) {
                    ([outcome], [charge]) => {
                        let told = Told::of(outcome);
                        // Others wait for it.
                        drop(place);
                        Decision::of_one(told.later(charge, passed))
                    }
                    (outcomes, charges) => Decision::new(
                        outcomes
                            .iter()
                            .zip(charges)
                            .map(|(outcome, charge)| Told::of(outcome).later(charge, passed)),
                    ),
                });
            }
        }
        Err(asked)
    }

    pub(crate) fn asked(&self) -> Asked {
        Asked { at: self.now(), forgotten: self.forgotten.load(Ordering::Acquire) }
    }

    /// Takes note of a decision, if it is a refusal that lasts.
    pub(crate) fn remember(&self, decision: &Decision, asked: Asked) {
        if decision.is_allowed() {
            return;
        }
        let mut lasts = self.longest;
        let mut first = None;
        for outcome in decision.outcomes() {
            if outcome.charge().needs_permit() {
                // A slot may come free at any moment.
                return;
            }
            if outcome.is_allowed() {
                continue;
            }
            match outcome.retry_after() {
                Some(wait) if outcome.charge().cost() == 1 && outcome.remaining() == 0 => {
                    lasts = lasts.min(micros(wait));
                }
                _ => return,
            }
            first.get_or_insert(outcome);
        }
        if let Some(first) = first {
            let (came, over) = (self.now(), asked.at.saturating_add(lasts));
            let refusal = Refusal { decision: decision.clone(), came, over };
            let mut place = self.place(first.policy(), first.key());
            // Under the lock, so that what is forgotten from now on is forgotten with this.
            if asked.forgotten == self.forgotten.load(Ordering::Acquire) {
                *place = Some(Box::new(refusal));
            }
        }
    }

    /// Forgets what is remembered of `key` under `policy`: to be called when the store has given units back,
    /// so that no reply from before that is remembered after it.
    pub(crate) fn forget(&self, policy: &Policy, key: &Key) {
        // In this order: a reply that comes later sees the first, and one that came before goes with the second.
        self.forgotten.fetch_add(1, Ordering::AcqRel);
        self.place(policy, key).take();
    }

    fn place(&self, policy: &Policy, key: &Key) -> MutexGuard<'_, Option<Box<Refusal>>> {
        let hash = self.hasher.hash_one((policy.tag(), key));
        lock(&self.places[hash as usize % PLACES])
    }

    fn now(&self) -> u64 {
        self.clock.micros()
    }
}

/// Tells a deny cache what became of a job.
pub(crate) struct DenyWatch {
    cache: Arc<DenyCache>,
    asked: Asked,
    /// Whether units come back that others can be charged: then the keys are forgotten, whatever the decision.
    frees: bool,
    /// How much was forgotten to undo a part of the job, which does not matter to its denial.
    undone: OnceLock<Arc<AtomicU64>>,
}

impl DenyWatch {
    /// Watches a job that is asked now. `frees` says whether it returns units of a lease.
    pub(crate) fn new(cache: &Arc<DenyCache>, asked: Asked, action: Action, frees: bool) -> Self {
        let frees = frees || action != Action::Charge;
        Self { cache: cache.clone(), asked, frees, undone: OnceLock::new() }
    }
}

impl Observer for DenyWatch {
    fn settled(&self, job: &Job, reply: Option<&Reply>) {
        if self.frees {
            job.charges.iter().for_each(|charge| self.cache.forget(charge.policy(), charge.key()));
            if let Some(undone) = self.undone.get() {
                undone.fetch_add(job.charges.len() as u64, Ordering::AcqRel);
            }
        } else if let Some(reply) = reply {
            let undone = self.undone.get().map_or(0, |undone| undone.load(Ordering::Acquire));
            let asked = Asked { forgotten: self.asked.forgotten + undone, ..self.asked };
            self.cache.remember(&reply.decision, asked);
        }
    }

    #[cfg(feature = "cluster")]
    fn undoing(&self) -> Option<Box<dyn Observer>> {
        let undone = self.undone.get_or_init(Arc::default).clone();
        let cache = self.cache.clone();
        Some(Box::new(Self { cache, asked: self.asked, frees: true, undone: undone.into() }))
    }
}

impl Refusal {
    /// Whether `charge` is on what refused, under a policy of the same name that counts otherwise.
    fn is_doubted_by(&self, charge: &Charge) -> bool {
        self.decision.outcomes().iter().any(|outcome| {
            outcome.key() == charge.key()
                && outcome.policy().label() == charge.policy().label()
                && !outcome.policy().counts_as(charge.policy())
        })
    }
}

/// Whether `decision` is over the same charges.
fn is_over(decision: &Decision, charges: &[Charge]) -> bool {
    let outcomes = decision.outcomes();
    outcomes.len() == charges.len()
        && outcomes.iter().zip(charges).all(|(outcome, charge)| {
            outcome.charge().cost() == charge.cost()
                && outcome.key() == charge.key()
                && outcome.policy().counts_as(charge.policy())
        })
}

/// What an outcome says.
struct Told {
    verdict: Verdict,
    remaining: u64,
    reset: Duration,
    granted: u64,
}

impl Told {
    const fn of(outcome: &Outcome) -> Self {
        Self {
            verdict: outcome.verdict(),
            remaining: outcome.remaining(),
            reset: outcome.reset_after(),
            granted: outcome.granted(),
        }
    }

    /// The same of `charge`, when `passed` is over. Nothing has been charged to what refused; of the others it says
    /// what was so.
    fn later(self, charge: &Charge, passed: Duration) -> Outcome {
        let verdict = match self.verdict {
            Verdict::Deny { retry_after } => {
                Verdict::Deny { retry_after: retry_after.map(|wait| wait.saturating_sub(passed)) }
            }
            other => other,
        };
        Outcome::new(charge, verdict, self.remaining, self.reset.saturating_sub(passed))
            .granting(self.granted)
    }
}
