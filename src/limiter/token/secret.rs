//! [`SettlementSecret`]: seals tokens, and opens them.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use chacha20poly1305::{
    KeyInit as _, XChaCha20Poly1305, XNonce,
    aead::{Aead as _, Generate as _, Payload},
};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use super::form::Token;
use crate::base::{Error, ErrorKind, valid};

/// The shortest secret in bytes.
const SHORTEST: usize = 32;
/// Before the sealed bytes in base64: the version of the format.
const VERSION: &str = "v1.";
const SECRET_ID: usize = 4;
const NONCE: usize = 24;
/// The bytes before the sealed ones: the secret's id, the number of sealed bytes, and the nonce.
const HEAD: usize = SECRET_ID + 2 + NONCE;
/// More characters than any token has.
const LONGEST: usize = 24 * 1024;

/// The secret that seals the [tokens](crate::settlement) of a service, so only its processes can read or make them.
///
/// Use 32 random bytes from the configuration, the same in each process. To rotate it, give all processes the
/// new secret as a [previous](Self::and_previous) one first, then make it the current one and the old one a
/// previous one, and remove the old one when its last token has expired.
///
/// # Example
///
/// ```
/// use tower_ratelimit::settlement::SettlementSecret;
///
/// # fn main() -> Result<(), tower_ratelimit::Error> {
/// let (old, new) = ([7; 32], [8; 32]);
/// // Seals with the new secret, and opens the tokens of both.
/// let secret = SettlementSecret::new(new).and_previous(old);
/// assert_eq!(format!("{secret:?}"), "SettlementSecret { previous: 1, .. }");
/// assert!(SettlementSecret::try_new("password").is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SettlementSecret {
    current: Sealer,
    previous: Vec<Sealer>,
}

#[derive(Clone)]
struct Sealer {
    /// By which a token names its secret.
    id: [u8; SECRET_ID],
    cipher: XChaCha20Poly1305,
}

/// A token that was opened.
pub(super) struct Opened {
    /// The token's id: the start of the nonce, which is random.
    pub(super) id: [u8; 16],
    pub(super) token: Token,
}

impl SettlementSecret {
    /// A secret of at least 32 bytes, which seals and opens tokens.
    ///
    /// # Panics
    ///
    /// If `secret` is shorter. [`try_new`](Self::try_new) gives an error instead.
    #[must_use]
    #[track_caller]
    pub fn new(secret: impl AsRef<[u8]>) -> Self {
        valid(Self::try_new(secret))
    }

    /// The fallible form of [`new`](Self::new), for a secret read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) if `secret` has less than 32 bytes.
    pub fn try_new(secret: impl AsRef<[u8]>) -> Result<Self, Error> {
        Ok(Self { current: Sealer::new(secret.as_ref())?, previous: Vec::new() })
    }

    /// Also opens tokens that were sealed with `secret`.
    ///
    /// # Panics
    ///
    /// If `secret` has less than 32 bytes. [`try_and_previous`](Self::try_and_previous) gives an error
    /// instead.
    #[must_use]
    #[track_caller]
    pub fn and_previous(self, secret: impl AsRef<[u8]>) -> Self {
        valid(self.try_and_previous(secret))
    }

    /// The fallible form of [`and_previous`](Self::and_previous), for a secret read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) if `secret` has less than 32 bytes.
    pub fn try_and_previous(mut self, secret: impl AsRef<[u8]>) -> Result<Self, Error> {
        self.previous.push(Sealer::new(secret.as_ref())?);
        Ok(self)
    }

    /// The text of a token.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) if the token is too large, and
    /// [`MissingSetup`](ErrorKind::MissingSetup) if the system has no random numbers.
    pub(in crate::limiter) fn seal(&self, token: &Token) -> Result<String, Error> {
        let bytes = token.to_bytes()?;
        let Sealer { id, cipher } = &self.current;
        let no_random =
            |_| Error::new(ErrorKind::MissingSetup, "the system has no random numbers for a token");
        let nonce = XNonce::try_generate().map_err(no_random)?;
        let too_large = || Error::invalid("the token is too long: settle this reservation here");
        // The tag has 16 bytes.
        let length = u16::try_from(bytes.len() + 16).map_err(|_| too_large())?.to_le_bytes();
        let mut all = [&id[..], &length].concat();
        let context = context(&all);
        let sealed =
            cipher.encrypt(&nonce, Payload { msg: &bytes, aad: &context }).map_err(|_| too_large())?;
        all.extend_from_slice(&nonce);
        all.extend(sealed);
        let text = VERSION.to_owned() + &URL_SAFE_NO_PAD.encode(all);
        if text.len() > LONGEST { Err(too_large()) } else { Ok(text) }
    }

    /// The token with this text.
    ///
    /// # Errors
    ///
    /// [`InvalidToken`](ErrorKind::InvalidToken), with the reason.
    pub(super) fn open(&self, text: &str) -> Result<Opened, Error> {
        let invalid = |problem: &'static str| Error::new(ErrorKind::InvalidToken, problem);
        let is_short = text.len() <= LONGEST;
        let Some(sealed) = text.strip_prefix(VERSION).filter(|_| is_short) else {
            return Err(match text.split_once('.') {
                Some((version, _)) if is_short && is_version(version) => {
                    invalid("the settlement token is of another version of tower-ratelimit")
                }
                _ => invalid("the text is not a settlement token"),
            });
        };
        let truncated = || invalid("the settlement token is truncated");
        let all = URL_SAFE_NO_PAD.decode(sealed).map_err(|error| match error {
            base64::DecodeError::InvalidByte(..) => invalid("the text is not a settlement token"),
            _ => truncated(),
        })?;
        let (head, sealed) = all.split_first_chunk::<HEAD>().ok_or_else(truncated)?;
        let (start, nonce) = head.split_at(HEAD - NONCE);
        let (id, length) = start.split_at(SECRET_ID);
        let mut all = [&self.current].into_iter().chain(&self.previous);
        let Some(Sealer { cipher, .. }) = all.find(|sealer| sealer.id == id) else {
            return Err(invalid(
                "the settlement token is sealed with another secret: add that one with `and_previous`",
            ));
        };
        if sealed.len() < usize::from(length[0]) + 256 * usize::from(length[1]) {
            return Err(truncated());
        }
        let changed = || invalid("the settlement token was changed after it was sealed");
        let nonce = XNonce::try_from(nonce).map_err(|_| truncated())?;
        let payload = Payload { msg: sealed, aad: &context(start) };
        let bytes = cipher.decrypt(&nonce, payload).map_err(|_| changed())?;
        let token = Token::of_bytes(&bytes).ok_or_else(changed)?;
        let mut id = [0; 16];
        id.copy_from_slice(&nonce[..16]);
        Ok(Opened { id, token })
    }
}

/// What is sealed with the token and not encrypted: the version, the secret's id and the length.
fn context(start: &[u8]) -> Vec<u8> {
    [VERSION.as_bytes(), start].concat()
}

fn is_version(text: &str) -> bool {
    text.strip_prefix('v').is_some_and(|number| {
        (1..=3).contains(&number.len()) && number.bytes().all(|digit| digit.is_ascii_digit())
    })
}

impl Sealer {
    fn new(secret: &[u8]) -> Result<Self, Error> {
        ensure!(
            secret.len() >= SHORTEST,
            "the secret of settlement tokens must have at least 32 bytes: use 32 random ones"
        );
        // Each use of the secret has a separate key, so neither discloses the other.
        let derived = |usage: &str| {
            let Ok(mac) = <Hmac<Sha256> as hmac::KeyInit>::new_from_slice(secret) else {
                unreachable!("HMAC takes keys of any length");
            };
            mac.chain_update("tower-ratelimit settlement token, ").chain_update(usage).finalize().into_bytes()
        };
        let mut id = [0; SECRET_ID];
        id.copy_from_slice(&derived("id")[..SECRET_ID]);
        let Ok(cipher) = XChaCha20Poly1305::new_from_slice(&derived("key")) else {
            unreachable!("a SHA-256 has the length of a key");
        };
        Ok(Self { id, cipher })
    }
}

/// Shows nothing of the secrets.
impl fmt::Debug for SettlementSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettlementSecret").field("previous", &self.previous.len()).finish_non_exhaustive()
    }
}
