//! Which script a decision needs: ours, or one that knows algorithms from outside as well.

use std::sync::{Arc, PoisonError, RwLock};

use crate::{Algorithm, Charge, Error, Policy, script::Script};

/// The algorithms from outside that a store has met, and the script that knows them all.
#[derive(Debug, Default)]
pub(super) struct Scripts(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    /// By name, so that instances that met the same ones have the same script.
    others: Vec<Arc<dyn Algorithm>>,
    script: Option<Arc<Script>>,
}

impl Scripts {
    pub(super) fn that_knows(&self, charges: &[Charge]) -> Result<Arc<Script>, Error> {
        if charges.iter().all(|charge| is_built_in(&charge.policy)) {
            return Ok(Script::built_in());
        }
        for charge in charges {
            self.learn(&charge.policy)?;
        }
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Ok(known.script.clone().unwrap_or_else(Script::built_in))
    }

    /// Takes the policy's algorithm in, unless it is known.
    pub(super) fn learn(&self, policy: &Policy) -> Result<(), Error> {
        let algorithm = policy.counting();
        if is_built_in(policy) || self.knows(algorithm)? {
            return Ok(());
        }
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match known.others.binary_search_by(|other| other.name().cmp(algorithm.name())) {
            // Another thread was faster.
            Ok(_) => Ok(()),
            Err(place) => {
                known.others.insert(place, algorithm.clone());
                known.script = Some(Arc::new(Script::with(&known.others)));
                Ok(())
            }
        }
    }

    fn knows(&self, algorithm: &Arc<dyn Algorithm>) -> Result<bool, Error> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match known.others.iter().find(|other| other.name() == algorithm.name()) {
            None => Ok(false),
            Some(other) if other.lua() == algorithm.lua() => Ok(true),
            Some(_) => Err(Error::invalid(
                "two algorithms of one name have different Lua sources: rename one of them",
            )),
        }
    }
}

fn is_built_in(policy: &Policy) -> bool {
    policy.counting().twin().is_some()
}
