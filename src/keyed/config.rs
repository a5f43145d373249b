use std::{fmt, time::Duration};

use super::rule::KeyedRule;
use crate::{
    base::Answer,
    decision::Charge,
    key::{Key, Keys},
    limiter::Limiter,
};

/// The settings of a layer, shared by all of its services.
pub(super) struct Config<R> {
    pub(super) limiter: Limiter,
    pub(super) rules: Vec<KeyedRule<R>>,
    pub(super) patience: Duration,
}

impl<R> Config<R> {
    pub(super) fn identify(&self, request: &R) -> Answer<Keys> {
        Keys::of(self.rules.iter().map(|rule| (rule.key)(request)))
    }

    /// The charges for `request`, one for each rule.
    pub(super) fn charges(&self, keys: Keys, request: &R) -> Vec<Charge> {
        let charge = |(rule, key): (&KeyedRule<R>, Key)| rule.charge(key, request);
        self.rules.iter().zip(keys.into_vec()).map(charge).collect()
    }
}

// Written out because derives would require the traits of `R`.

impl<R> Clone for Config<R> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), rules: self.rules.clone(), patience: self.patience }
    }
}

impl<R> fmt::Debug for Config<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("policies", &self.rules.iter().map(|rule| &rule.policy).collect::<Vec<_>>())
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}
