//! The warnings about proxies, each logged once.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

/// A warning about a misconfiguration, which an extractor and its clones log once.
#[derive(Clone, Debug)]
pub(super) struct Warning {
    /// How many requests are still checked. `None` if the warning is turned off.
    checks: Option<Arc<AtomicU32>>,
}

/// How many requests are checked. A misconfiguration shows in the first ones, and the others should not pay
/// for the check.
const CHECKS: u32 = 1_000;

impl Warning {
    pub(super) fn new() -> Self {
        Self { checks: Some(Arc::new(AtomicU32::new(CHECKS))) }
    }

    pub(super) const fn off() -> Self {
        Self { checks: None }
    }

    /// What is wrong with this request by `check`, if it is the first request with something wrong.
    pub(super) fn first<T>(&self, check: impl FnOnce() -> Option<T>) -> Option<T> {
        let checks = self.checks.as_ref().filter(|checks| checks.load(Ordering::Relaxed) > 0)?;
        let wrong = check();
        if wrong.is_some() {
            return wrong.filter(|_| checks.swap(0, Ordering::Relaxed) > 0);
        }
        let less = |checks: u32| checks.checked_sub(1);
        // It fails if another thread has logged the warning.
        let _ = checks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_misconfigured_request_warns_of_all_clones() {
        let warning = Warning::new();
        let clone = warning.clone();
        assert_eq!(warning.first(|| None::<u8>), None);
        assert_eq!(
            [clone.first(|| Some(1)), warning.first(|| Some(2)), clone.first(|| Some(3))],
            [Some(1), None, None]
        );
        assert_eq!(Warning::new().first(|| Some(4)), Some(4));
    }

    #[test]
    fn requests_are_not_checked_forever() {
        let warning = Warning::new();
        let mut checked = 0;
        for _ in 0..2 * CHECKS {
            let _ = warning.first(|| {
                checked += 1;
                None::<u8>
            });
        }
        assert_eq!(checked, CHECKS);
        assert_eq!(warning.first(|| Some(1)), None);
    }

    #[test]
    fn a_warning_that_is_turned_off_checks_nothing() {
        let warning = Warning::off();
        assert_eq!(warning.first(|| -> Option<u8> { panic!("checked") }), None);
        assert_eq!(warning.first(|| Some(1)), None);
    }
}
