//! Keys that are read from their stored form.

use std::sync::OnceLock;

use sha2::{Digest as _, Sha256};

use super::{
    Key,
    secret::Secret,
    text::{
        EMPTY, FIRST, OPEN, PREFLIGHT, decode, encode_around_percent, is_hash, parts, push_hex, split_marks,
    },
};
use crate::base::{Error, ErrorKind};

/// One for the process, because the log has no settings.
static DIGEST_SECRET: OnceLock<Secret> = OnceLock::new();

/// Brackets can be nested this deep. No stored join is longer than 96 bytes, so deeper ones are hashed.
const MAX_DEPTH: usize = 24;

impl Key {
    /// The key with the stored form `text`: the inverse of [`as_str`](Self::as_str), for a key that an
    /// operator types or that was read in Redis. If the operator may also type an identity as a client sends
    /// it, use [`KeyExtractor::keys_of_text`](crate::KeyExtractor::keys_of_text).
    ///
    /// See [the forms of a stored key](crate::key#the-stored-form). Characters that these forms encode may
    /// also stand for themselves, so an identity without `%` can be written as it is. For `%` itself, write
    /// `%25`.
    ///
    /// # Errors
    ///
    /// [`InvalidIdentity`](ErrorKind::InvalidIdentity) if `text` is not a stored form: after a `%` there is
    /// neither a byte in hex nor a known mark, brackets do not match, or a hash is incomplete.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::Key;
    ///
    /// # fn main() -> Result<(), tower_ratelimit::Error> {
    /// let key = Key::from(("acme", "José"));
    /// assert_eq!(key.as_str(), "%(acme%|Jos%C3%A9%)");
    /// assert_eq!(Key::from_stored(key.as_str())?, key);
    /// assert_eq!(Key::from_stored("%(acme%|José%)")?, key);
    ///
    /// assert_eq!(Key::from_stored("alice")?, Key::new("alice"));
    /// assert_eq!(Key::from_stored("100%25")?, Key::new("100%"));
    /// let error = Key::from_stored("100%").unwrap_err();
    /// assert!(error.to_string().ends_with("write `%25` for a percent sign"), "{error}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_stored(text: &str) -> Result<Self, Error> {
        read(&encode_around_percent(text), 0)
    }

    /// Whether only an extractor or a layer can have made this key, because its text has a mark or is a hash.
    /// No client sends such an identity.
    pub(super) fn is_made(&self) -> bool {
        self.is_final() || self.as_str().starts_with(PREFLIGHT)
    }

    /// 64 bits of the SHA-256 of the [stored form](Self::as_str), as 16 hex digits: the `key_hash` of log
    /// lines, of [`DecisionEvent::key_hash`](crate::layer::DecisionEvent::key_hash) and in the output of
    /// `ratelimit-admin`.
    ///
    /// Use it in logs, which must not show a key. It is not a secret: if an identity has few possible values,
    /// such as an IPv4 address, it can be found from the digest by trying all of them, unless you set a
    /// [secret](Self::set_digest_secret).
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::Key;
    ///
    /// assert_eq!(Key::new("alice").digest(), "2bd806c97f0e00af");
    /// ```
    #[must_use]
    pub fn digest(&self) -> String {
        let mut digest = String::with_capacity(16);
        match DIGEST_SECRET.get() {
            Some(secret) => push_hex(&mut digest, &secret.mac(self.as_str())[..8]),
            None => push_hex(&mut digest, &Sha256::digest(self.as_bytes())[..8]),
        }
        digest
    }

    /// Makes all [digests](Self::digest) of this process HMAC-SHA256 with `secret`. Without the secret, no
    /// identity can be found from a log, a trace or a threshold's event. Spans then have the attribute
    /// `ratelimit.key_hash`.
    ///
    /// Call it when the program starts, with the same secret of 16 bytes or more on all instances, so that
    /// their digests are equal. `ratelimit-admin` reads it from the variable `RATELIMIT_DIGEST_SECRET`.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) if the secret is shorter, or another one is set already.
    ///
    /// # Example
    ///
    /// ```standalone_crate
    /// use tower_ratelimit::Key;
    ///
    /// # fn main() -> Result<(), tower_ratelimit::Error> {
    /// let secret = "32 random bytes from the config.";
    /// Key::set_digest_secret(secret)?;
    /// assert_eq!(Key::new("alice").digest(), "fbbc5e01f063e143");
    ///
    /// Key::set_digest_secret(secret)?;
    /// assert!(Key::set_digest_secret("another one, of 32 random bytes.").is_err());
    /// assert!(Key::set_digest_secret("short").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_digest_secret(secret: impl AsRef<[u8]>) -> Result<(), Error> {
        let secret = Secret::new(secret.as_ref())?;
        let set = DIGEST_SECRET.get_or_init(|| secret.clone());
        ensure!(
            *set == secret,
            "another secret of digests is set already: set it once, when the program starts"
        );
        Ok(())
    }

    /// The digest, if it discloses nothing.
    #[cfg(feature = "tracing")]
    pub(crate) fn secret_digest(&self) -> Option<String> {
        DIGEST_SECRET.get().map(|_| self.digest())
    }
}

fn read(text: &str, depth: usize) -> Result<Key, Error> {
    let (marks, text) = split_marks(text);
    let mut key = read_unmarked(text, depth)?;
    // The innermost mark was added first.
    let mut rest = marks;
    while let Some((outer, mark)) = rest.len().checked_sub(FIRST.len()).map(|at| rest.split_at(at)) {
        key = key.marked(mark);
        rest = outer;
    }
    Ok(key)
}

fn read_unmarked(text: &str, depth: usize) -> Result<Key, Error> {
    if is_hash(text) {
        return Ok(Key::of_text(text));
    }
    if text.starts_with(OPEN) {
        let parts = parts(text).filter(|_| depth < MAX_DEPTH).ok_or_else(|| {
            invalid("its parts cannot be told apart: write `%(` before them, `%|` between them and `%)` after them")
        })?;
        let parts = parts.into_iter().map(|part| read(part, depth + 1)).collect::<Result<Vec<_>, _>>()?;
        return Ok(Key::join(&parts));
    }
    if text.is_empty() {
        return Err(invalid("it is empty: write `%` for the empty identity"));
    }
    if text == EMPTY {
        return Ok(Key::new(""));
    }
    let is_byte = |after: &[u8]| matches!(after, [high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit());
    if text.bytes().enumerate().any(|(at, byte)| byte == b'%' && !is_byte(&text.as_bytes()[at + 1..])) {
        return Err(invalid(
            "a `%` in it begins neither a byte in hex, nor a mark, nor a whole hash: write `%25` for a percent sign",
        ));
    }
    Ok(Key::of_bytes(&decode(text.as_bytes())))
}

fn invalid(problem: &str) -> Error {
    Error::new(ErrorKind::InvalidIdentity, format!("the text is not a stored key: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Secret;

    #[test]
    fn every_stored_form_is_read_again() {
        let secret = Secret::new(&[7; 32]).unwrap();
        let plain = ["", "alice", "a b", "100%", "{x}", "%(a%|b%)", "José", "\u{1f}", &"x".repeat(200)];
        let mut keys: Vec<Key> = plain.iter().map(Key::new).collect();
        keys.push(Key::new(b"\xff\0"));
        let singles = keys.clone();
        for key in &singles {
            keys.extend([
                key.with_hash(&secret),
                key.of_second(),
                key.of_second().of_first(),
                key.of_preflight(),
                key.of_preflight().of_preflight(),
            ]);
            keys.push(Key::join([key, &singles[1]]));
            keys.push(Key::join([&Key::join([key, &singles[2]]), &key.of_second()]));
            keys.push(Key::join([key]).of_second());
        }
        keys.push(Key::join([]));
        for key in keys {
            let read = Key::from_stored(key.as_str()).unwrap();
            assert_eq!(read.as_str(), key.as_str());
            assert_eq!(read.identity(), key.stored().identity());
        }
    }

    #[test]
    fn what_is_encoded_may_be_written_as_it_is() {
        let long = "é".repeat(100);
        let rows = [
            ("José Ortega", Key::new("José Ortega")),
            ("a{b}", Key::new("a{b}")),
            ("jos%c3%a9", Key::new("josé")),
            ("%>a b", Key::new("a b").of_second()),
            ("%(José%|{x}%)", Key::from(("José", "{x}"))),
            (&long, Key::new(&long)),
            (&format!("%>{}", "x".repeat(95)), Key::new("x".repeat(95)).of_second()),
        ];
        for (text, key) in rows {
            assert_eq!(Key::from_stored(text).unwrap(), key, "{text}");
        }
    }

    #[test]
    fn a_text_that_is_not_a_stored_form_is_an_error_that_does_not_show_it() {
        let nested = |depth: usize| "%(".repeat(depth) + "secret" + &"%)".repeat(depth);
        let texts = [
            "secret%",
            "secret%4",
            "secret%zz",
            "%secret",
            "%(secret",
            "%(secret%)x",
            "secret%)",
            "%#secret",
            "%*a6949588618bfddffa881161bfd2fd6",
            "%+A6949588618BFDDFFA881161BFD2FD6D",
            &nested(MAX_DEPTH + 1),
            &nested(100_000),
        ];
        for text in texts {
            let error = Key::from_stored(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidIdentity, "{text}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert!(Key::from_stored(&nested(MAX_DEPTH)).is_ok());
        // The empty identity of the second extractor.
        assert_eq!(Key::from_stored("%>%").unwrap(), Key::new("").of_second());
    }
}
