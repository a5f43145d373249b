//! The active policies, and the rules by which a change is accepted, rejected and logged.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    time::SystemTime,
};

use parking_lot::Mutex;
use tokio::sync::watch;
use tower_ratelimit::{
    Error, ErrorKind, Policy,
    policy::{Enforcement, EnforcementSwitch},
};

use super::{
    error_place::list,
    follow::Target,
    health::Health,
    history::PolicyChange,
    parsed::{Parsed, Position},
    text::changes,
};

/// The most changes that are kept.
const MOST_CHANGES: usize = 100;

/// The active policies, shared by the handles and the task that follows the origin.
#[derive(Debug)]
pub(crate) struct Set {
    health: Health,
    state: Mutex<State>,
    /// The number of accepted changes. The handles are its receivers.
    version: watch::Sender<u64>,
    enforcement: EnforcementSwitch,
}

#[derive(Debug)]
struct State {
    /// The policies by their names. Their sources are receivers.
    policies: BTreeMap<String, watch::Sender<Policy>>,
    /// Where the origin has moved the switch, which may have been moved since.
    position: Position,
    /// Whether the origin has no content.
    is_empty: bool,
    /// The latest changes, the oldest first.
    changes: VecDeque<PolicyChange>,
}

/// What an update has changed, for the log.
struct Change {
    /// Where the switch was, if the origin has moved it, and where it is.
    moved: Option<Enforcement>,
    new: Enforcement,
    version: u64,
    /// The policies that changed.
    changed: String,
    /// Whether the origin has lost its content.
    is_lost: bool,
}

impl Set {
    pub(super) fn new(origin: String, first: Parsed) -> Self {
        let policies = first.policies.into_iter();
        let enforcement = EnforcementSwitch::new(first.position.enforcement);
        let state = State {
            policies: policies.map(|(name, policy)| (name, watch::Sender::new(policy))).collect(),
            is_empty: first.is_empty,
            position: first.position,
            changes: VecDeque::new(),
        };
        Self {
            health: Health::new(origin, "policies", "the policies stay as they are"),
            state: Mutex::new(state),
            version: watch::Sender::new(0),
            enforcement,
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
            let message = format!("{} has no policy `{name}`: {known}", self.health.origin());
            Error::new(ErrorKind::InvalidConfig, message)
        })
    }

    pub(super) fn policies(&self) -> Vec<Policy> {
        self.state.lock().policies.values().map(|policy| policy.borrow().clone()).collect()
    }

    pub(super) fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    pub(super) const fn enforcement(&self) -> &EnforcementSwitch {
        &self.enforcement
    }

    pub(super) fn recent_changes(&self) -> Vec<PolicyChange> {
        self.state.lock().changes.iter().rev().cloned().collect()
    }

    /// Moves the switch if the origin's position has changed. Returns where it was, if so.
    fn moves(&self, state: &mut State, position: Position) -> Option<Enforcement> {
        if state.position == position {
            return None;
        }
        let new = position.enforcement;
        state.position = position;
        // An operator may have moved the switch since the last read.
        let old = self.enforcement.get();
        self.enforcement.set(new);
        Some(old)
    }

    /// Counts a change of the policies that `changed`, or of the switch, whose position before was `moved`.
    fn count(&self, state: &mut State, changed: String, moved: Option<Enforcement>, is_lost: bool) -> Change {
        let new = state.position.enforcement;
        let is_change = !changed.is_empty() || moved.is_some();
        if is_change {
            self.version.send_modify(|version| *version += 1);
        }
        let version = *self.version.borrow();
        let mut text = changed.clone();
        if let Some(old) = moved.filter(|old| *old != new) {
            let separator = if text.is_empty() { "" } else { ", " };
            text.push_str(&format!("{separator}enforcement: {old} -> {new}"));
        }
        // Without a text, an operator has moved the switch here, and the origin has followed.
        if !text.is_empty() {
            if state.changes.len() == MOST_CHANGES {
                state.changes.pop_front();
            }
            state.changes.push_back(PolicyChange { time: SystemTime::now(), version, text });
        }
        Change { moved, new, version, changed, is_lost }
    }

    /// Logs what has changed. Not under the lock, because a subscriber may ask for the policies.
    fn report(&self, change: &Change) {
        let Change { moved, new: _new, version: _version, changed, is_lost } = change;
        if let Some(_old) = moved.filter(|old| old != _new) {
            log!(warn, origin = %self.health.origin(), old = %_old, new = %_new, "the switch of enforcement moved");
        }
        if *is_lost {
            log!(
                warn,
                version = *_version,
                changed = %changed,
                "{} is empty: the defaults of the service apply again; if Redis lost its data, write the policies again",
                self.health.origin()
            );
        } else if !changed.is_empty() {
            log!(
                info,
                origin = %self.health.origin(),
                version = *_version,
                changed = %changed,
                "policies changed"
            );
        }
    }

    /// Applies `update`, all or nothing, and returns what has changed.
    fn change(&self, update: Parsed) -> Result<Change, Error> {
        let mut state = self.state.lock();
        let is_missing = |name: &String| !update.policies.contains_key(name);
        let missing = state.policies.iter().find(|(name, policy)| is_missing(name) && is_in_use(policy));
        if let Some((name, _)) = missing {
            let message = format!(
                "{}: policy `{name}` is missing, and the service uses it: add it again, or restart the service \
                 without it",
                self.health.origin()
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
                    #[cfg(feature = "metrics")]
                    crate::capacity::changes_to(&policy);
                    changed.push(format!("{name}: {}", changes(old, &policy)));
                    *old = policy;
                }
                is_new
            });
        }
        let was_empty = mem::replace(&mut state.is_empty, update.is_empty);
        let is_lost = update.is_empty && !was_empty;
        let (moved, changed) = (self.moves(&mut state, update.position), changed.join(", "));
        Ok(self.count(&mut state, changed, moved, is_lost))
    }
}

impl Target for Set {
    type Update = Parsed;

    fn health(&self) -> &Health {
        &self.health
    }

    /// Whether there is a handle, a source, or a layer with the switch.
    fn is_used(&self) -> bool {
        self.version.receiver_count() > 0
            || self.enforcement.is_shared()
            || self.state.lock().policies.values().any(is_in_use)
    }

    /// Applies `update`, all or nothing.
    ///
    /// # Errors
    ///
    /// A policy that is in use is missing.
    fn apply(&self, update: Parsed) -> Result<(), Error> {
        let change = self.change(update)?;
        self.report(&change);
        Ok(())
    }

    /// Moves the switch, independently of the policies.
    fn switch(&self, position: Position) {
        let change = {
            let state = &mut *self.state.lock();
            let moved = self.moves(state, position);
            self.count(state, String::new(), moved, false)
        };
        self.report(&change);
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
