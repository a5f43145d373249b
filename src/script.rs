//! The script that Redis runs: put together from the files under `lua/`, once, and known by its hash.
//!
//! Prelude, algorithms and driver are compiled into the crate, so there is nothing to install beside
//! it and nothing to find at run time.

use std::{
    fmt,
    sync::{Arc, LazyLock},
};

use crate::algorithm::{Algorithm, FixedWindow, Gcra};

const PRELUDE: &str = include_str!("../lua/include/prelude.lua");
const DRIVER: &str = include_str!("../lua/decide.lua");

/// A text and the hash that EVALSHA names it by.
pub(crate) struct Script {
    text: String,
    script: redis::Script,
}

impl Script {
    /// The script that knows every algorithm of this crate.
    ///
    /// One for all policies, so that decisions of different policies can share a call, and so that a
    /// server has one script to load however many policies there are.
    pub(crate) fn built_in() -> Arc<Self> {
        static SCRIPT: LazyLock<Arc<Script>> =
            LazyLock::new(|| Arc::new(Script::assemble([&Gcra as &dyn Algorithm, &FixedWindow::anchored()])));
        SCRIPT.clone()
    }

    /// The script that knows `algorithms`.
    fn assemble<'a>(algorithms: impl IntoIterator<Item = &'a dyn Algorithm>) -> Self {
        let mut text = String::from(PRELUDE);
        for algorithm in algorithms {
            text.push_str(algorithm.lua());
        }
        text.push_str(DRIVER);
        Self { script: redis::Script::new(&text), text }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn hash(&self) -> &str {
        self.script.get_hash()
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Script").field(&self.hash()).finish()
    }
}
