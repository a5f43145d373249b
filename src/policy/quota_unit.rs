//! [`QuotaUnit`]: what a unit of a quota is.

use std::{fmt, str::FromStr};

use crate::base::Error;

/// What a unit of a policy's quota is, as the header `RateLimit-Policy` reports it: the units that the
/// standard registers. It does not change what is charged. For others, such as tokens, see
/// [`Rule::unit`](crate::Rule::unit).
///
/// Parsed from and printed as `requests` or `content-bytes`, the quota units of the header; with the feature
/// `serde`, also in configuration files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QuotaUnit {
    /// Requests, the default. The header leaves it out.
    #[default]
    Requests,
    /// Bytes of the content of requests or responses.
    ContentBytes,
}

impl QuotaUnit {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::ContentBytes => "content-bytes",
        }
    }
}

impl fmt::Display for QuotaUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Reads `requests` or `content-bytes`, in upper or lower case.
///
/// # Errors
///
/// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for any other text.
impl FromStr for QuotaUnit {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let is_named = |unit: &Self| unit.as_str().eq_ignore_ascii_case(text.trim());
        let unknown = || invalid!("invalid quota unit `{text}`: write `requests` or `content-bytes`");
        [Self::Requests, Self::ContentBytes].into_iter().find(is_named).ok_or_else(unknown)
    }
}

#[cfg(feature = "serde")]
crate::base::from_text! { QuotaUnit => "\"requests\" or \"content-bytes\"" }
#[cfg(feature = "serde")]
crate::base::to_text!(QuotaUnit);
