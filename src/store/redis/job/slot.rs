use std::{
    mem,
    sync::Mutex,
    task::{Poll, Waker},
};

use crate::{
    base::{Error, sync::lock},
    decision::Decision,
};

/// Where the caller of a job finds its decision.
#[derive(Default)]
pub(crate) struct Slot(Mutex<State>);

enum State {
    /// Not decided yet.
    Open(Option<Waker>),
    /// Decided. The caller may not be woken yet.
    Decided(Result<Decision, Error>, Option<Waker>),
    /// The caller has the decision, or will get none.
    Closed,
}

impl Default for State {
    fn default() -> Self {
        Self::Open(None)
    }
}

impl Slot {
    /// Sets the decision, unless there is one. [`close`](Self::close) wakes the caller.
    pub(crate) fn set(&self, decision: Result<Decision, Error>) {
        let mut state = lock(&self.0);
        if let State::Open(waker) = &mut *state {
            let waker = waker.take();
            *state = State::Decided(decision, waker);
        }
    }

    /// Wakes the caller for its decision, or because it will get none.
    pub(crate) fn close(&self) {
        let waker = match &mut *lock(&self.0) {
            State::Decided(_, waker) => waker.take(),
            state => match mem::replace(state, State::Closed) {
                State::Open(waker) => waker,
                _ => None,
            },
        };
        // Not under the lock: the caller may run here.
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(*lock(&self.0), State::Open(_))
    }

    /// Takes the decision, if there is one, or `None` if there will be none. Otherwise the caller is woken by `waker`.
    pub(crate) fn poll(&self, waker: Option<&Waker>) -> Poll<Option<Result<Decision, Error>>> {
        let mut state = lock(&self.0);
        if let State::Open(known) = &mut *state {
            match (known, waker) {
                (Some(known), Some(waker)) => known.clone_from(waker),
                (known, Some(waker)) => *known = Some(waker.clone()),
                _ => {}
            }
            return Poll::Pending;
        }
        Poll::Ready(match mem::replace(&mut *state, State::Closed) {
            State::Decided(decision, _) => Some(decision),
            _ => None,
        })
    }
}
