//! A value of which each thread uses a copy of its own.
//!
//! A count of references is written by whoever clones or drops one. Where all threads count in one place they wait
//! for each other: with one configuration for all, two threads served fewer requests than one alone.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// What can be copied so that the copy shares nothing whose references are counted per request.
pub(crate) trait Apart: Clone {
    fn apart(&self) -> Self;
}

pub(crate) struct PerThread<T> {
    original: T,
    /// Made when a thread first asks. With more threads than places, some share one.
    copies: Box<[OnceLock<Arc<T>>]>,
}

const MOST: usize = 64;

impl<T: Apart> PerThread<T> {
    pub(crate) fn new(original: T) -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        // Twice as many, since not every thread that asks is one that serves requests.
        let places = (threads * 2).next_power_of_two().min(MOST);
        Self { original, copies: (0..places).map(|_| OnceLock::new()).collect() }
    }

    pub(crate) const fn original(&self) -> &T {
        &self.original
    }

    /// The original, to change. No thread has a copy of what was before.
    pub(crate) fn change(self: &mut Arc<Self>) -> &mut T {
        let this = Arc::make_mut(self);
        this.copies.iter_mut().for_each(|copy| drop(copy.take()));
        &mut this.original
    }

    /// This thread's copy.
    pub(crate) fn here(&self) -> &Arc<T> {
        // There are as many as a power of two, and one at least.
        let place = thread_number() % self.copies.len();
        self.copies[place].get_or_init(|| Arc::new(self.original.apart()))
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

/// Threads are numbered as they first ask.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    // A thread that ends has none any more.
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
        assert!(Arc::ptr_eq(value.here(), value.here()));
        assert!(!Arc::ptr_eq(&value.here().0, &value.original().0));
        let there = value.clone();
        let there = thread::spawn(move || there.here().clone()).join().unwrap();
        assert_eq!((*value.here().0, *there.0), (7, 7));
        // Of four threads that ask one after the other, at least two have another place than this one.
        if value.copies.len() > 1 {
            let others = (0..4)
                .map(|_| value.clone())
                .map(|value| thread::spawn(move || value.here().clone()).join().unwrap());
            assert!(others.filter(|other| !Arc::ptr_eq(other, value.here())).count() >= 2);
        }
    }

    #[test]
    fn a_change_is_seen_by_every_thread_and_not_by_who_has_a_clone() {
        let mut value = Arc::new(PerThread::new(Counted(Arc::new(1))));
        let before = value.clone();
        assert_eq!(*value.here().0, 1);
        *PerThread::change(&mut value) = Counted(Arc::new(2));
        assert_eq!((*value.here().0, *before.here().0), (2, 1));
        // Alone, where a copy was made before.
        *PerThread::change(&mut value) = Counted(Arc::new(3));
        assert_eq!(*value.here().0, 3);
    }
}
