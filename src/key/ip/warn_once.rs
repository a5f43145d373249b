//! The warnings about proxies, each logged once.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

/// A warning about a misconfiguration, which an extractor and its clones log once.
#[derive(Clone, Debug)]
pub(super) struct Warning {
    /// How many requests are still checked one by one, or [`LOGGED`]. `None` if the warning is turned off.
    checks: Option<Arc<AtomicU32>>,
}

/// How many requests are checked one by one. A misconfiguration usually shows in the first ones.
const CHECKS: u32 = 1_000;
/// Of the requests after that, one in this many is checked: the first ones may all have been probes. It is prime, so
/// each of several extractors in a thread gets its turn.
const ONE_IN: u32 = 1_021;
/// The warning was logged.
const LOGGED: u32 = u32::MAX;

thread_local! {
    /// The requests of this thread, after the first ones, that extractors could check.
    static LATER: Cell<u32> = const { Cell::new(0) };
}

impl Warning {
    pub(super) fn new() -> Self {
        Self { checks: Some(Arc::new(AtomicU32::new(CHECKS))) }
    }

    pub(super) const fn off() -> Self {
        Self { checks: None }
    }

    /// What is wrong with this request by `check`, if it is the first request with something wrong that is
    /// checked.
    pub(super) fn first<T>(&self, check: impl FnOnce() -> Option<T>) -> Option<T> {
        let checks = self.checks.as_ref()?;
        let is_checked = match checks.load(Ordering::Relaxed) {
            LOGGED => false,
            0 => is_turn(),
            _ => true,
        };
        let wrong = if is_checked { check() } else { return None };
        if wrong.is_some() {
            return wrong.filter(|_| checks.swap(LOGGED, Ordering::Relaxed) != LOGGED);
        }
        let less = |checks: u32| checks.checked_sub(1).filter(|_| checks != LOGGED);
        // It fails if another thread has logged the warning.
        let _ = checks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        None
    }
}

/// Whether this is one of the later requests that are checked.
fn is_turn() -> bool {
    LATER.with(|later| {
        let requests = later.get() + 1;
        later.set(if requests == ONE_IN { 0 } else { requests });
        requests == ONE_IN
    })
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

    /// The first requests of a service behind a proxy may be probes, which come past it.
    #[test]
    fn of_later_requests_few_are_checked_until_one_is_wrong() {
        let (warning, mut checked) = (Warning::new(), 0);
        for _ in 0..CHECKS + 10 * ONE_IN {
            let _ = warning.first(|| {
                checked += 1;
                None::<u8>
            });
        }
        assert_eq!(checked, CHECKS + 10);
        let found = (0..ONE_IN).filter_map(|_| warning.first(|| Some(1))).count();
        assert_eq!(found, 1);
        for _ in 0..3 * ONE_IN {
            assert_eq!(warning.first(|| -> Option<u8> { panic!("checked") }), None);
        }
    }

    #[test]
    fn each_of_two_extractors_of_a_thread_gets_its_turn() {
        let warnings = [Warning::new(), Warning::new()];
        for warning in warnings.iter().cycle().take(2 * CHECKS as usize) {
            assert_eq!(warning.first(|| None::<u8>), None);
        }
        let mut found = [0; 2];
        for _ in 0..2 * ONE_IN {
            for (found, warning) in found.iter_mut().zip(&warnings) {
                *found += warning.first(|| Some(1)).unwrap_or(0);
            }
        }
        assert_eq!(found, [1, 1]);
    }

    #[test]
    fn a_warning_that_is_turned_off_checks_nothing() {
        let warning = Warning::off();
        assert_eq!(warning.first(|| -> Option<u8> { panic!("checked") }), None);
        assert_eq!(warning.first(|| Some(1)), None);
    }
}
