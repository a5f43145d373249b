//! Checks what the twin of a custom algorithm returns, as `lua/include/checked.lua` does for its Lua file.

use super::{
    counter::{Charged, Plan},
    state::State,
    twin::{Admission, Evaluation, Gauge, Input, KeyState, Receipt, Twin, Update},
};

/// 2^53: above every valid number.
const TOO_LARGE: u64 = 1 << 53;
/// More than any key can be charged.
const MAX_REFUND: u64 = 1 << 50;

/// What a twin does wrong. Follows "the twin of the algorithm <name>".
pub(crate) type Mistake = &'static str;

/// A custom algorithm on one key, at one time.
pub(crate) struct Custom<'a> {
    pub(crate) twin: &'a dyn Twin,
    pub(crate) arguments: &'a [u64],
    pub(crate) now: u64,
    /// 0 for none.
    pub(crate) holder: u128,
}

impl Custom<'_> {
    /// Makes a decision with one charge.
    pub(crate) fn charge(&self, state: &mut Option<State>, cost: u64) -> Result<Charged, Mistake> {
        let Evaluation { admission, gauge, mark, written } = self.evaluate(state.as_ref(), cost)?;
        let lifetime = written.filter(|_| cost > 0).map(|written| write(state, written));
        Ok(Charged { admission, gauge, mark, lifetime })
    }

    /// Evaluates `cost` and changes nothing.
    pub(crate) fn plan(&self, state: Option<&State>, cost: u64) -> Result<Plan, Mistake> {
        let Evaluation { admission, gauge: after, mark, written } = self.evaluate(state, cost)?;
        let (mut before, mut stale) = (after, written.is_some());
        if admission.is_admitted() && cost > 0 {
            let uncharged = self.evaluate(state, 0)?;
            (before, stale) = (uncharged.gauge, uncharged.written.is_some());
        }
        Ok(Plan { admission, before, after, stale, mark })
    }

    /// Writes the state that follows from `cost`. Returns its lifetime.
    pub(crate) fn write(&self, state: &mut Option<State>, cost: u64) -> Result<Option<u64>, Mistake> {
        let evaluation = self.evaluate(state.as_ref(), cost)?;
        Ok(evaluation.written.map(|written| write(state, written)))
    }

    /// Refunds up to `units` units. Returns the lifetime of the state if that changed.
    pub(crate) fn refund(
        &self,
        state: &mut Option<State>,
        units: u64,
        receipt: Option<Receipt>,
    ) -> Result<Option<u64>, Mistake> {
        let refund = |input: &Input<'_>| self.twin.refund(input, units.min(MAX_REFUND), receipt);
        let update = self.call(state.as_ref(), refund);
        apply(state, update)
    }

    /// Renews the units of the holder. Returns the lifetime of the state if that changed.
    pub(crate) fn renew(&self, state: &mut Option<State>, units: u64) -> Result<Option<u64>, Mistake> {
        let update = self.call(state.as_ref(), |input| self.twin.renew(input, units));
        apply(state, update)
    }

    fn evaluate(&self, state: Option<&State>, cost: u64) -> Result<Evaluation, Mistake> {
        let evaluation = self.call(state, |input| self.twin.decide(input, cost));
        let Evaluation { admission, gauge: Gauge { remaining, reset }, mark, written } = &evaluation;
        let wait = match *admission {
            Admission::Retry(_) | Admission::Never if cost == 0 => return Err("must admit a cost of 0"),
            Admission::Retry(0) => return Err("must deny with a retry time above 0"),
            Admission::After(_) if cost > 0 && written.is_none() => {
                return Err("must write a state where it admits a cost");
            }
            Admission::After(wait) | Admission::Retry(wait) => wait,
            Admission::Never => 0,
        };
        if [wait, *remaining, *reset, *mark].iter().any(|&number| number >= TOO_LARGE) {
            return Err("must return numbers below 2^53");
        }
        if let Some((state, lifetime)) = written {
            check(state, Some(*lifetime))?;
        }
        Ok(evaluation)
    }

    fn call<T>(&self, state: Option<&State>, function: impl FnOnce(&Input<'_>) -> T) -> T {
        let holder = (self.holder != 0).then(|| format!("{:032x}", self.holder));
        let state = match state {
            Some(State::Custom(state)) => Some(&**state),
            _ => None,
        };
        function(&Input { arguments: self.arguments, now: self.now, state, holder: holder.as_deref() })
    }
}

fn check(state: &KeyState, lifetime: Option<u64>) -> Result<(), Mistake> {
    if lifetime == Some(0) {
        return Err("must write a state with a lifetime above 0");
    }
    if state.time >= TOO_LARGE || state.count >= TOO_LARGE || lifetime.is_some_and(|time| time >= TOO_LARGE) {
        return Err("must write a state with numbers below 2^53");
    }
    Ok(())
}

fn write(state: &mut Option<State>, (mut written, lifetime): (KeyState, u64)) -> u64 {
    written.text = written.text.filter(|text| !text.is_empty());
    *state = Some(State::Custom(Box::new(written)));
    lifetime
}

fn apply(state: &mut Option<State>, update: Option<Update>) -> Result<Option<u64>, Mistake> {
    match update {
        None => Ok(None),
        Some(Update::Remove) => {
            *state = None;
            Ok(None)
        }
        Some(Update::Keep(_)) if state.is_none() => {
            Err("must not keep the lifetime of a key that does not exist")
        }
        Some(Update::Keep(kept)) => {
            check(&kept, None)?;
            write(state, (kept, 0));
            Ok(None)
        }
        Some(Update::Write { state: written, lifetime }) => {
            check(&written, Some(lifetime))?;
            Ok(Some(write(state, (written, lifetime))))
        }
    }
}
