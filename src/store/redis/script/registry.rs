//! Which script a decision needs: ours, or one that knows algorithms from outside as well.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, RwLock},
};

use crate::{
    algorithm::Algorithm,
    decision::Charge,
    error::Error,
    policy::Policy,
    store::redis::script::Script,
    util::sync::{read, write},
};

/// The algorithms from outside that a store has met, and a script for each set of them that was decided
/// together: so that one whose Lua does not compile spoils no decision but its own.
#[derive(Debug, Default)]
pub(crate) struct Scripts(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    /// By name.
    others: BTreeMap<String, Arc<dyn Algorithm>>,
    /// By the names of the algorithms from outside, sorted, so that instances have the same scripts.
    scripts: HashMap<Vec<String>, Arc<Script>>,
}

impl Scripts {
    pub(crate) fn that_knows(&self, charges: &[Charge]) -> Result<Arc<Script>, Error> {
        let others = charges.iter().map(Charge::policy).filter(|policy| !is_built_in(policy));
        let mut names = BTreeSet::new();
        for policy in others {
            self.learn(policy)?;
            names.insert(policy.counting().name().to_owned());
        }
        if names.is_empty() {
            return Ok(Script::built_in());
        }
        let names: Vec<String> = names.into_iter().collect();
        if let Some(script) = read(&self.0).scripts.get(&names) {
            return Ok(script.clone());
        }
        let mut known = write(&self.0);
        let others: Vec<_> = names.iter().filter_map(|name| known.others.get(name).cloned()).collect();
        let script = known.scripts.entry(names).or_insert_with(|| Arc::new(Script::with(&others)));
        Ok(script.clone())
    }

    /// Takes the policy's algorithm in, unless it is known.
    pub(crate) fn learn(&self, policy: &Policy) -> Result<(), Error> {
        let algorithm = policy.counting();
        if is_built_in(policy) {
            return Ok(());
        }
        let same = |known: &Arc<dyn Algorithm>| known.lua() == algorithm.lua();
        if read(&self.0).others.get(algorithm.name()).is_some_and(same) {
            return Ok(());
        }
        let mut known = write(&self.0);
        let kept = known.others.entry(algorithm.name().to_owned()).or_insert_with(|| algorithm.clone());
        if same(kept) {
            return Ok(());
        }
        Err(Error::invalid("two algorithms of one name have different Lua sources: rename one of them"))
    }
}

fn is_built_in(policy: &Policy) -> bool {
    policy.counting().twin().is_some()
}
