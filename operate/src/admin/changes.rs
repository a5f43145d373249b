//! Who changed what on this instance.

use std::{
    collections::{BTreeSet, VecDeque},
    convert::Infallible,
    fmt,
    sync::Mutex,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::extract::FromRequestParts;
use http::request::Parts;
use tower_ratelimit::{
    Key, Policy,
    key::{Network, is_hidden},
};

use crate::answer::{Change, ChangeKind};
#[cfg(feature = "live")]
use crate::live::LivePolicies;

/// The most changes of the router that are kept.
const MOST: usize = 1_000;
/// The longest name of an operator that is kept, in characters.
const LONGEST_NAME: usize = 128;

/// The name of the operator who sends a request, for `GET /changes`. Your middleware, which authenticates the
/// operator, inserts it into the extensions of the request. Characters that do not show as themselves are left
/// out, and of a name longer than 128 characters, the beginning is kept.
///
/// # Example
///
/// ```
/// use axum::{Router, extract::Request, middleware::{self, Next}};
/// use tower_ratelimit::{MemoryStore, Policy, Quota};
/// use tower_ratelimit_operate::admin::{self, OperatorName};
///
/// let authenticate = middleware::from_fn(async |mut request: Request, next: Next| {
///     // After the credentials are checked.
///     request.extensions_mut().insert(OperatorName::new("ann"));
///     next.run(request).await
/// });
/// let admin: Router = admin::router(MemoryStore::new(), Policy::new("api", Quota::per_second(10))).layer(authenticate);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct OperatorName(String);

impl OperatorName {
    /// The name `name`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into().chars().filter(|one| !is_hidden(*one)).take(LONGEST_NAME).collect())
    }
}

impl fmt::Debug for OperatorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperatorName").finish_non_exhaustive()
    }
}

/// The operator of a request, if the middleware has named one.
pub(super) struct Who(Option<String>);

#[cfg(feature = "live")]
impl Who {
    pub(super) fn name(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl<S: Sync> FromRequestParts<S> for Who {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(parts.extensions.get().map(|OperatorName(name)| name.clone())))
    }
}

/// The latest changes that were made with the router.
#[derive(Default)]
pub(super) struct Changes(Mutex<VecDeque<Change>>);

impl Changes {
    /// Notes a change of a key.
    pub(super) fn of_key(&self, kind: ChangeKind, policy: &Policy, key: &Key, amount: Option<u64>, who: Who) {
        self.note(Change {
            policy: Some(policy.name().to_owned()),
            key_hash: Some(key.digest()),
            amount,
            who: who.0,
            ..change(kind, SystemTime::now())
        });
    }

    /// Notes a move of the switch.
    pub(super) fn of_switch(&self, detail: String, who: Who) {
        self.note(Change {
            detail: Some(detail),
            who: who.0,
            ..change(ChangeKind::Enforcement, SystemTime::now())
        });
    }

    /// Notes a change of the blocklist.
    #[cfg(feature = "live")]
    pub(super) fn of_blocklist(
        &self,
        kind: ChangeKind,
        network: String,
        reason: Option<String>,
        seconds: Option<u64>,
        who: Who,
    ) {
        let because = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        self.note(Change {
            amount: seconds,
            detail: Some(format!("{network}{because}")),
            network: Some(network),
            who: who.0,
            ..change(kind, SystemTime::now())
        });
    }

    fn note(&self, change: Change) {
        // A panic leaves the list as it is: no change is in two steps.
        let mut changes = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if changes.len() == MOST {
            changes.pop_front();
        }
        changes.push_back(change);
    }

    /// The changes that were made with the router.
    pub(super) fn all(&self) -> Vec<Change> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).iter().cloned().collect()
    }
}

/// A change now, without more than its kind.
fn change(kind: ChangeKind, time: SystemTime) -> Change {
    let time = seconds(time);
    Change { time, kind, policy: None, key_hash: None, amount: None, who: None, detail: None, network: None }
}

/// Whether `change` concerns the keys with these hashes, or one of `clients`, which are addresses and networks.
pub(super) fn concerns(change: &Change, hashes: &BTreeSet<String>, clients: &[String]) -> bool {
    let contains = |outer: &String| {
        let Ok(outer) = outer.parse::<Network>() else { return false };
        clients.iter().filter_map(|client| client.parse::<Network>().ok()).any(|inner| outer.contains(inner))
    };
    // A change of a policy or of the switch concerns all keys.
    change.key_hash.as_ref().is_none_or(|hash| hashes.contains(hash))
        && change.network.as_ref().is_none_or(contains)
}

/// The changes of `live`.
#[cfg(feature = "live")]
pub(super) fn of_live(live: &LivePolicies) -> impl Iterator<Item = Change> {
    let changes = live.recent_changes().into_iter();
    changes.map(|one| Change { detail: Some(one.text), ..change(ChangeKind::Policies, one.time) })
}

/// The latest of `changes`, the latest first.
pub(super) fn latest(mut changes: Vec<Change>) -> Vec<Change> {
    changes.sort_by(|one, other| other.time.total_cmp(&one.time));
    changes.truncate(MOST);
    changes
}

/// Seconds since 1970.
pub(super) fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
