//! How the algorithm of a charge counts in this process.

use crate::{
    algorithm::{
        Algorithm, Receipt, Twin,
        checked_twin::{Custom, Mistake},
        counter::{Change, Charged, Counter, Plan},
        state::State,
    },
    base::{Error, ErrorKind},
    decision::Charge,
};

/// A charge, and its algorithm in Rust: a built-in one, or the twin of a custom one.
pub(super) struct Counting<'a> {
    charge: &'a Charge,
    form: Form<'a>,
}

enum Form<'a> {
    BuiltIn(&'a dyn Counter),
    Custom(&'a dyn Twin),
}

impl<'a> Counting<'a> {
    pub(super) fn of(charge: &'a Charge) -> Result<Self, Error> {
        let algorithm = &*charge.policy().settings().algorithm;
        let form = match algorithm.counter() {
            Some(counter) => Form::BuiltIn(counter),
            None => Form::Custom(algorithm.twin().ok_or_else(|| without_twin(algorithm))?),
        };
        Ok(Self { charge, form })
    }

    /// Whether the algorithm is a custom one, whose twin can make a mistake.
    pub(super) const fn is_custom(&self) -> bool {
        matches!(self.form, Form::Custom(_))
    }

    /// Makes a decision with one charge.
    #[inline(always)]
    pub(super) fn charge(&self, state: &mut Option<State>, now: u64, cost: u64) -> Result<Charged, Mistake> {
        match self.form {
            Form::BuiltIn(counter) => {
                Ok(counter.charge(self.arguments(), state, now, cost, self.charge.holder()))
            }
            Form::Custom(twin) => self.custom(twin, now).charge(state, cost),
        }
    }

    /// Evaluates `cost` and changes nothing.
    pub(super) fn plan(&self, state: Option<&State>, now: u64, cost: u64) -> Result<Plan, Mistake> {
        match self.form {
            Form::BuiltIn(counter) => Ok(counter.plan(self.arguments(), state, now, cost)),
            Form::Custom(twin) => self.custom(twin, now).plan(state, cost),
        }
    }

    /// Applies `change` to `units` units. For a repair, `units` is the denied cost, or 0 if another charge
    /// was denied. Returns the lifetime of the state in microseconds, if the state changed.
    pub(super) fn change(
        &self,
        state: &mut Option<State>,
        now: u64,
        change: Change,
        units: u64,
    ) -> Result<Option<u64>, Mistake> {
        match (&self.form, change) {
            (Form::BuiltIn(counter), _) => Ok(counter.apply(self.arguments(), state, now, change)),
            (Form::Custom(twin), Change::Charge(..) | Change::Repair) => {
                self.custom(*twin, now).write(state, units)
            }
            (Form::Custom(twin), Change::Refund(..) | Change::RefundOf(..)) => {
                self.custom(*twin, now).refund(state, units, self.charge.receipt())
            }
            (Form::Custom(twin), Change::Renew(..)) => self.custom(*twin, now).renew(state, units),
        }
    }

    /// See [`Counter::returned`]. 0 for a custom algorithm, which no guarantee needs.
    pub(super) fn returned(&self, state: &State, now: u64, units: u64, receipt: Receipt) -> u64 {
        match &self.form {
            Form::BuiltIn(counter) => counter.returned(self.arguments(), state, now, units, receipt),
            Form::Custom(_) => 0,
        }
    }

    /// The error of a decision whose twin made a mistake.
    pub(super) fn error(&self, mistake: Mistake) -> Error {
        let name = self.charge.policy().algorithm_name();
        Error::new(ErrorKind::StoreFailed, format!("the twin of the algorithm {name} {mistake}"))
    }

    fn arguments(&self) -> &[u64] {
        self.charge.policy().arguments()
    }

    fn custom<'b>(&'b self, twin: &'b dyn Twin, now: u64) -> Custom<'b> {
        Custom { twin, arguments: self.arguments(), now, holder: self.charge.holder() }
    }
}

fn without_twin(algorithm: &dyn Algorithm) -> Error {
    let name = algorithm.name();
    invalid!(
        "a MemoryStore cannot decide the algorithm {name}, which has no twin in Rust: implement `Algorithm::twin`, \
         or use a RedisStore"
    )
}
