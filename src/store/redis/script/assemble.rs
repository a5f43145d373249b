//! The script that Redis runs, assembled once from the files under `lua/` and identified by its hash.
//!
//! The Lua files are compiled into the crate, so there are no files to install.

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

/// The text of a script, and the hash that EVALSHA takes.
pub(crate) struct Script {
    text: String,
    script: redis::Script,
}

impl Script {
    /// The script with the algorithms of this crate.
    ///
    /// One script for all policies, so decisions of different policies can share a batch, and a server loads only one.
    pub(crate) fn built_in() -> Arc<Self> {
        static SCRIPT: LazyLock<Arc<Script>> = LazyLock::new(|| Arc::new(Script::with_custom(&[])));
        SCRIPT.clone()
    }

    /// The script with the algorithms of this crate and `custom`. Their order changes the hash.
    pub(crate) fn with_custom(custom: &[Arc<dyn Algorithm>]) -> Self {
        let mut text = without_comments(PRELUDE);
        if !custom.is_empty() {
            text.push_str(&without_comments(CHECKED));
        }
        // Each file is the body of its own function, which keeps its locals private. All of them are inside one
        // function, because Redis runs the whole text at every call and a function that is not created costs nothing.
        text.push_str("local function make(name, leasing)\n");
        for algorithm in algorithm::built_in() {
            let (name, lua) = (algorithm.name(), without_comments(algorithm.lua()));
            text.push_str(&format!(
                "if name == '{name}' then\nreturn (function(leasing)\n{lua}end)(leasing)\nend\n"
            ));
        }
        for algorithm in custom {
            let (name, lua, debug) = (algorithm.name(), algorithm.lua(), cfg!(debug_assertions));
            text.push_str(&format!(
                "if name == '{name}' then\nlocal plan, refund, renew = (function()\n{lua}\nend)()\n\
                 return checked('{name}', plan, refund, renew, {debug})\nend\n"
            ));
        }
        text.push_str("end\n");
        text.push_str(&without_comments(DRIVER));
        Self { script: redis::Script::new(&text), text }
    }

    /// The Redis commands that the script calls, in lower case and sorted.
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

/// `lua` without block comments and comment lines: more than half of the text, which the server does not need.
fn without_comments(lua: &str) -> String {
    let mut in_block = false;
    let code = lua.lines().filter(|line| {
        let line = line.trim_start();
        let begins_block = line.starts_with("--[[");
        let is_comment = in_block || line.starts_with("--");
        in_block = (in_block || begins_block) && !line.contains("]]");
        !is_comment && !line.is_empty()
    });
    code.flat_map(|line| [line, "\n"]).collect()
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
    fn comments_are_removed_and_code_is_kept() {
        let lua = "--[[ a\n  b = 1\n]]\nlocal c = 2 -- kept\n  -- removed\n--[[ one line ]]\nreturn c\n";
        assert_eq!(without_comments(lua), "local c = 2 -- kept\nreturn c\n");
    }
}
