//! A directory for the files of a test.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

/// A separate directory, removed when dropped.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("tower-ratelimit-files-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The text of a file with these live policies, each with its name and its quota.
pub fn file_of(policies: &[(&str, &str)]) -> String {
    let table =
        |(name, quota): &(&str, &str)| format!("[[policies]]\nname = \"{name}\"\nquota = \"{quota}\"\n");
    policies.iter().map(table).collect()
}
