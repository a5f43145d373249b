use std::{
    fmt,
    sync::{Arc, Weak},
};

/// A permit for units in use, which are released when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Permit(Arc<OnDrop>);

struct OnDrop(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Permit {
    /// A permit that calls `release` when it is dropped.
    pub(crate) fn new(release: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Arc::new(OnDrop(Some(Box::new(release)))))
    }

    pub(crate) fn downgrade(&self) -> WeakPermit {
        WeakPermit(Arc::downgrade(&self.0))
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(release) = self.0.take() {
            release();
        }
    }
}

/// A reference that does not keep the permit.
pub(crate) struct WeakPermit(Weak<OnDrop>);

impl WeakPermit {
    /// The permit; `None` after its release.
    pub(crate) fn upgrade(&self) -> Option<Permit> {
        self.0.upgrade().map(Permit)
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").finish_non_exhaustive()
    }
}
