//! The scripts that Redis runs, and which one a decision needs. A script is assembled once from the files
//! under `lua/`, and identified by its hash.
//!
//! The Lua files are compiled into the crate, so there are no files to install.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, LazyLock, RwLock},
};

use crate::{
    algorithm::{self, Algorithm, counter::usual},
    base::{
        Error,
        sync::{read, write},
    },
    decision::Charge,
    policy::Policy,
};

/// A file under `lua/`.
#[cfg(not(lua_at_run_time))]
macro_rules! lua {
    ($path:literal) => {
        include_str!(concat!("../../../lua/", $path, ".lua"))
    };
}

/// The name of the file, which [`text_of`] reads: see there.
#[cfg(lua_at_run_time)]
macro_rules! lua {
    ($path:literal) => {
        concat!("@", $path, ".lua")
    };
}

pub(super) use lua;

/// A part of a script: a file, or a folder, whose files are the body of a function of its name. The items
/// that they declare are created only where they are needed.
type Include = (&'static str, &'static [&'static str]);

/// The include files, in an order in which each comes after those it uses.
const INCLUDES: &[Include] = &[
    ("text_of_error", &[lua!("include/text_of_error")]),
    ("state", &[lua!("include/state")]),
    ("muldiv", &[lua!("include/muldiv")]),
    (
        "bucket_in_full",
        &[
            lua!("bucket_in_full/drain"),
            lua!("bucket_in_full/text"),
            lua!("bucket_in_full/quotas"),
            lua!("bucket_in_full/leases"),
            lua!("bucket_in_full/any_bucket"),
            lua!("bucket_in_full/changes"),
        ],
    ),
    ("bucket", &[lua!("include/bucket")]),
];
const CHECKED: &str = lua!("include/checked");
/// What each call runs, outside of any function.
const USUAL: &[&str] = &[lua!("include/prelude"), lua!("usual")];
/// The driver of all other decisions.
const DECIDE: &[&str] = &[lua!("include/call"), lua!("include/keys"), lua!("decide")];
const REPLY: &str = lua!("reply");
/// The script of a reset, which is sent as it is: resets are rare.
pub(super) const RESET: &str = lua!("reset");
/// Numbers that have a name in the scripts. As a local of Lua, each would be set at every call.
const NUMBERS: &[(&str, u64)] = &[
    ("KIND.BUCKET", usual::BUCKET),
    ("KIND.DEBT", usual::DEBT),
    ("KIND.WINDOW", usual::WINDOW),
    ("KIND.PENALTY", usual::PENALTY),
    ("KIND.SLIDING_WINDOW", usual::SLIDING_WINDOW),
    ("KIND.CALENDAR", usual::CALENDAR),
    ("KIND.GUARANTEE", usual::GUARANTEE),
    ("KIND.WITH_HEADROOM", usual::WITH_HEADROOM),
    // The bytes of a state without a text.
    ("SIZE.STATE", 25),
    // The bytes before the first run of usual decisions, of a run, and of each of its charges. Penalties, debts and calendars
    // have 24, 8 and 16 more, and those with headroom 8 more.
    ("SIZE.HEAD", 10),
    ("SIZE.RUN", 8),
    ("SIZE.CHARGE", 35),
    // What is added to the number of charges of a decision whose keys other decisions use too.
    ("SIZE.SHARED", SHARED as u64),
];
/// What a run adds to the number of its charges, if its decisions share keys: more than a decision has charges.
pub(super) const SHARED: usize = 1 << 15;
/// Functions that are created where they are called, because a call of the script that does not call them then
/// creates nothing.
const INLINE: &[Include] = &[
    (
        "sliding_window(true)",
        &["local NEVER = -1\n", lua!("include/muldiv"), lua!("algorithm/sliding_window")],
    ),
    (
        "decide_in_full()",
        &[lua!("decide_in_full/states"), lua!("decide_in_full/failures"), lua!("decide_in_full/phases")],
    ),
];

/// The text of a script, and the hash that EVALSHA takes.
pub(crate) struct Script {
    text: String,
    script: redis::Script,
}

impl Script {
    /// The script with the algorithms of this crate.
    ///
    /// All policies have the same script, so decisions of different policies can share a batch, and a server
    /// loads only one.
    pub(crate) fn built_in() -> &'static Arc<Self> {
        static SCRIPT: LazyLock<Arc<Script>> = LazyLock::new(|| Arc::new(Script::with_custom(&[])));
        &SCRIPT
    }

    /// The script with the algorithms of this crate and `custom`. Their order changes the hash.
    pub(crate) fn with_custom(custom: &[Arc<dyn Algorithm>]) -> Self {
        let mut text = String::new();
        USUAL.iter().for_each(|code| push_code(&mut text, code));
        text.push_str("if left or others <= #request then\n");
        INCLUDES.iter().for_each(|include| push_include(&mut text, include));
        if !custom.is_empty() {
            push_code(&mut text, CHECKED);
        }
        // Each file is the body of a separate function, which keeps its locals private. All of them are
        // inside one function, because Redis runs the whole text at every call and a function that is not
        // created costs nothing.
        text.push_str("local function make(name, brief)\n");
        for algorithm in algorithm::built_in() {
            text.push_str(&format!("if name == '{}' then\nreturn (function(brief)\n", algorithm.name()));
            push_code(&mut text, algorithm.lua());
            text.push_str("end)(brief)\nend\n");
        }
        for algorithm in custom {
            let (name, lua) = (algorithm.name(), algorithm.lua());
            // The file does not reach a key by these names, and a forgotten `local` changes nothing outside
            // it.
            text.push_str(&format!(
                "if name == '{name}' then\nlocal redis, call, try, KEYS, ARGV, _G, loadstring, getfenv, setfenv\n\
                 local pack, ttl, manual_time, text_of_error, read_state, write_state, decide_any\n\
                 local request, others, decisions, width, before, records, cost, headroom, kind, first, second, third\n\
                 local keys, size, held, plans, reply, only, errors, left, sharing, shared, fits, last, some_exist, count_of_records, place\n\
                 local now, muldiv, muldiv_up, floor, format = now, muldiv, muldiv_up, math.floor, string.format\n\
                 local NEVER, REMOVE, KEEP_TTL = NEVER, REMOVE, KEEP_TTL\n\
                 return checked('{name}', (function()\n{lua}\nend)())\nend\n"
            ));
        }
        text.push_str("end\n");
        DECIDE.iter().for_each(|code| push_code(&mut text, code));
        text.push_str("end\n");
        push_code(&mut text, REPLY);
        Self::new(text)
    }

    fn new(text: String) -> Self {
        Self { script: redis::Script::new(&text), text }
    }

    /// The Redis commands that the script calls, in lower case and sorted.
    pub(crate) fn commands(&self) -> BTreeSet<String> {
        let calls = ["call('", "try('"].into_iter().flat_map(|call| self.text.split(call).skip(1));
        calls.filter_map(|call| call.split('\'').next()).map(str::to_ascii_lowercase).collect()
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn hash(&self) -> &str {
        self.script.get_hash()
    }
}

fn push_include(text: &mut String, (name, files): &Include) {
    if let [file] = files {
        return push_code(text, file);
    }
    text.push_str(&format!("local function {name}()\n"));
    files.iter().for_each(|file| push_code(text, file));
    text.push_str("end\n");
}

/// Appends `lua` with the numbers of [`NUMBERS`] and the functions of [`INLINE`] in the places of their names.
fn push_code(text: &mut String, lua: &str) {
    let code = NUMBERS.iter().fold(without_comments(&text_of(lua)), |code, (name, number)| {
        code.replace(name, &number.to_string())
    });
    let code = INLINE.iter().fold(code, |code, (call, files)| {
        let Some((_, arguments)) = call.split_once('(').filter(|_| code.contains(call)) else { return code };
        let mut function = String::from("(function(brief)\n");
        files.iter().for_each(|file| push_code(&mut function, file));
        code.replace(call, &format!("{function}end)({arguments}"))
    });
    text.push_str(&code);
}

/// The text of `lua`, which the crate has.
#[cfg(not(lua_at_run_time))]
pub(super) const fn text_of(lua: &str) -> Cow<'_, str> {
    Cow::Borrowed(lua)
}

/// The text of `lua`, as its file is now: with `--cfg lua_at_run_time`, tests try a change of a file without the compiler.
/// `.ci/mutate-lua` builds them so.
#[cfg(lua_at_run_time)]
pub(super) fn text_of(lua: &str) -> Cow<'_, str> {
    let Some(path) = lua.strip_prefix('@') else { return Cow::Borrowed(lua) };
    let path = format!("{}/lua/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")).into()
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

/// The custom algorithms of a store, and one script for each set of them that is decided together. If the Lua
/// of one does not compile, only its own decisions fail.
#[derive(Default)]
pub(crate) struct Scripts(RwLock<Registered>);

#[derive(Default)]
struct Registered {
    /// The custom algorithms by name.
    custom: BTreeMap<String, Arc<dyn Algorithm>>,
    /// The scripts by the names of their custom algorithms, sorted so that all instances have the same
    /// scripts.
    scripts: HashMap<Vec<String>, Arc<Script>>,
}

impl Scripts {
    pub(crate) fn script_for(&self, charges: &[Charge]) -> Result<Arc<Script>, Error> {
        let custom = || charges.iter().map(Charge::policy).filter(|policy| policy.is_custom());
        if custom().next().is_none() {
            return Ok(Script::built_in().clone());
        }
        let mut names = BTreeSet::new();
        for policy in custom() {
            self.register(policy)?;
            names.insert(policy.algorithm_name().to_owned());
        }
        let names: Vec<String> = names.into_iter().collect();
        if let Some(script) = read(&self.0).scripts.get(&names) {
            return Ok(script.clone());
        }
        let mut registered = write(&self.0);
        let custom: Vec<_> = names.iter().filter_map(|name| registered.custom.get(name).cloned()).collect();
        let script =
            registered.scripts.entry(names).or_insert_with(|| Arc::new(Script::with_custom(&custom)));
        Ok(script.clone())
    }

    /// Registers the policy's algorithm if it is a custom one.
    pub(crate) fn register(&self, policy: &Policy) -> Result<(), Error> {
        let algorithm = &policy.settings().algorithm;
        if !policy.is_custom() {
            return Ok(());
        }
        let has_same_source = |registered: &Arc<dyn Algorithm>| registered.lua() == algorithm.lua();
        if read(&self.0).custom.get(algorithm.name()).is_some_and(has_same_source) {
            return Ok(());
        }
        let mut registered = write(&self.0);
        let first = registered.custom.entry(algorithm.name().to_owned()).or_insert_with(|| algorithm.clone());
        if has_same_source(first) {
            return Ok(());
        }
        Err(Error::invalid("two algorithms of one name have different Lua sources: rename one of them"))
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
