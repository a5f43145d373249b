//! The units of rules, as numbers: a charge has room for two bytes.

use std::sync::RwLock;

use crate::base::sync::{read, write};

/// What a rule's cost counts, such as tokens. 0 if the rule does not say.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RuleUnit(u16);

/// The names of all units of this process. They are static, so the program has few of them.
static NAMES: RwLock<Vec<&'static str>> = RwLock::new(Vec::new());

impl RuleUnit {
    pub(crate) fn named(name: &'static str) -> Self {
        let mut names = write(&NAMES);
        let place = names.iter().position(|known| *known == name).unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        });
        // Beyond 65,535 names, a unit has none.
        Self(u16::try_from(place + 1).unwrap_or_default())
    }

    pub(crate) fn name(self) -> Option<&'static str> {
        let place = usize::from(self.0).checked_sub(1)?;
        read(&NAMES).get(place).copied()
    }
}
