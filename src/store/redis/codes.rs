//! Parses the error texts of a server.

use crate::base::Fault;

/// The codes of servers.
const CODES: &[(&str, Fault)] = &[
    ("ASK", Fault::Ask),
    ("BUSY", Fault::Busy),
    ("CLUSTERDOWN", Fault::ClusterDown),
    ("CROSSSLOT", Fault::CrossSlot),
    ("ERR", Fault::Other),
    ("EXECABORT", Fault::ExecAbort),
    ("LOADING", Fault::Loading),
    ("MASTERDOWN", Fault::MasterDown),
    ("MISCONF", Fault::Misconf),
    ("MOVED", Fault::Moved),
    ("NOAUTH", Fault::NoAuth),
    ("NOPERM", Fault::NoPermission),
    ("NOPROTO", Fault::NoProto),
    ("NOREPLICAS", Fault::NoReplicas),
    ("NOSCRIPT", Fault::NoScript),
    ("OOM", Fault::OutOfMemory),
    ("READONLY", Fault::ReadOnly),
    ("TRYAGAIN", Fault::TryAgain),
    ("UNKILLABLE", Fault::Unkillable),
    ("WRONGPASS", Fault::WrongPass),
    ("WRONGTYPE", Fault::WrongType),
];

/// The script's own errors, from `lua/`.
const FOREIGN_CODE: &str = "RATELIMIT-FOREIGN";
const ALGORITHM_CODE: &str = "RATELIMIT-ALGORITHM ";

/// How errors in the Lua begin. They quote names and tokens of its source, and no values.
const LUA_ERRORS: &[&str] = &["attempt to ", "Attempt to ", "Script attempted to "];

/// Parts of texts that say more than their codes.
const PARTS: &[(&str, Fault)] = &[
    // Errors of a script's commands, which have the code ERR: first up to Redis 7.0, then of later versions and of
    // Valkey.
    ("can't run this command", Fault::NoCommand),
    ("can't access at least one of the keys", Fault::NoKey),
    ("ACL failure in script: No permissions to access a key", Fault::NoKey),
    ("ACL failure in script: User ", Fault::NoCommand),
    ("unauthenticated", Fault::NoAuth),
    ("invalid password", Fault::WrongPass),
    ("without any password configured", Fault::NoPasswordSet),
    ("invalid username-password pair", Fault::WrongPass),
    ("max number of clients", Fault::TooManyClients),
    ("DB index is out of range", Fault::NoDatabase),
    ("cluster support disabled", Fault::NoCluster),
];

/// The commands that a message may name: those that the store sends and the built-in algorithms call.
const COMMANDS: &str = "AUTH CLIENT CLUSTER DEL EVAL EVALSHA EXISTS GET HELLO HGETALL INFO LINDEX LLEN LSET LTRIM \
                        PEXPIRE PING ROLE RPUSH SELECT SENTINEL SET TIME ZADD ZRANGEBYSCORE ZREM \
                        ZREMRANGEBYRANK ZREVRANGE ZSCORE";

/// Why the server answered with the error `text`, and what of it can be shown, because none of it can be a secret: its
/// code, the command, or what an algorithm raised. Empty if nothing can.
pub(super) fn parse(text: &str) -> (Fault, &str) {
    let text = text.trim();
    let plain = without_location(text);
    let plain = plain.strip_prefix("ERR ").unwrap_or(plain);
    // First, because an algorithm may raise any words.
    if let Some((_, raised)) = plain.split_once(ALGORITHM_CODE) {
        return (Fault::Algorithm, without_script(raised).trim_end());
    }
    if plain.contains(FOREIGN_CODE) {
        return (Fault::ForeignValue, "");
    }
    if plain.starts_with("Error compiling script") {
        return (Fault::Algorithm, plain);
    }
    if LUA_ERRORS.iter().any(|lua_error| plain.starts_with(lua_error)) {
        return (Fault::Lua, without_script(plain));
    }
    if let Some((_, fault)) = PARTS.iter().find(|(part, _)| plain.contains(part)) {
        return (*fault, "");
    }
    // The command is the first quoted text.
    let quoted = plain.split(['\'', '`']).nth(1).unwrap_or_default();
    let command = COMMANDS.split(' ').find(|command| command.eq_ignore_ascii_case(quoted));
    match (coded(text), command) {
        (Some((_, Fault::NoPermission)), Some(command)) => (Fault::NoCommand, command),
        // redis-rs leaves out the code of the reply to SELECT.
        (_, Some(command)) if plain.contains("no permissions to run the '") => (Fault::NoCommand, command),
        (_, Some(command)) if plain.starts_with("unknown command") => (Fault::UnknownCommand, command),
        (Some((code, fault)), _) => (fault, code),
        (None, _) => (Fault::Unknown, ""),
    }
}

/// What the code of a server's error text says, such as `READONLY`, in every form that Redis and Valkey use:
///
/// | form | where |
/// |---|---|
/// | `READONLY You can't write ...` | a command; a script's `redis.pcall` since 7.0 |
/// | `@user_script: 79: -READONLY You can't ...` and a line feed | a command of a script, 6.2 |
/// | `@user_script: 79: WRONGTYPE Operation ...` | the same, for other commands |
/// | `ERR Error running script (call to f_..): @user_script:79: ...` | a script that fails as a whole, 6.2 |
/// | `ERR user_script:79: attempt to ...` | an error in the Lua, since 7.0 |
pub(super) fn code(text: &str) -> Option<Fault> {
    coded(text).map(|(_, fault)| fault)
}

fn coded(text: &str) -> Option<(&'static str, Fault)> {
    let inner = without_location(text.trim());
    let word = inner.trim_start_matches('-').split([' ', ':', '\r', '\n']).next().unwrap_or_default();
    CODES.iter().copied().find(|(code, _)| *code == word)
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
            ("7.0", "READONLY You can't write against a read only replica.", Some(Fault::ReadOnly)),
            (
                "6.2, in a script",
                "@user_script: 79: -READONLY You can't write against a read only replica.\r\n",
                Some(Fault::ReadOnly),
            ),
            ("6.2, a type", "@user_script: 8: WRONGTYPE Operation against a key", Some(Fault::WrongType)),
            (
                "6.2, all of a script",
                "ERR Error running script (call to f_0a1b): @user_script:9: @user_script: 9: -OOM command not allowed",
                Some(Fault::OutOfMemory),
            ),
            ("a place without a line", "@user_script: x: READONLY", None),
            ("a word in the middle", "the user said READONLY", None),
            ("nothing", "", None),
        ];
        for (name, text, expected) in rows {
            assert_eq!(code(text), expected, "{name}");
        }
    }

    #[test]
    fn a_fault_is_found_in_the_text_that_servers_send() {
        let rows = [
            ("MOVED 866,127.0.0.1:7001", Fault::Moved, "MOVED"),
            ("ASK 866,127.0.0.1:7001", Fault::Ask, "ASK"),
            ("CLUSTERDOWN Hash slot not served", Fault::ClusterDown, "CLUSTERDOWN"),
            ("NOPERM this user has no permissions to run the 'evalsha' command", Fault::NoCommand, "EVALSHA"),
            ("ERR User x has no permissions to run the 'select' command", Fault::NoCommand, "SELECT"),
            ("NOPERM this user has no permissions to access one of the keys", Fault::NoPermission, "NOPERM"),
            ("ERR The user executing the script can't run this command or subcommand", Fault::NoCommand, ""),
            ("ERR ACL failure in script: No permissions to access a key", Fault::NoKey, ""),
            ("RATELIMIT-FOREIGN script: 9c9f, on @user_script:79.", Fault::ForeignValue, ""),
            ("@user_script: 8: WRONGTYPE Operation against a key", Fault::WrongType, "WRONGTYPE"),
            ("RATELIMIT-ALGORITHM bad: RATELIMIT-FOREIGN", Fault::Algorithm, "bad: RATELIMIT-FOREIGN"),
            ("ERR unknown command 'hello', with args beginning with: ", Fault::UnknownCommand, "HELLO"),
            ("ERR unknown command 'hunter2', with args beginning with: ", Fault::Other, "ERR"),
            ("hunter2", Fault::Unknown, ""),
        ];
        for (text, fault, shown) in rows {
            assert_eq!(parse(text), (fault, shown), "{text}");
        }
    }
}
