//! The task that follows a file or a hash.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::{runtime::Handle, time::sleep};

use super::{set::Set, update::Update};
use crate::{
    error::{Error, ErrorKind},
    util::random::random_time,
};

/// How long the task may outlive the last handle.
const LINGER: Duration = Duration::from_millis(500);

/// Where policies are read from.
pub(crate) trait Origin: Send + 'static {
    type Content: PartialEq + Send;

    /// Its content now.
    fn read(&mut self) -> impl Future<Output = Result<Self::Content, Error>> + Send;

    /// Whether `content` is to be put in force after `before`.
    fn is_due(&self, _before: &Self::Content, _content: &Self::Content) -> bool {
        true
    }

    /// What `content` says.
    fn parse(&self, content: &Self::Content) -> Result<Update, Error>;
}

/// An origin, and what was read from it.
pub(super) struct Follower<O: Origin> {
    origin: O,
    /// The content that is in force.
    accepted: Option<O::Content>,
    /// The latest content, if it could not be put in force.
    rejected: Option<(O::Content, Error)>,
}

impl<O: Origin> Follower<O> {
    pub(super) const fn new(origin: O, accepted: Option<O::Content>) -> Self {
        Self { origin, accepted, rejected: None }
    }

    /// Reads the origin once, and applies to `set` what is new.
    pub(super) async fn poll(&mut self, set: &Set) {
        match self.origin.read().await {
            Ok(content) => self.consider(set, content),
            Err(error) => set.failed(error),
        }
    }

    fn consider(&mut self, set: &Set, content: O::Content) {
        if let Some((rejected, error)) = &self.rejected
            && *rejected == content
        {
            return set.failed(error.clone());
        }
        let is_new = self.accepted.as_ref().is_none_or(|accepted| *accepted != content);
        // After a rejection every change may be the correction.
        let is_due = self.rejected.is_some()
            || self.accepted.as_ref().is_none_or(|accepted| self.origin.is_due(accepted, &content));
        if is_new && is_due {
            if let Err(error) = self.origin.parse(&content).and_then(|update| set.apply(update)) {
                set.failed(error.clone());
                self.rejected = Some((content, error));
                return;
            }
            self.accepted = Some(content);
        }
        self.rejected = None;
        set.succeeded();
    }

    /// Follows the origin until `set` is no longer used.
    pub(super) async fn run(mut self, set: Arc<Set>) {
        loop {
            let mut left = jittered(set.interval());
            while !left.is_zero() {
                let pause = left.min(LINGER);
                sleep(pause).await;
                left -= pause;
                if !set.is_used() {
                    return;
                }
            }
            self.poll(&set).await;
        }
    }
}

/// `interval`, up to a tenth shorter or longer, so that instances which start together do not read together.
fn jittered(interval: Duration) -> Duration {
    interval - interval / 10 + random_time(interval / 5)
}

/// The runtime that the task runs on.
pub(super) fn runtime() -> Result<Handle, Error> {
    Handle::try_current().map_err(|_| {
        let message = "live policies need a Tokio runtime to follow their source: make them in an async function, or \
                       inside `runtime.enter()`";
        Error::new(ErrorKind::MissingSetup, message)
    })
}
