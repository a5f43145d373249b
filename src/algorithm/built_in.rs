use std::sync::LazyLock;

use super::{
    Algorithm, concurrency::Concurrency, fixed_window::FixedWindow, gcra::Gcra, leaky_bucket::LeakyBucket,
    penalty::Strikes, sliding_log::SlidingLog, sliding_window::SlidingWindow, token_bucket::TokenBucket,
};

/// Returns one instance of each algorithm of this crate, with any options.
pub(crate) fn built_in() -> &'static [Box<dyn Algorithm>] {
    static ALL: LazyLock<Vec<Box<dyn Algorithm>>> = LazyLock::new(|| {
        vec![
            Box::new(Concurrency::new()),
            Box::new(FixedWindow::anchored()),
            Box::new(Gcra::new()),
            Box::new(LeakyBucket::meter()),
            Box::new(SlidingLog::new()),
            Box::new(SlidingWindow::new()),
            Box::new(TokenBucket::new()),
            Box::new(Strikes { after: 1, within: 1, first: 1, longest: 1, remembered: 0 }),
        ]
    });
    &ALL
}
