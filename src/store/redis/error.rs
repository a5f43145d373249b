//! What a failure of Redis is called: its code, and a text of our own.
//!
//! A server may repeat what it was sent in the text of an error, and so may a proxy in front of it: the password of
//! `HELLO`, the identities in the keys. So a server's text is shown only where all of it is known to come from a
//! script or from the server itself. An error keeps no `RedisError` as its source, because that shows the text too.

use redis::{IntoConnectionInfo as _, RedisError, ServerErrorKind};

use crate::error::{Error, ErrorKind};

/// The code of a server's error text, such as `READONLY`, in every form in which Redis and Valkey give it:
///
/// | form | where |
/// |---|---|
/// | `READONLY You can't write ...` | a command; a script's `redis.pcall` since 7.0 |
/// | `@user_script: 79: -READONLY You can't ...` and a line feed | a script's command, 6.2 |
/// | `@user_script: 79: WRONGTYPE Operation ...` | the same, another command |
/// | `ERR Error running script (call to f_..): @user_script:79: ...` | a script that fails as a whole, 6.2 |
/// | `ERR user_script:79: attempt to ...` | a mistake in the Lua, since 7.0 |
pub(crate) fn code(text: &str) -> Option<&'static str> {
    let text = text.trim();
    let inner = without_place(text);
    let word = inner.trim_start_matches('-').split([' ', ':', '\r', '\n']).next().unwrap_or_default();
    CODES.iter().map(|(code, _)| *code).find(|code| *code == word)
}

/// `text` without what says at which line of which script.
fn without_place(mut text: &str) -> &str {
    loop {
        let coded = text.strip_prefix("ERR ").unwrap_or(text);
        let whole = coded
            .strip_prefix("Error running script (call to f_")
            .and_then(|rest| Some(rest.split_once("): ")?.1));
        let placed = ["@user_script:", "user_script:", "@enable_strict_lua:"].iter().find_map(|script| {
            let (line, rest) = coded.strip_prefix(script)?.split_once(": ")?;
            line.trim().bytes().all(|byte| byte.is_ascii_digit()).then_some(rest)
        });
        match whole.or(placed) {
            Some(rest) => text = rest,
            None => return text,
        }
    }
}

/// The codes that are known, and what to do.
const CODES: &[(&str, &str)] = &[
    ("ASK", "the key's slot is on its way to another node"),
    ("BUSY", "a script of another client runs for too long; the server wants SCRIPT KILL"),
    ("CLUSTERDOWN", "the Redis Cluster does not serve the key's slot; see CLUSTER INFO"),
    ("CROSSSLOT", "the keys of a call are in several slots of the Redis Cluster; was a key made by hand?"),
    ("ERR", "the server does not say why in a known form; its own log may"),
    ("EXECABORT", "a transaction was aborted"),
    ("LOADING", "the server is loading its data from disk; it answers when that is done"),
    ("MASTERDOWN", "the server is a replica without a primary"),
    ("MISCONF", "the server refuses writes because it cannot save to disk; see its log"),
    (
        "MOVED",
        "the server is a node of a Redis Cluster, and others have the rest of the keys; connect to all of them with \
         RedisStore::connect_cluster, which the feature `cluster` has",
    ),
    ("NOAUTH", "the server wants a password: write it into the URL, redis://:password@host"),
    ("NOPERM", "the Redis user lacks a permission: grant what RedisStore::acl_rule says"),
    ("NOPROTO", "the server does not speak this version of the protocol"),
    ("NOREPLICAS", "the server refuses writes because too few replicas are connected"),
    ("NOSCRIPT", "the server has lost the script each time it was loaded"),
    ("OOM", "the server's memory is full: raise maxmemory, or see that fewer keys are made"),
    ("READONLY", "the server is a replica and cannot be written to; its name should lead to the primary"),
    ("TRYAGAIN", "the keys' slot is on its way to another node, and they are on both"),
    ("UNKILLABLE", "a script of another client runs for too long and has written"),
    ("WRONGPASS", "the server does not accept this user and password"),
    (
        "WRONGTYPE",
        "a key of the rate limit holds a value of another type; does another program use its prefix? it is left as it is",
    ),
];

const FOREIGN: &str = "a key of the rate limit holds a value that is not the limiter's; does another program use its prefix? \
     it is left as it is";

/// Texts of the script's own, from `lua/`.
const FOREIGN_CODE: &str = "RATELIMIT-FOREIGN";
const ALGORITHM_CODE: &str = "RATELIMIT-ALGORITHM ";

/// The commands that a message may name: those the store sends and the built-in algorithms call.
const COMMANDS: &[&str] = &[
    "AUTH",
    "CLIENT",
    "CLUSTER",
    "DEL",
    "EVAL",
    "EVALSHA",
    "EXISTS",
    "GET",
    "HELLO",
    "INFO",
    "LINDEX",
    "LLEN",
    "LSET",
    "LTRIM",
    "PEXPIRE",
    "PING",
    "RPUSH",
    "SCRIPT",
    "SCRIPT|LOAD",
    "SELECT",
    "SET",
    "TIME",
    "ZADD",
    "ZRANGEBYSCORE",
    "ZREM",
    "ZREMRANGEBYRANK",
    "ZREVRANGE",
    "ZSCORE",
];

/// What the server's text `text` comes to, without anything in it that could be a secret.
fn explain(text: &str) -> String {
    let text = text.trim();
    let plain = without_place(text);
    let plain = plain.strip_prefix("ERR ").unwrap_or(plain);
    if plain.contains(FOREIGN_CODE) {
        return FOREIGN.into();
    }
    if let Some((_, problem)) = plain.split_once(ALGORITHM_CODE) {
        // Redis 7 adds where in which script.
        return problem.split(" script: ").next().unwrap_or(problem).trim_end().to_owned();
    }
    // Of a mistake in the Lua source both texts quote names and tokens of that source, and no value.
    if plain.starts_with("Error compiling script") {
        return plain.to_owned();
    }
    let mistakes = ["attempt to ", "Attempt to ", "Script attempted to "];
    if mistakes.iter().any(|mistake| plain.starts_with(mistake)) {
        let mistake = plain.split(" script: ").next().unwrap_or(plain);
        return format!("the Lua of an algorithm fails: {mistake}");
    }
    let known = [
        // A script's command. These have the code ERR.
        (
            "can't run this command",
            "the Redis user may not run a command that the script calls: grant what RedisStore::acl_rule says",
        ),
        (
            "can't access at least one of the keys",
            "the Redis user may not access a key: grant what RedisStore::acl_rule says, for the store's own prefix",
        ),
        ("unauthenticated", "the server wants a password: write it into the URL, redis://:password@host"),
        ("invalid password", "the server does not accept this user and password"),
        ("without any password configured", "the server has no password: take it out of the URL"),
        ("invalid username-password pair", "the server does not accept this user and password"),
        ("max number of clients", "the server has no connection left to give: see its maxclients"),
        ("DB index is out of range", "the server has no database of this number"),
        ("cluster support disabled", "the server is no node of a Redis Cluster: use RedisStore::connect"),
    ];
    if let Some((_, explained)) = known.iter().find(|(part, _)| plain.contains(part)) {
        return (*explained).to_owned();
    }
    let code = code(text);
    // Redis names the command in quotes, as the first thing that it quotes.
    let command = plain.split(['\'', '`']).nth(1).map(str::to_ascii_uppercase);
    let command = command.filter(|command| COMMANDS.contains(&command.as_str()));
    match (code, command) {
        (Some("NOPERM"), Some(command)) => {
            format!("the Redis user may not run {command}: grant what RedisStore::acl_rule says (NOPERM)")
        }
        (_, Some(command)) if plain.starts_with("unknown command") => {
            format!("the server does not know or does not allow the command {command}")
        }
        (Some(code), _) => {
            let explained =
                CODES.iter().find(|(known, _)| *known == code).map_or("", |(_, explained)| explained);
            format!("{explained} ({code})")
        }
        (None, _) => "the server answered with an error of an unknown form; its own log may say why".into(),
    }
}

/// The error of one decision of several, which the script caught.
pub(crate) fn of_decision(text: &str) -> Error {
    Error::new(ErrorKind::StoreFailed, format!("Redis refused the command: {}", explain(text)))
}

/// The error of a command or of a connection.
pub(crate) fn from_redis(error: &RedisError) -> Error {
    let kind = if error.is_timeout() {
        ErrorKind::StoreTimeout
    } else if is_server(error) {
        // Before the next, because some of these are answered by connecting anew.
        ErrorKind::StoreFailed
    } else if is_broken(error) {
        ErrorKind::StoreUnreachable
    } else if matches!(error.kind(), redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType) {
        ErrorKind::StoreReply
    } else {
        ErrorKind::StoreFailed
    };
    let problem = match kind {
        ErrorKind::StoreTimeout => "Redis did not answer in time",
        ErrorKind::StoreUnreachable => "the connection to Redis broke",
        ErrorKind::StoreReply => "the reply of Redis makes no sense",
        _ => "Redis refused the command",
    };
    with_source(Error::new(kind, format!("{problem}: {}", describe(error))), error)
}

/// No connection could be made to `place`, which shows no password.
pub(crate) fn unreachable(place: &str, error: &RedisError) -> Error {
    let message = format!(
        "cannot connect to Redis{place}: {}; check the URL and that the server runs",
        describe(error)
    );
    with_source(Error::new(ErrorKind::StoreUnreachable, message), error)
}

/// Only an error of the system may be the source: its text is the system's.
fn with_source(error: Error, cause: &RedisError) -> Error {
    match io_kind(cause) {
        Some(kind) => error.with_source(std::io::Error::from(kind)),
        None => error,
    }
}

fn io_kind(error: &RedisError) -> Option<std::io::ErrorKind> {
    if error.is_connection_refusal() {
        Some(std::io::ErrorKind::ConnectionRefused)
    } else if error.is_timeout() {
        Some(std::io::ErrorKind::TimedOut)
    } else if error.is_connection_dropped() {
        Some(std::io::ErrorKind::ConnectionReset)
    } else {
        None
    }
}

fn is_server(error: &RedisError) -> bool {
    matches!(error.kind(), redis::ErrorKind::Server(_) | redis::ErrorKind::Extension)
}

pub(crate) fn is_broken(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || error.is_io_error()
}

/// What went wrong, without a text that the server chose.
fn describe(error: &RedisError) -> String {
    if is_server(error) {
        let (code, detail) = (error.code().unwrap_or_default(), error.detail().unwrap_or_default());
        return explain(&format!("{code} {detail}"));
    }
    match error.kind() {
        redis::ErrorKind::Io => match (error.detail(), io_kind(error)) {
            // Of a Cluster, all of whose nodes failed: it quotes why, servers' texts included.
            (Some(quoted), _) => explain_quoted(quoted),
            (None, Some(kind @ (std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::TimedOut))) => {
                std::io::Error::from(kind).to_string()
            }
            // The words of this system or of the TLS library, such as those of a name that leads nowhere.
            (None, _) => error.to_string(),
        },
        redis::ErrorKind::AuthenticationFailed => {
            let detail = error.detail().unwrap_or_default();
            match code(detail) {
                Some("ERR") | None => "the server does not accept this user and password".into(),
                Some(_) => explain(detail),
            }
        }
        redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType => "is it a Redis server?".into(),
        redis::ErrorKind::InvalidClientConfig => "the client is not configured for it".into(),
        _ => error.category().to_owned(),
    }
}

/// What `quoted` comes to, a text in which the client quotes others, of the system and of servers.
fn explain_quoted(quoted: &str) -> String {
    let known = [
        ("WRONGPASS", "WRONGPASS"),
        ("AuthenticationFailed", "WRONGPASS"),
        ("NOAUTH", "NOAUTH"),
        ("NoPerm", "NOPERM"),
        ("NOPERM", "NOPERM"),
        ("cluster support disabled", "cluster support disabled"),
        ("unauthenticated", "unauthenticated"),
        ("Authentication required", "NOAUTH"),
    ];
    if let Some((_, text)) = known.iter().find(|(part, _)| quoted.contains(part)) {
        return explain(text);
    }
    let of_the_system =
        ["Connection refused", "Connection reset", "No route to host", "Network is unreachable"];
    match of_the_system.iter().find(|text| quoted.contains(*text)) {
        Some(text) => format!("no node can be connected to: {text}"),
        None => "no node can be connected to".into(),
    }
}

/// The URL as redis-rs takes it.
pub(crate) fn connection_info(url: &str) -> Result<redis::ConnectionInfo, Error> {
    // A character that ends the address too soon: what follows it would be taken for a path, and what comes before it
    // for a host, which messages show.
    let address = url.split_once("://").map_or(url, |(_, address)| address);
    let ends = address.find(['/', '?', '#']).unwrap_or(address.len());
    let is_socket =
        url.starts_with("unix:") || url.split_once("://").is_some_and(|(scheme, _)| scheme.contains("unix"));
    if !is_socket && address[ends..].contains('@') {
        return Err(malformed("its user or password has a character that must be percent-encoded"));
    }
    url.into_connection_info().map_err(|error| malformed_by(&error))
}

pub(crate) fn malformed_by(error: &RedisError) -> Error {
    // What redis-rs quotes of the URL may be the password, so only its fixed texts are taken.
    let text = error.to_string();
    let known = [
        ("database number", "the part after the address is no database number"),
        ("TLS", "the feature for TLS is not turned on"),
        ("wildcard", "0.0.0.0 and :: are not addresses of a server"),
        ("hostname", "it has no host"),
        ("#insecure", "only #insecure may follow a #"),
        ("UTF-8", "its user or password is not UTF-8"),
        ("rotocol", "its protocol must be resp2 or resp3"),
    ];
    malformed(known.iter().find(|(part, _)| text.contains(part)).map_or("it is no URL", |(_, is)| is))
}

fn malformed(problem: &str) -> Error {
    Error::new(
        ErrorKind::InvalidConfig,
        format!(
            "the Redis URL does not work ({problem}); write redis://[user:password@]host[:port][/database], with \
             special characters in the password percent-encoded, and for rediss:// turn on the feature \
             `tokio-rustls-comp` of the crate `redis`"
        ),
    )
}

/// Whether the server is a replica: a primary that was demoted answers so.
pub(crate) fn is_read_only(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::ReadOnly)
        || is_server(error) && code(error.detail().unwrap_or_default()) == Some("READONLY")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_found_in_every_form() {
        let rows = [
            ("7.0", "READONLY You can't write against a read only replica.", Some("READONLY")),
            (
                "6.2, in a script",
                "@user_script: 79: -READONLY You can't write against a read only replica.\r\n",
                Some("READONLY"),
            ),
            ("6.2, a type", "@user_script: 8: WRONGTYPE Operation against a key", Some("WRONGTYPE")),
            (
                "6.2, all of a script",
                "ERR Error running script (call to f_0a1b): @user_script:9: @user_script: 9: -OOM command not allowed",
                Some("OOM"),
            ),
            ("a place that is none", "@user_script: x: READONLY", None),
            ("a word in the middle", "the user said READONLY", None),
            ("nothing", "", None),
        ];
        for (name, text, expected) in rows {
            assert_eq!(code(text), expected, "{name}");
        }
    }

    #[test]
    fn what_a_server_repeats_is_not_shown() {
        let rows = [
            "ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'default' 'hunter2' ",
            "ERR unknown command `EVALSHA`, with args beginning with: `9c9f`, `hunter2`",
            "hunter2",
            "HUNTER2 hunter2",
            "ERR hunter2",
            "NOPERM User hunter2 has no permissions to run the 'evalsha' command",
            "WRONGPASS invalid username-password pair or user is disabled: hunter2",
            "-ERR wrong number of arguments for 'hunter2'",
            "@user_script: 3: -READONLY hunter2",
            "ERR Error running script (call to f_1): @user_script:3: hunter2",
            "NOAUTH hunter2",
        ];
        for text in rows {
            let explained = explain(text);
            assert!(!explained.to_lowercase().contains("hunter2"), "{text}: {explained}");
            assert!(explained.len() > 10, "{text}: {explained}");
        }
        assert!(explain(rows[1]).ends_with("EVALSHA"), "{}", explain(rows[1]));
        assert!(explain(rows[5]).contains("EVALSHA"), "{}", explain(rows[5]));
    }

    #[test]
    fn of_what_a_client_quotes_only_known_words_are_shown() {
        let rows = [
            ("[] Connection refused (os error 111)", "Connection refused"),
            (
                "upstream: Connection refused (os error 111) while sending HELLO 3 AUTH hunter2",
                "Connection refused",
            ),
            ("Password authentication failed - AuthenticationFailed: hunter2", "user and password"),
            ("NOAUTH: hunter2", "wants a password"),
            ("hunter2", "no node can be connected to"),
        ];
        for (quoted, part) in rows {
            let explained = explain_quoted(quoted);
            assert!(explained.contains(part) && !explained.contains("hunter2"), "{quoted}: {explained}");
        }
    }

    #[test]
    fn a_mistake_in_an_algorithm_is_shown() {
        let rows = [
            ("RATELIMIT-ALGORITHM the algorithm x must plan", "the algorithm x must plan"),
            ("ERR user_script:12: attempt to index a nil value", "attempt to index"),
            ("ERR Error compiling script (new function): user_script:3: '=' expected", "'=' expected"),
            ("@user_script: 12: attempt to call local 'f'", "attempt to call local 'f'"),
        ];
        for (text, part) in rows {
            assert!(explain(text).contains(part), "{text}: {}", explain(text));
        }
    }
}
