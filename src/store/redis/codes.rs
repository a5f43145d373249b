//! Parses the error texts of a server.

use crate::base::Fault::{
    self, Algorithm, Ask, ClusterDown, ForeignValue, Moved, NoAuth, NoPermission, NoReplicas, NoScript,
    Other, OtherWindow, ReadOnly, Temporary, UnknownCommand, WrongPass,
};

const NO_AUTH: &str = "the server requires a password: add it to the URL, redis://:password@host";
const WRONG_PASS: &str = "the server does not accept this user and password";
const MAY_NOT_RUN: &str =
    "the Redis user may not run a command that the script calls: grant what RedisStore::acl_rule returns";
const NO_KEY: &str =
    "the Redis user may not access a key: grant what RedisStore::acl_rule returns for this store's prefix";

/// What the code of a server means, and what an operator can do about it.
fn meaning(code: &str) -> Option<(Fault, &'static str)> {
    Some(match code {
        "ASK" => (Ask, "the key's slot is migrating to another node"),
        "BUSY" => (Temporary, "a script of another client has run for too long; end it with SCRIPT KILL"),
        "CLUSTERDOWN" => (ClusterDown, "the Redis Cluster does not serve the key's slot; check CLUSTER INFO"),
        "CROSSSLOT" => (
            Other,
            "the keys of a decision are in several slots of the Redis Cluster; was a key made by hand?",
        ),
        "ERR" => (Other, "the server gives no known reason; check its log"),
        "EXECABORT" => (Other, "a transaction was aborted"),
        "LOADING" => (Temporary, "the server is loading its data from disk; wait until it is done"),
        "MASTERDOWN" => (Temporary, "the server is a replica without a primary"),
        "MISCONF" => (
            Other,
            "the server is read only because it cannot save to disk: free space, or turn saving or \
             stop-writes-on-bgsave-error off; its log has the reason",
        ),
        "MOVED" => (
            Moved,
            "the server is one node of a Redis Cluster; connect to all nodes with Servers::cluster and the feature `cluster`",
        ),
        "NOAUTH" => (NoAuth, NO_AUTH),
        "NOPERM" => {
            (NoPermission, "the Redis user lacks a permission: grant what RedisStore::acl_rule returns")
        }
        "NOPROTO" => (Other, "the server does not support this version of the protocol"),
        "NOREPLICAS" => (NoReplicas, "the server is read only because too few replicas are connected"),
        "NOSCRIPT" => (NoScript, "the server does not have the script"),
        "OOM" => (
            Other,
            "the server's memory is full: raise maxmemory, set maxmemory-policy to volatile-ttl, or create fewer keys",
        ),
        "READONLY" => {
            (ReadOnly, "the server is a read-only replica; connect to an address that leads to the primary")
        }
        "TRYAGAIN" => {
            (Temporary, "the keys' slot is migrating to another node, and the keys are on both nodes")
        }
        "UNKILLABLE" => (
            Temporary,
            "a script of another client has run for too long, and cannot be killed because it has written",
        ),
        "WRONGPASS" => (WrongPass, WRONG_PASS),
        "WRONGTYPE" => (
            ForeignValue,
            "a key of the rate limit holds a value of another type, which is kept; does another program use the prefix?",
        ),
        _ => return None,
    })
}

/// The code of an algorithm's errors, from `lua/`, as `RATELIMIT-FOREIGN` is.
const ALGORITHM_CODE: &str = "RATELIMIT-ALGORITHM ";

/// How errors in the Lua begin. They quote names and tokens of its source, and no values.
const LUA_ERRORS: &[&str] = &["attempt to ", "Attempt to ", "Script attempted to ", "Error compiling script"];

/// In the replies of a server that closes a connection without a command.
const MAX_CLIENTS: &str = "max number of clients";
const PROTECTED: &str = "DENIED Redis is running in protected mode";

/// Whether `line` is the reply of a server to a connection that it does not accept.
pub(super) fn is_farewell(line: &[u8]) -> bool {
    let line = String::from_utf8_lossy(line);
    line.starts_with('-') && [MAX_CLIENTS, "-DENIED "].iter().any(|part| line.contains(part))
}

/// Parts of texts that mean more than their codes.
const PARTS: &[(&str, Fault, &str)] = &[
    (
        "RATELIMIT-FOREIGN",
        ForeignValue,
        "a key of the rate limit holds a value that the limiter did not write, which is kept; does another program, or \
         another version of the crate, use the prefix?",
    ),
    (
        "RATELIMIT-WINDOW",
        OtherWindow,
        "the server's clock stepped over two windows of a calendar while the decision was made; is its time correct?",
    ),
    (
        // Valkey, whose Lua is a module that can be left out or unloaded.
        "Could not find scripting engine",
        UnknownCommand,
        "the server runs no Lua scripts: load its module `lua`, or use a server that has it",
    ),
    // Errors of a script's commands, which have the code ERR: first up to Redis 7.0, then of later versions
    // and of Valkey.
    ("can't run this command", NoPermission, MAY_NOT_RUN),
    ("can't access at least one of the keys", NoPermission, NO_KEY),
    ("ACL failure in script: No permissions to access a key", NoPermission, NO_KEY),
    ("ACL failure in script: User ", NoPermission, MAY_NOT_RUN),
    ("unauthenticated", NoAuth, NO_AUTH),
    ("invalid password", WrongPass, WRONG_PASS),
    ("without any password configured", Other, "the server has no password: remove it from the URL"),
    ("invalid username-password pair", WrongPass, WRONG_PASS),
    (MAX_CLIENTS, Other, "the server has reached its limit of connections: raise maxclients"),
    (
        PROTECTED,
        Other,
        "the server is in protected mode and accepts only clients on its host: set a password, or turn \
         protected-mode off",
    ),
    ("DB index is out of range", Other, "the server has no database with this number"),
    (
        "cluster support disabled",
        Other,
        "the server is not a node of a Redis Cluster: use RedisStore::connect",
    ),
];

/// Sentences of servers, and of proxies in front of them, about what they do not allow or support. They quote nothing,
/// and an operator of a managed server cannot read its log.
const SENTENCES: &[&str] = &[
    // Redis and Valkey, which also managed servers use for commands that they restrict.
    "command is not allowed from script",
    "Unknown Redis command called from",
    "Wrong number of args calling",
    "Write commands are not allowed after non deterministic commands",
    "Write commands are not allowed from read-only scripts",
    "number of keys can't be greater than number of args",
    "value is not an integer or out of range",
    "invalid expire time",
    "syntax error",
    "internal error",
    // Dragonfly.
    "script tried accessing undeclared key",
    // Alibaba Cloud.
    "all the keys that the script uses should be passed using the KEYS array",
    // Envoy.
    "unsupported command",
    "no upstream host",
    "upstream failure",
    "upstream protocol error",
];

/// The commands that a message may name: those that the store sends and the built-in algorithms call.
const COMMANDS: &str = "AUTH CLIENT CLUSTER DEL EVAL EVALSHA EXISTS GET HELLO HGETALL INFO LINDEX LLEN LSET LTRIM \
                        PEXPIRE PING PTTL ROLE RPUSH SELECT SENTINEL SET TIME ZADD ZRANGEBYSCORE ZREM \
                        ZREMRANGEBYRANK ZREVRANGE ZSCORE";

/// Why the server answered with the error `text`, and an explanation for an operator. The explanation shows
/// only what cannot be a secret: the code, the command, or what an algorithm raised.
pub(super) fn parse(text: &str) -> (Fault, String) {
    let text = text.trim();
    let plain = without_location(text);
    let plain = plain.strip_prefix("ERR ").unwrap_or(plain);
    // This comes first, because an algorithm may raise any words.
    if let Some((_, raised)) = plain.split_once(ALGORITHM_CODE) {
        return (Algorithm, without_script(raised).trim_end().to_owned());
    }
    if LUA_ERRORS.iter().any(|lua_error| plain.starts_with(lua_error)) {
        return (Algorithm, format!("the Lua of an algorithm failed: {}", without_script(plain)));
    }
    if let Some((_, fault, explanation)) = PARTS.iter().find(|(part, ..)| plain.contains(part)) {
        return (*fault, (*explanation).to_owned());
    }
    // The command is the first quoted text.
    let quoted = plain.split(['\'', '`']).nth(1).unwrap_or_default();
    let command = COMMANDS.split(' ').find(|command| command.eq_ignore_ascii_case(quoted));
    let code = code(text);
    if let Some(command) = command {
        // redis-rs leaves out the code of the reply to SELECT.
        if code == "NOPERM" || plain.contains("no permissions to run the '") {
            let remedy = "grant what RedisStore::acl_rule returns (NOPERM)";
            return (NoPermission, format!("the Redis user may not run {command}: {remedy}"));
        }
        if plain.starts_with("unknown command") {
            let explanation = match command {
                "EVAL" | "EVALSHA" => {
                    format!("the server runs no Lua scripts ({command}): use one that does")
                }
                _ => format!("the server does not support or does not allow the command {command}"),
            };
            return (UnknownCommand, explanation);
        }
    }
    // Other codes mean more.
    let is_plain = code == "ERR" || meaning(code).is_none();
    if let Some(sentence) = SENTENCES.iter().find(|sentence| is_plain && plain.contains(**sentence)) {
        return (Other, format!("the server answered \"{sentence}\""));
    }
    match meaning(code) {
        Some((fault, explanation)) => (fault, format!("{explanation} ({code})")),
        None => (Other, "the server answered with an unknown error; check its log".into()),
    }
}

/// The code of a server's error text, such as `READONLY`, in every form that Redis and Valkey use:
///
/// | form | where |
/// |---|---|
/// | `READONLY You can't write ...` | a command; a script's `redis.pcall` since 7.0 |
/// | `@user_script: 79: -READONLY You can't ...` and a line feed | a command of a script, 6.2 |
/// | `@user_script: 79: WRONGTYPE Operation ...` | the same, for other commands |
/// | `ERR Error running script (call to f_..): @user_script:79: ...` | a script that fails as a whole, 6.2 |
/// | `ERR user_script:79: attempt to ...` | an error in the Lua, since 7.0 |
fn code(text: &str) -> &str {
    let inner = without_location(text.trim()).trim_start_matches('-');
    inner.split([' ', ':', '\r', '\n']).next().unwrap_or_default()
}

/// `text` without the script name and the line number.
fn without_location(mut text: &str) -> &str {
    loop {
        let coded = text.strip_prefix("ERR ").unwrap_or(text);
        let whole = coded
            .strip_prefix("Error running script (call to f_")
            .and_then(|rest| Some(rest.split_once("): ")?.1));
        let located = ["@user_script:", "user_script:", "@enable_strict_lua:"].iter().find_map(|script| {
            let (line, rest) = coded.strip_prefix(script)?.split_once(": ")?;
            line.trim().bytes().all(|byte| byte.is_ascii_digit()).then_some(rest)
        });
        match whole.or(located) {
            Some(rest) => text = rest,
            None => return text,
        }
    }
}

/// `text` without the script and the line, which Redis 7 appends.
fn without_script(text: &str) -> &str {
    text.split(" script: ").next().unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_found_in_every_form() {
        let rows = [
            ("7.0", "READONLY You can't write against a read only replica.", ReadOnly),
            (
                "6.2, in a script",
                "@user_script: 79: -READONLY You can't write against a read only replica.\r\n",
                ReadOnly,
            ),
            ("6.2, a type", "@user_script: 8: WRONGTYPE Operation against a key", ForeignValue),
            (
                "6.2, all of a script",
                "ERR Error running script (call to f_0a1b): @user_script:9: @user_script: 9: -LOADING Redis is loading",
                Temporary,
            ),
            ("a place without a line", "@user_script: x: READONLY", Other),
            ("a word in the middle", "the user said READONLY", Other),
            ("nothing", "", Other),
        ];
        for (name, text, expected) in rows {
            assert_eq!(parse(text).0, expected, "{name}");
        }
    }

    #[test]
    fn a_fault_is_found_in_the_text_that_servers_send() {
        let rows = [
            ("MOVED 866,127.0.0.1:7001", Moved, "(MOVED)"),
            ("ASK 866,127.0.0.1:7001", Ask, "(ASK)"),
            ("CLUSTERDOWN Hash slot not served", ClusterDown, "(CLUSTERDOWN)"),
            (
                "NOPERM this user has no permissions to run the 'evalsha' command",
                NoPermission,
                "EVALSHA: grant",
            ),
            ("ERR User x has no permissions to run the 'select' command", NoPermission, "SELECT: grant"),
            ("NOPERM this user has no permissions to access one of the keys", NoPermission, "(NOPERM)"),
            (
                "ERR The user executing the script can't run this command or subcommand",
                NoPermission,
                MAY_NOT_RUN,
            ),
            ("ERR ACL failure in script: No permissions to access a key", NoPermission, NO_KEY),
            ("RATELIMIT-FOREIGN script: 9c9f, on @user_script:79.", ForeignValue, "did not write"),
            ("@user_script: 8: WRONGTYPE Operation against a key", ForeignValue, "(WRONGTYPE)"),
            ("RATELIMIT-ALGORITHM bad: RATELIMIT-FOREIGN", Algorithm, "bad: RATELIMIT-FOREIGN"),
            ("ERR unknown command 'hello', with args beginning with: ", UnknownCommand, "HELLO"),
            ("ERR unknown command 'EVAL', with args beginning with: ", UnknownCommand, "runs no Lua scripts"),
            ("ERR Could not find scripting engine 'lua'", UnknownCommand, "load its module `lua`"),
            (
                "ERR unknown command 'hunter2', with args beginning with: ",
                Other,
                "no known reason; check its log (ERR)",
            ),
            ("hunter2", Other, "unknown error; check its log"),
            (
                "ERR This Redis command is not allowed from script script: 9c9f, on @user_script:79.",
                Other,
                "\"command is not allowed from script\"",
            ),
            (
                "@user_script: 8: This Redis command is not allowed from scripts",
                Other,
                "is not allowed from script\"",
            ),
            (
                "ERR Error running script (call to f_0a1b): @user_script:9: script tried accessing undeclared key, hunter2",
                Other,
                "answered \"script tried accessing undeclared key\"",
            ),
            ("ERR internal error", Other, "answered \"internal error\""),
            ("no upstream host", Other, "answered \"no upstream host\""),
            ("ERR hunter2: syntax error", Other, "answered \"syntax error\""),
            ("OOM internal error", Other, "(OOM)"),
        ];
        for (text, fault, part) in rows {
            let (found, explanation) = parse(text);
            assert_eq!(found, fault, "{text}");
            assert!(explanation.contains(part) && !explanation.contains("hunter2"), "{text}: {explanation}");
        }
    }
}
