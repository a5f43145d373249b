//! A value with a copy for each thread.
//!
//! Cloning or dropping an `Arc` writes its reference count. If all threads share one `Arc`, they contend for that cache
//! line: with one shared configuration, two threads served fewer requests than one.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// A value that can be copied without sharing reference counts that every request changes.
pub(crate) trait Apart: Clone {
    fn apart(&self) -> Self;
}

pub(crate) struct PerThread<T> {
    original: T,
    /// Made when a thread first uses it. If there are more threads than copies, some threads share one.
    copies: Box<[OnceLock<Arc<T>>]>,
}

const MAX_COPIES: usize = 64;

impl<T: Apart> PerThread<T> {
    pub(crate) fn new(original: T) -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        // Twice as many, because not every thread that uses the value serves requests.
        let count = (threads * 2).next_power_of_two().min(MAX_COPIES);
        Self { original, copies: (0..count).map(|_| OnceLock::new()).collect() }
    }

    pub(crate) const fn original(&self) -> &T {
        &self.original
    }

    /// The original, for changes. Drops the copies, which have the old value.
    pub(crate) fn change(self: &mut Arc<Self>) -> &mut T {
        let this = Arc::make_mut(self);
        this.copies.iter_mut().for_each(|copy| drop(copy.take()));
        &mut this.original
    }

    /// The copy of this thread.
    pub(crate) fn local(&self) -> &Arc<T> {
        // The number of copies is at least one.
        let index = thread_number() % self.copies.len();
        self.copies[index].get_or_init(|| Arc::new(self.original.apart()))
    }
}

impl<T: Apart> Clone for PerThread<T> {
    fn clone(&self) -> Self {
        Self::new(self.original.clone())
    }
}

impl<T: fmt::Debug> fmt::Debug for PerThread<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.original.fmt(f)
    }
}

/// A number for each thread, in the order of their first use.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    // The number is unavailable while the thread ends.
    NUMBER.try_with(|number| *number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug)]
    struct Counted(Arc<u8>);

    impl Apart for Counted {
        fn apart(&self) -> Self {
            Self(Arc::new(*self.0))
        }
    }

    #[test]
    fn a_thread_has_one_copy_that_shares_no_count_with_the_original() {
        let value = Arc::new(PerThread::new(Counted(Arc::new(7))));
        assert!(Arc::ptr_eq(value.local(), value.local()));
        assert!(!Arc::ptr_eq(&value.local().0, &value.original().0));
        let there = value.clone();
        let there = thread::spawn(move || there.local().clone()).join().unwrap();
        assert_eq!((*value.local().0, *there.0), (7, 7));
        // At least two of four other threads use another copy than this one.
        if value.copies.len() > 1 {
            let others = (0..4)
                .map(|_| value.clone())
                .map(|value| thread::spawn(move || value.local().clone()).join().unwrap());
            assert!(others.filter(|other| !Arc::ptr_eq(other, value.local())).count() >= 2);
        }
    }

    #[test]
    fn a_change_is_seen_by_every_thread_but_not_by_a_clone() {
        let mut value = Arc::new(PerThread::new(Counted(Arc::new(1))));
        let before = value.clone();
        assert_eq!(*value.local().0, 1);
        *PerThread::change(&mut value) = Counted(Arc::new(2));
        assert_eq!((*value.local().0, *before.local().0), (2, 1));
        // No clone exists now, but a copy does.
        *PerThread::change(&mut value) = Counted(Arc::new(3));
        assert_eq!(*value.local().0, 3);
    }
}
