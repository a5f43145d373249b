//! The active policies, and the rules by which a change is accepted, rejected and logged.

use std::{collections::BTreeMap, mem, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use tower_ratelimit::{
    Error, ErrorKind, Policy,
    policy::{Enforcement, EnforcementSwitch},
};

use super::{error_place::list, parsed::Parsed, text::changes};

/// The time between two reads of the origin, unless the handle sets another one.
const INTERVAL: Duration = Duration::from_millis(500);
/// A shorter pause would only keep a core busy.
const MIN_INTERVAL: Duration = Duration::from_millis(10);
/// After this time an error that came and went is logged again.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// The number of errors that are remembered for that.
const MOST_LOGGED: usize = 8;

/// The active policies, shared by the handles and the task that follows the origin.
#[derive(Debug)]
pub(crate) struct Set {
    /// The name of the origin in errors and logs.
    origin: String,
    state: Mutex<State>,
    /// The number of accepted changes. The handles are its receivers.
    version: watch::Sender<u64>,
    enforcement: EnforcementSwitch,
    interval: Mutex<Duration>,
}

#[derive(Debug)]
struct State {
    /// The policies by their names. Their sources are receivers.
    policies: BTreeMap<String, watch::Sender<Policy>>,
    /// The content of the origin. The switch may have been moved since.
    enforcement: Enforcement,
    /// Whether the origin has no content.
    is_empty: bool,
    /// Why the latest read changed nothing.
    error: Option<Error>,
    /// The latest errors in the log, the last one first. Several may alternate during an outage.
    logged: Vec<(String, Instant)>,
}

impl Set {
    pub(super) fn new(origin: String, first: Parsed) -> Self {
        let policies = first.policies.into_iter();
        let state = State {
            policies: policies.map(|(name, policy)| (name, watch::Sender::new(policy))).collect(),
            enforcement: first.enforcement,
            is_empty: first.is_empty,
            error: None,
            logged: Vec::new(),
        };
        Self {
            origin,
            state: Mutex::new(state),
            version: watch::Sender::new(0),
            enforcement: EnforcementSwitch::new(first.enforcement),
            interval: Mutex::new(INTERVAL),
        }
    }

    /// A receiver of the policy `name`. While it lives, the policy is in use.
    pub(super) fn follow(&self, name: &str) -> Result<watch::Receiver<Policy>, Error> {
        self.find(name, watch::Sender::subscribe)
    }

    /// The policy `name` as it is now.
    pub(super) fn policy(&self, name: &str) -> Result<Policy, Error> {
        // Reads without a receiver, because an update must not fail while a policy is read.
        self.find(name, |policy| policy.borrow().clone())
    }

    fn find<T>(&self, name: &str, take: impl FnOnce(&watch::Sender<Policy>) -> T) -> Result<T, Error> {
        let state = self.state.lock();
        state.policies.get(name).map(take).ok_or_else(|| {
            let known = match list(state.policies.keys().map(String::as_str)) {
                none if none.is_empty() => "it has no policies".to_owned(),
                names => format!("it has {names}"),
            };
            let message = format!("{} has no policy `{name}`: {known}", self.origin);
            Error::new(ErrorKind::InvalidConfig, message)
        })
    }

    pub(super) fn policies(&self) -> Vec<Policy> {
        self.state.lock().policies.values().map(|policy| policy.borrow().clone()).collect()
    }

    pub(super) fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    pub(super) fn error(&self) -> Option<Error> {
        self.state.lock().error.clone()
    }

    pub(super) const fn enforcement(&self) -> &EnforcementSwitch {
        &self.enforcement
    }

    pub(super) fn interval(&self) -> Duration {
        *self.interval.lock()
    }

    pub(super) fn set_interval(&self, interval: Duration) {
        *self.interval.lock() = interval.max(MIN_INTERVAL);
    }

    /// Whether there is a handle, a source, or a layer with the switch.
    pub(super) fn is_used(&self) -> bool {
        self.version.receiver_count() > 0
            || self.enforcement.is_shared()
            || self.state.lock().policies.values().any(is_in_use)
    }

    /// Applies `update`, all or nothing.
    ///
    /// # Errors
    ///
    /// A policy that is in use is missing.
    pub(super) fn apply(&self, update: Parsed) -> Result<(), Error> {
        let mut state = self.state.lock();
        let is_missing = |name: &String| !update.policies.contains_key(name);
        let missing = state.policies.iter().find(|(name, policy)| is_missing(name) && is_in_use(policy));
        if let Some((name, _)) = missing {
            let message = format!(
                "{}: policy `{name}` is missing, and the service uses it: add it again, or restart the service \
                 without it",
                self.origin
            );
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        let is_missing = |name: &String| !update.policies.contains_key(name);
        let removed: Vec<String> = state.policies.keys().filter(|name| is_missing(name)).cloned().collect();
        let mut changed = Vec::new();
        for name in removed {
            state.policies.remove(&name);
            changed.push(format!("{name}: removed"));
        }
        for (name, policy) in update.policies {
            let Some(sender) = state.policies.get(&name) else {
                changed.push(format!("{name}: added ({policy})"));
                state.policies.insert(name, watch::Sender::new(policy));
                continue;
            };
            sender.send_if_modified(|old| {
                let is_new = *old != policy;
                if is_new {
                    changed.push(format!("{name}: {}", changes(old, &policy)));
                    *old = policy;
                }
                is_new
            });
        }
        let was_empty = mem::replace(&mut state.is_empty, update.is_empty);
        let is_lost = update.is_empty && !was_empty;
        let is_switched = self.moves(&mut state, update.enforcement);
        if !changed.is_empty() || is_switched {
            self.version.send_modify(|version| *version += 1);
        }
        self.report(&changed.join(", "), is_lost);
        Ok(())
    }

    /// Moves the switch, independently of the policies.
    pub(super) fn switch(&self, enforcement: Enforcement) {
        if self.moves(&mut self.state.lock(), enforcement) {
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// Moves the switch if the origin's value has changed. Returns whether it did.
    fn moves(&self, state: &mut State, new: Enforcement) -> bool {
        let is_changed = mem::replace(&mut state.enforcement, new) != new;
        if is_changed {
            // An operator may have moved the switch since the last read.
            let old = self.enforcement.get();
            self.enforcement.set(new);
            if old != new {
                log!(warn, origin = %self.origin, %old, %new, "the switch of enforcement moved");
            }
        }
        is_changed
    }

    /// Logs the policies that `changed`.
    fn report(&self, changed: &str, is_lost: bool) {
        if is_lost {
            log!(
                warn,
                version = *self.version.borrow(),
                changed = %changed,
                "{} is empty: the defaults of the service apply again; if Redis lost its data, write the policies again",
                self.origin
            );
        } else if !changed.is_empty() {
            log!(
                info,
                origin = %self.origin,
                version = *self.version.borrow(),
                changed = %changed,
                "policies changed"
            );
        }
    }

    /// Records that the origin was read and nothing is wrong.
    pub(super) fn succeeded(&self) {
        let _failed = self.state.lock().error.take().is_some();
        #[cfg(feature = "metrics")]
        failed_sources_changed(-i64::from(_failed));
    }

    /// Records that the origin is not read again, because of `cause`. Not logged, because this is also how a
    /// service ends that does not drop its layers before its runtime.
    pub(super) fn stopped(&self, cause: &str) {
        let message = format!("{} is not read any more: {cause}", self.origin);
        self.record(&mut self.state.lock(), Error::new(ErrorKind::MissingSetup, message));
    }

    /// Records `error`. Returns the one before.
    fn record(&self, state: &mut State, error: Error) -> Option<Error> {
        let before = state.error.replace(error);
        #[cfg(feature = "metrics")]
        failed_sources_changed(i64::from(before.is_none()));
        before
    }

    /// Records that `error` keeps the old policies. Logs it unless it is the one of the latest read.
    pub(super) fn failed(&self, error: Error) {
        let (mut state, text) = (self.state.lock(), error.to_string());
        let before = self.record(&mut state, error);
        let continues = before.is_some_and(|before| before.to_string() == text);
        state.logged.retain(|(_, at)| at.elapsed() < REPORT_EVERY);
        if !continues && !state.logged.iter().any(|(logged, _)| *logged == text) {
            log!(warn, error = %text, "the policies stay as they are");
            state.logged.truncate(MOST_LOGGED - 1);
            state.logged.insert(0, (text, Instant::now()));
        }
    }
}

/// The number of sources that failed changes by `change`. Called without a change too, because a recorder may
/// be installed later.
#[cfg(feature = "metrics")]
fn failed_sources_changed(change: i64) {
    use std::sync::atomic::{AtomicI64, Ordering};

    static FAILED: AtomicI64 = AtomicI64::new(0);
    let failed = FAILED.fetch_add(change, Ordering::Relaxed) + change;
    metrics::gauge!("ratelimit_failed_policy_sources").set(failed as f64);
}

#[cfg(feature = "metrics")]
impl Drop for Set {
    fn drop(&mut self) {
        self.succeeded();
    }
}

fn is_in_use(policy: &watch::Sender<Policy>) -> bool {
    policy.receiver_count() > 0
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use super::*;
    use tower_ratelimit::Quota;

    fn update<const N: usize>(names: [&str; N]) -> Parsed {
        let policies = names.map(|name| (name.to_owned(), Policy::new(name, Quota::per_second(1))));
        Parsed { policies: policies.into(), ..Parsed::default() }
    }

    #[test]
    fn reading_a_policy_does_not_keep_it_and_following_it_does() {
        let set = Set::new("a file".to_owned(), update(["api", "mails"]));
        let followed = set.follow("api").unwrap();
        assert_eq!(set.policy("mails").unwrap().name(), "mails");
        assert!(set.apply(update(["mails"])).unwrap_err().to_string().contains("policy `api` is missing"));
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // The error if it was removed.
                    let _ = set.policy("mails");
                }
            });
            let failed = (0..20_000).find_map(|_| {
                set.apply(update(["api", "mails"])).and_then(|()| set.apply(update(["api"]))).err()
            });
            stop.store(true, Ordering::Relaxed);
            assert!(failed.is_none(), "{failed:?}");
        });
        assert_eq!(set.policy("mails").unwrap_err().kind(), ErrorKind::InvalidConfig);
        drop(followed);
        set.apply(update(["mails"])).unwrap();
    }
}
