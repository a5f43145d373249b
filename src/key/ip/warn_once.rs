use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU32, Ordering},
};

/// A warning about a misconfiguration, which an extractor and its clones log once.
#[derive(Debug)]
pub(super) struct Warning {
    /// How many requests are still checked. Shared with the clones, and made late, so that `new` is `const`.
    checks: OnceLock<Arc<AtomicU32>>,
    is_off: bool,
}

/// How many requests are checked. A misconfiguration shows in the first ones, and the others should not pay for the
/// check.
const CHECKS: u32 = 1_000;

impl Warning {
    pub(super) const fn new() -> Self {
        Self { checks: OnceLock::new(), is_off: false }
    }

    pub(super) const fn turn_off(&mut self) {
        self.is_off = true;
    }

    /// What is wrong with this request by `check`, if it is the first request with something wrong.
    pub(super) fn first<T>(&self, check: impl FnOnce() -> Option<T>) -> Option<T> {
        if self.is_off || self.checks().load(Ordering::Relaxed) == 0 {
            return None;
        }
        let wrong = check();
        if wrong.is_some() {
            let before = self.checks().swap(0, Ordering::Relaxed);
            return wrong.filter(|_| before > 0);
        }
        let less = |checks: u32| checks.checked_sub(1);
        // It fails if another thread has logged the warning.
        let _ = self.checks().fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        None
    }

    fn checks(&self) -> &Arc<AtomicU32> {
        self.checks.get_or_init(|| Arc::new(AtomicU32::new(CHECKS)))
    }
}

impl Clone for Warning {
    fn clone(&self) -> Self {
        Self { checks: OnceLock::from(self.checks().clone()), is_off: self.is_off }
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
        let mut warning = Warning::new();
        warning.turn_off();
        assert_eq!(warning.first(|| -> Option<u8> { panic!("checked") }), None);
        assert_eq!(warning.clone().first(|| Some(1)), None);
    }
}
