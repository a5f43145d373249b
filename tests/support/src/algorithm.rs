//! Custom algorithms.

use tower_ratelimit::{Error, Quota, algorithm::Algorithm};

/// An algorithm without a twin in Rust, whose argument is the limit.
#[derive(Debug)]
pub struct InLua(&'static str, String);

impl InLua {
    pub fn new(name: &'static str, lua: impl Into<String>) -> Self {
        Self(name, lua.into())
    }
}

impl Algorithm for InLua {
    fn name(&self) -> &str {
        self.0
    }
    fn lua(&self) -> &str {
        &self.1
    }
    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        Ok(vec![quota.limit()])
    }
}
