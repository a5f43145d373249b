//! Why a command failed.

use std::{fmt, process::ExitCode};

use tower_ratelimit::{Error, ErrorKind};

/// A command that was not carried out.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The options, the policies, the URL or the key are invalid.
    Usage(String),
    /// Redis did not do it.
    Redis(String),
}

impl Failure {
    /// A change that failed.
    pub(crate) fn of_change(error: Error) -> Self {
        let may_be_made = error.kind().may_have_charged();
        match Self::from(error) {
            Self::Redis(message) if may_be_made => {
                Self::Redis(format!("{message}; the change may have been made"))
            }
            failure => failure,
        }
    }

    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Redis(_) => ExitCode::from(1),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidConfig | ErrorKind::InvalidIdentity => Self::Usage(text_of(&error)),
            _ => Self::Redis(text_of(&error)),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) | Self::Redis(message) => f.write_str(message),
        }
    }
}

/// The text of `error`, with the options of this command in the place of the functions of the crate.
pub(crate) fn text_of(error: &Error) -> String {
    in_options(&error.to_string())
}

/// `text` with the options of this command in the place of the functions of the crate.
pub(crate) fn in_options(text: &str) -> String {
    let text = without_passwords(text);
    OPTIONS.iter().fold(text, |text, (function, option)| text.replace(function, option))
}

/// The longer ones first.
const OPTIONS: [(&str, &str); 13] = [
    (
        "grant what RedisStore::acl_rule returns for this store's prefix",
        "grant what `ratelimit-admin acl` prints, or correct --prefix",
    ),
    ("what RedisStore::acl_rule returns", "what `ratelimit-admin acl` prints"),
    ("Servers::cluster and the feature `cluster`", "--cluster"),
    ("Servers::sentinel and the feature `sentinel`", "--sentinel"),
    ("Servers::sentinel_credentials", "the variable SENTINEL_PASSWORD, and --sentinel-user"),
    ("Servers::cluster", "--cluster"),
    ("Servers::sentinel", "--sentinel"),
    (": use RedisStore::connect", ": leave out --cluster and --sentinel"),
    ("RedisStoreBuilder::tls_ca_certificate", "--ca"),
    ("RedisStoreBuilder::tls_client_certificate", "--client-certificate"),
    ("RedisStoreBuilder::deadline", "--deadline"),
    ("the store's deadline", "--deadline"),
    ("RedisStoreBuilder::prefix", "--prefix"),
];

/// `text` without the user and the password of any URL in it. A URL in the wrong place is quoted by an error.
/// A password may have any character that the shell passes on, so all before the last `@` of the line is left
/// out.
pub(crate) fn without_passwords(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        shown.push_str(before);
        shown.push_str("://");
        let end = after.find('\n').unwrap_or(after.len());
        rest = match after[..end].rfind('@') {
            Some(at) => {
                shown.push_str("..");
                &after[at..]
            }
            None => after,
        };
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_change_may_have_been_made() {
        let rows = [
            (ErrorKind::StoreTimeout, "late", "late; the change may have been made", 1),
            (ErrorKind::StoreDisconnected, "late", "late; the change may have been made", 1),
            (ErrorKind::StoreUnreachable, "late", "late", 1),
            (ErrorKind::InvalidConfig, "late", "late", 2),
        ];
        for (kind, read, change, code) in rows {
            let (read_failed, change_failed) =
                (Failure::from(Error::new(kind, "late")), Failure::of_change(Error::new(kind, "late")));
            assert_eq!((read_failed.to_string(), change_failed.to_string()), (read.into(), change.into()));
            for failure in [read_failed, change_failed] {
                assert_eq!(failure.code(), ExitCode::from(code), "{failure}");
            }
        }
    }

    #[test]
    fn a_password_may_have_any_character() {
        for password in ["hunter2", "it's-hunter2", "a@hunter2", "hunter2 hunter2", "http://hunter2"] {
            let text =
                format!("error: unexpected argument 'redis://user:{password}@host:1' found\n\nUsage: a b\n");
            let shown = without_passwords(&text);
            assert!(!shown.contains("hunter2") && !shown.contains("user"), "{shown}");
            assert!(shown.ends_with("@host:1' found\n\nUsage: a b\n"), "{shown}");
        }
    }
}
