//! Errors of Redis: their codes, and texts that are safe to show.
//!
//! A server, or a proxy in front of it, may quote what it was sent: the password of `HELLO`, or the identities in keys.
//! So a server's text is shown only if all of it is known to come from a script or from the server itself. An error
//! never has a `RedisError` as its source, because that shows the text too.

use redis::{RedisError, ServerErrorKind};

use crate::error::{Error, ErrorKind};

/// The code of a server's error text, such as `READONLY`, in every form that Redis and Valkey use:
///
/// | form | where |
/// |---|---|
/// | `READONLY You can't write ...` | a command; a script's `redis.pcall` since 7.0 |
/// | `@user_script: 79: -READONLY You can't ...` and a line feed | a command of a script, 6.2 |
/// | `@user_script: 79: WRONGTYPE Operation ...` | the same, for other commands |
/// | `ERR Error running script (call to f_..): @user_script:79: ...` | a script that fails as a whole, 6.2 |
/// | `ERR user_script:79: attempt to ...` | an error in the Lua, since 7.0 |
pub(crate) fn code(text: &str) -> Option<&'static str> {
    let text = text.trim();
    let inner = without_location(text);
    let word = inner.trim_start_matches('-').split([' ', ':', '\r', '\n']).next().unwrap_or_default();
    CODES.iter().map(|(code, _)| *code).find(|code| *code == word)
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

/// The known codes, and what to do.
const CODES: &[(&str, &str)] = &[
    ("ASK", "the key's slot is migrating to another node"),
    ("BUSY", "a script of another client has run for too long; end it with SCRIPT KILL"),
    ("CLUSTERDOWN", "the Redis Cluster does not serve the key's slot; check CLUSTER INFO"),
    (
        "CROSSSLOT",
        "the keys of a decision are in several slots of the Redis Cluster; was a key made by hand?",
    ),
    ("ERR", "the server gives no known reason; check its log"),
    ("EXECABORT", "a transaction was aborted"),
    ("LOADING", "the server is loading its data from disk; wait until it is done"),
    ("MASTERDOWN", "the server is a replica without a primary"),
    ("MISCONF", "the server is read only because it cannot save to disk; check its log"),
    (
        "MOVED",
        "the server is one node of a Redis Cluster; connect to all nodes with RedisStore::connect_cluster and the \
         feature `cluster`",
    ),
    ("NOAUTH", "the server requires a password: add it to the URL, redis://:password@host"),
    ("NOPERM", "the Redis user lacks a permission: grant what RedisStore::acl_rule returns"),
    ("NOPROTO", "the server does not support this version of the protocol"),
    ("NOREPLICAS", "the server is read only because too few replicas are connected"),
    ("NOSCRIPT", "the server lost the script each time it was loaded"),
    ("OOM", "the server's memory is full: raise maxmemory, or create fewer keys"),
    ("READONLY", "the server is a read-only replica; connect to an address that leads to the primary"),
    ("TRYAGAIN", "the keys' slot is migrating to another node, and the keys are on both nodes"),
    (
        "UNKILLABLE",
        "a script of another client has run for too long, and cannot be killed because it has written",
    ),
    ("WRONGPASS", "the server does not accept this user and password"),
    (
        "WRONGTYPE",
        "a key of the rate limit holds a value of another type, which is kept; does another program use the prefix?",
    ),
];

const FOREIGN: &str = "a key of the rate limit holds a value that the limiter did not write, which is kept; \
                       does another program use the prefix?";

/// The script's own errors, from `lua/`.
const FOREIGN_CODE: &str = "RATELIMIT-FOREIGN";
const ALGORITHM_CODE: &str = "RATELIMIT-ALGORITHM ";

/// The commands that a message may name: those that the store sends and the built-in algorithms call.
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
    "HGETALL",
    "INFO",
    "LINDEX",
    "LLEN",
    "LSET",
    "LTRIM",
    "PEXPIRE",
    "PING",
    "ROLE",
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

/// Explains the server's error `text` without anything in it that could be a secret.
fn explain(text: &str) -> String {
    let text = text.trim();
    let plain = without_location(text);
    let plain = plain.strip_prefix("ERR ").unwrap_or(plain);
    if plain.contains(FOREIGN_CODE) {
        return FOREIGN.into();
    }
    if let Some((_, problem)) = plain.split_once(ALGORITHM_CODE) {
        // Redis 7 appends the script and the line.
        return problem.split(" script: ").next().unwrap_or(problem).trim_end().to_owned();
    }
    // Both texts about an error in the Lua quote names and tokens of its source, and no values.
    if plain.starts_with("Error compiling script") {
        return plain.to_owned();
    }
    let lua_errors = ["attempt to ", "Attempt to ", "Script attempted to "];
    if lua_errors.iter().any(|lua_error| plain.starts_with(lua_error)) {
        let lua_error = plain.split(" script: ").next().unwrap_or(plain);
        return format!("the Lua of an algorithm failed: {lua_error}");
    }
    let no_command =
        "the Redis user may not run a command that the script calls: grant what RedisStore::acl_rule returns";
    let no_key = "the Redis user may not access a key: grant what RedisStore::acl_rule returns for this store's prefix";
    let known = [
        // Errors of a script's commands, which have the code ERR: first those up to Redis 7.0, then those of later ones
        // and of Valkey.
        ("can't run this command", no_command),
        ("can't access at least one of the keys", no_key),
        ("ACL failure in script: No permissions to access a key", no_key),
        ("ACL failure in script: User ", no_command),
        ("unauthenticated", "the server requires a password: add it to the URL, redis://:password@host"),
        ("invalid password", "the server does not accept this user and password"),
        ("without any password configured", "the server has no password: remove it from the URL"),
        ("invalid username-password pair", "the server does not accept this user and password"),
        ("max number of clients", "the server has reached its limit of connections: raise maxclients"),
        ("DB index is out of range", "the server has no database with this number"),
        ("cluster support disabled", "the server is not a node of a Redis Cluster: use RedisStore::connect"),
    ];
    if let Some((_, explanation)) = known.iter().find(|(part, _)| plain.contains(part)) {
        return (*explanation).to_owned();
    }
    let code = code(text);
    // The command is the first quoted text.
    let command = plain.split(['\'', '`']).nth(1).map(str::to_ascii_uppercase);
    let command = command.filter(|command| COMMANDS.contains(&command.as_str()));
    match (code, command) {
        (Some("NOPERM"), Some(command)) => {
            format!("the Redis user may not run {command}: grant what RedisStore::acl_rule returns (NOPERM)")
        }
        (_, Some(command)) if plain.starts_with("unknown command") => {
            format!("the server does not support or does not allow the command {command}")
        }
        (Some(code), _) => {
            let explanation =
                CODES.iter().find(|(known, _)| *known == code).map_or("", |(_, explanation)| explanation);
            format!("{explanation} ({code})")
        }
        (None, _) => "the server answered with an unknown error; check its log".into(),
    }
}

/// The codes of errors that end without a change of the configuration.
const TEMPORARY: &[&str] = &[
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOREPLICAS",
    "OOM",
    "TRYAGAIN",
    "UNKILLABLE",
];

/// Whether the server's error ends without a change of the configuration. [`explain`] ends with the code.
pub(crate) fn is_temporary(error: &Error) -> bool {
    let text = error.to_string();
    error.kind() == ErrorKind::StoreFailed
        && TEMPORARY.iter().any(|code| text.ends_with(&format!("({code})")))
}

/// Whether a key holds a value that the limiter did not write. [`explain`] ends so.
pub(crate) fn is_foreign(error: &Error) -> bool {
    let text = error.to_string();
    error.kind() == ErrorKind::StoreFailed && (text.ends_with(FOREIGN) || text.ends_with("(WRONGTYPE)"))
}

/// Whether a node of a Cluster answered for a slot that no node serves: in place of the one that does not answer.
pub(crate) fn is_unserved(error: &Error) -> bool {
    error.kind() == ErrorKind::StoreFailed && error.to_string().ends_with("(CLUSTERDOWN)")
}

/// Whether a node of a Cluster named another one, which could not be reached.
#[cfg(feature = "cluster")]
pub(crate) fn is_redirect(error: &Error) -> bool {
    let text = error.to_string();
    error.kind() == ErrorKind::StoreFailed && (text.ends_with("(MOVED)") || text.ends_with("(ASK)"))
}

/// Whether the Redis user lacks a permission. [`explain`] then says what returns them.
pub(crate) fn missing_permission(error: &Error) -> bool {
    error.to_string().contains("acl_rule")
}

/// The error of one decision in a batch, which the script caught.
pub(crate) fn decision_error(text: &str) -> Error {
    Error::new(ErrorKind::StoreFailed, format!("the command failed in Redis: {}", explain(text)))
}

/// The error of a command.
pub(crate) fn from_redis(error: &RedisError) -> Error {
    let kind = if error.is_timeout() {
        ErrorKind::StoreTimeout
    } else if is_server_error(error) {
        // Checked before `is_broken`, because redis-rs reconnects on some of these.
        ErrorKind::StoreFailed
    } else if is_broken(error) {
        ErrorKind::StoreDisconnected
    } else if matches!(error.kind(), redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType) {
        ErrorKind::StoreReply
    } else {
        ErrorKind::StoreFailed
    };
    let problem = match kind {
        ErrorKind::StoreTimeout => "Redis did not answer in time",
        ErrorKind::StoreDisconnected => "the connection to Redis broke",
        ErrorKind::StoreReply => "the reply of Redis is invalid",
        _ => "the command failed in Redis",
    };
    with_source(Error::new(kind, format!("{problem}: {}", describe(error))), error)
}

/// The error if a pool cannot make a connection.
pub(crate) fn not_connected(error: &RedisError) -> Error {
    if is_server_error(error) {
        return from_redis(error);
    }
    let message = format!("cannot connect to Redis: {}", describe(error));
    with_source(Error::new(ErrorKind::StoreUnreachable, message), error)
}

/// The error if no connection can be made to `address`, which must not contain a password.
pub(crate) fn unreachable(address: &str, error: &RedisError) -> Error {
    let remedy = match io_kind(error) {
        Some(std::io::ErrorKind::TimedOut) => {
            "check the address, firewalls, and whether the server expects TLS: write rediss:// if it does, and write \
             redis:// if it does not"
        }
        Some(std::io::ErrorKind::ConnectionReset) => {
            "check whether the server expects TLS: write rediss:// if it does, with a certificate from \
             RedisStoreBuilder::tls_client_certificate if it requires one, and write redis:// if it does not"
        }
        _ => "check the URL and that the server is running",
    };
    let message = format!("cannot connect to Redis{address}: {}; {remedy}", describe(error));
    with_source(Error::new(ErrorKind::StoreUnreachable, message), error)
}

/// Explains an error of rustls.
fn explain_tls(text: &str) -> Option<&'static str> {
    let known = [
        (
            "UnknownIssuer",
            "the server's certificate is from an unknown authority: pass the authority's certificate to \
             RedisStoreBuilder::tls_ca_certificate, or install it in the system",
        ),
        (
            // An authority of the same name with another key.
            "BadSignature",
            "the server's certificate is not from the authority of RedisStoreBuilder::tls_ca_certificate: pass the \
             certificate of the authority that signed it",
        ),
        (
            "not valid for name",
            "the server's certificate is for another host: use a host that the certificate names in the URL",
        ),
        (
            "NotValidForName",
            "the server's certificate is for another host: use a host that the certificate names",
        ),
        ("xpired", "the server's certificate has expired: renew it, and check the clocks"),
        ("NotValidYet", "the server's certificate is not valid yet: check the clocks"),
        (
            "CaUsedAsEndEntity",
            "the server's certificate is that of an authority: sign one for the server with it",
        ),
        (
            "CertificateRequired",
            "the server requires a client certificate: pass one to RedisStoreBuilder::tls_client_certificate",
        ),
        (
            "fatal alert",
            "the server ended the TLS handshake: does it trust the authority of the client certificate, which \
             RedisStoreBuilder::tls_client_certificate sets?",
        ),
        ("InvalidContentType", "the server does not expect TLS: write redis:// instead of rediss://"),
        (
            "invalid peer certificate",
            "the server's certificate is invalid: see RedisStoreBuilder::tls_ca_certificate",
        ),
    ];
    known.iter().find(|(part, _)| text.contains(part)).map(|(_, explanation)| *explanation)
}

/// Adds a source only if it is an error of the operating system, whose text is safe.
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

fn is_server_error(error: &RedisError) -> bool {
    matches!(error.kind(), redis::ErrorKind::Server(_) | redis::ErrorKind::Extension)
}

pub(crate) fn is_broken(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || error.is_io_error()
}

/// Describes the error without any text that the server chose.
fn describe(error: &RedisError) -> String {
    if is_server_error(error) {
        let (code, detail) = (error.code().unwrap_or_default(), error.detail().unwrap_or_default());
        return explain(&format!("{code} {detail}"));
    }
    match error.kind() {
        redis::ErrorKind::Io => match (error.detail(), io_kind(error)) {
            // All nodes of a Cluster failed: the text quotes their errors, including servers' texts.
            (Some(quoted), _) => explain_quoted(quoted),
            (None, Some(kind @ (std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::TimedOut))) => {
                std::io::Error::from(kind).to_string()
            }
            // A text of the operating system or the TLS library, such as an unknown host.
            (None, _) => {
                let text = error.to_string();
                explain_tls(&text).map_or(text, ToOwned::to_owned)
            }
        },
        redis::ErrorKind::AuthenticationFailed => {
            let detail = error.detail().unwrap_or_default();
            match code(detail) {
                // redis-rs does not say which of the two it is.
                Some("ERR") | None => {
                    "the server does not accept this user and password: correct them in the URL, or remove them if the \
                     server has no password"
                        .into()
                }
                Some(_) => explain(detail),
            }
        }
        redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType => {
            "it does not answer as Redis does: is it a Redis server?".into()
        }
        redis::ErrorKind::MasterNameNotFoundBySentinel => {
            "the sentinels know no primary of this name that is up: check that it is the name in `sentinel monitor`"
                .into()
        }
        redis::ErrorKind::InvalidClientConfig if error.to_string().contains("does not point to a sentinel") => {
            "the server is not a sentinel: use RedisStore::connect".into()
        }
        redis::ErrorKind::InvalidClientConfig => "the client is not configured for this".into(),
        _ => error.category().to_owned(),
    }
}

/// Explains a text in which redis-rs quotes errors of the operating system and of servers.
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
    let system_errors =
        ["Connection refused", "Connection reset", "No route to host", "Network is unreachable"];
    match system_errors.iter().find(|text| quoted.contains(*text)) {
        Some(text) => format!("no node can be reached: {text}"),
        None => "no node can be reached".into(),
    }
}

/// Whether the server is a replica, such as a demoted primary.
pub(crate) fn is_read_only(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::ReadOnly)
        || is_server_error(error) && code(error.detail().unwrap_or_default()) == Some("READONLY")
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
            ("a place without a line", "@user_script: x: READONLY", None),
            ("a word in the middle", "the user said READONLY", None),
            ("nothing", "", None),
        ];
        for (name, text, expected) in rows {
            assert_eq!(code(text), expected, "{name}");
        }
    }

    #[test]
    fn what_a_server_quotes_is_not_shown() {
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
            let explanation = explain(text);
            assert!(!explanation.to_lowercase().contains("hunter2"), "{text}: {explanation}");
            assert!(explanation.len() > 10, "{text}: {explanation}");
        }
        assert!(explain(rows[1]).ends_with("EVALSHA"), "{}", explain(rows[1]));
        assert!(explain(rows[5]).contains("EVALSHA"), "{}", explain(rows[5]));
    }

    #[test]
    fn only_known_words_of_a_quoted_error_are_shown() {
        let rows = [
            ("[] Connection refused (os error 111)", "Connection refused"),
            (
                "upstream: Connection refused (os error 111) while sending HELLO 3 AUTH hunter2",
                "Connection refused",
            ),
            ("Password authentication failed - AuthenticationFailed: hunter2", "user and password"),
            ("NOAUTH: hunter2", "requires a password"),
            ("hunter2", "no node can be reached"),
        ];
        for (quoted, part) in rows {
            let explanation = explain_quoted(quoted);
            assert!(
                explanation.contains(part) && !explanation.contains("hunter2"),
                "{quoted}: {explanation}"
            );
        }
    }

    #[test]
    fn an_error_in_an_algorithm_is_shown() {
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
