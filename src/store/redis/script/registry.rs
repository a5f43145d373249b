//! Selects the script of a decision: the built-in one, or one with custom algorithms.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, RwLock},
};

use crate::{
    algorithm::Algorithm,
    base::{
        Error,
        sync::{read, write},
    },
    decision::Charge,
    policy::Policy,
    store::redis::script::Script,
};

/// The custom algorithms of a store, and one script for each set of them that is decided together. If the Lua of one
/// does not compile, only its own decisions fail.
#[derive(Debug, Default)]
pub(crate) struct Scripts(RwLock<Registered>);

#[derive(Debug, Default)]
struct Registered {
    /// By name.
    custom: BTreeMap<String, Arc<dyn Algorithm>>,
    /// By the sorted names of the custom algorithms, so all instances have the same scripts.
    scripts: HashMap<Vec<String>, Arc<Script>>,
}

impl Scripts {
    pub(crate) fn script_for(&self, charges: &[Charge]) -> Result<Arc<Script>, Error> {
        let custom = charges.iter().map(Charge::policy).filter(|policy| !is_built_in(policy));
        let mut names = BTreeSet::new();
        for policy in custom {
            self.register(policy)?;
            names.insert(policy.counting().name().to_owned());
        }
        if names.is_empty() {
            return Ok(Script::built_in().clone());
        }
        let names: Vec<String> = names.into_iter().collect();
        if let Some(script) = read(&self.0).scripts.get(&names) {
            return Ok(script.clone());
        }
        let mut registered = write(&self.0);
        let custom: Vec<_> = names.iter().filter_map(|name| registered.custom.get(name).cloned()).collect();
        let script =
            registered.scripts.entry(names).or_insert_with(|| Arc::new(Script::with_custom(&custom)));
        Ok(script.clone())
    }

    /// Registers the policy's algorithm if it is a custom one.
    pub(crate) fn register(&self, policy: &Policy) -> Result<(), Error> {
        let algorithm = policy.counting();
        if is_built_in(policy) {
            return Ok(());
        }
        let has_same_source = |registered: &Arc<dyn Algorithm>| registered.lua() == algorithm.lua();
        if read(&self.0).custom.get(algorithm.name()).is_some_and(has_same_source) {
            return Ok(());
        }
        let mut registered = write(&self.0);
        let first = registered.custom.entry(algorithm.name().to_owned()).or_insert_with(|| algorithm.clone());
        if has_same_source(first) {
            return Ok(());
        }
        Err(Error::invalid("two algorithms of one name have different Lua sources: rename one of them"))
    }
}

fn is_built_in(policy: &Policy) -> bool {
    policy.counting().counter().is_some()
}
