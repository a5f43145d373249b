//! The script that Redis runs: put together from the files under `lua/`, once, and known by its hash.
//!
//! Prelude, algorithms and driver are compiled into the crate, so there is nothing to install beside
//! it and nothing to find at run time.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, LazyLock},
};

use crate::algorithm::{self, Algorithm};

const PRELUDE: &str = concat!(
    include_str!("../../../../lua/include/prelude.lua"),
    include_str!("../../../../lua/include/muldiv.lua"),
    include_str!("../../../../lua/include/count.lua"),
    include_str!("../../../../lua/include/bytes.lua"),
    include_str!("../../../../lua/include/lease.lua"),
    include_str!("../../../../lua/include/bucket.lua")
);
const CHECKED: &str = include_str!("../../../../lua/include/checked.lua");
const DRIVER: &str = include_str!("../../../../lua/decide.lua");

/// A text and the hash that EVALSHA names it by.
pub(crate) struct Script {
    text: String,
    script: redis::Script,
}

impl Script {
    /// The script that knows the algorithms of this crate.
    ///
    /// One for all policies, so that decisions of different policies can share a call, and so that a
    /// server has one script to load however many policies there are.
    pub(crate) fn built_in() -> Arc<Self> {
        static SCRIPT: LazyLock<Arc<Script>> = LazyLock::new(|| Arc::new(Script::with(&[])));
        SCRIPT.clone()
    }

    /// The script that knows `others` besides. Their order counts.
    pub(crate) fn with(others: &[Arc<dyn Algorithm>]) -> Self {
        let mut text = without_comments(PRELUDE);
        if !others.is_empty() {
            text.push_str(&without_comments(CHECKED));
        }
        // Each file is the body of a function of its own, so that no local meets another's. All of them stand
        // in one function, because Redis runs the whole text at every call: a function that is not made costs
        // nothing then.
        text.push_str("local function make(name, leasing)\n");
        for algorithm in algorithm::built_in() {
            let (name, lua) = (algorithm.name(), without_comments(algorithm.lua()));
            text.push_str(&format!(
                "if name == '{name}' then\nreturn (function(leasing)\n{lua}end)(leasing)\nend\n"
            ));
        }
        for algorithm in others {
            let (name, lua, careful) = (algorithm.name(), algorithm.lua(), cfg!(debug_assertions));
            text.push_str(&format!(
                "if name == '{name}' then\nlocal plan, refund, renew = (function()\n{lua}\nend)()\n\
                 return checked('{name}', plan, refund, renew, {careful})\nend\n"
            ));
        }
        text.push_str("end\n");
        text.push_str(&without_comments(DRIVER));
        Self { script: redis::Script::new(&text), text }
    }

    /// The Redis commands that it calls, in lower case, sorted.
    pub(crate) fn commands(&self) -> BTreeSet<String> {
        let calls = self.text.split("redis.call('").skip(1).chain(self.text.split("redis.pcall('").skip(1));
        calls.filter_map(|call| call.split('\'').next()).map(str::to_ascii_lowercase).collect()
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn hash(&self) -> &str {
        self.script.get_hash()
    }
}

/// `lua` without the block comments and the comment lines that begin a line: more than half of our files,
/// which no server needs to be sent.
fn without_comments(lua: &str) -> String {
    let mut in_block = false;
    let kept = lua.lines().filter(|line| {
        let line = line.trim_start();
        let begins = line.starts_with("--[[");
        let is_comment = in_block || line.starts_with("--");
        in_block = (in_block || begins) && !line.contains("]]");
        !is_comment && !line.is_empty()
    });
    kept.flat_map(|line| [line, "\n"]).collect()
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Script").field(&self.hash()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_left_out_and_code_is_not() {
        let lua = "--[[ a\n  b = 1\n]]\nlocal c = 2 -- stays\n  -- goes\n--[[ one line ]]\nreturn c\n";
        assert_eq!(without_comments(lua), "local c = 2 -- stays\nreturn c\n");
    }
}
