//! [`Rate`]: a decimal number of dollars for a million tokens, as an integer.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, de::Visitor};
use tower_ratelimit::{Error, ErrorKind};

/// The most digits after the point.
const DIGITS: usize = 6;
const MILLION: u64 = 1_000_000;
/// The most digits before the point, so that no sum overflows.
const MAX_WHOLE: usize = 6;

/// Dollars for a million tokens, in millionths. At most 999,999.999999 dollars.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rate(u64);

impl Rate {
    /// What `tokens` cost, in millionths of a micro-dollar.
    pub(super) fn of(self, tokens: u64) -> u128 {
        u128::from(self.0) * u128::from(tokens)
    }
}

impl FromStr for Rate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parse = || {
            let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
            let number = |digits: &str, most: usize| {
                let is_number =
                    (1..=most).contains(&digits.len()) && digits.bytes().all(|c| c.is_ascii_digit());
                digits.parse().ok().filter(|_: &u64| is_number)
            };
            let scale = (fraction.len()..DIGITS).fold(1, |scale, _| scale * 10);
            Some(number(whole, MAX_WHOLE)? * MILLION + number(fraction, DIGITS)? * scale)
        };
        parse().map(Self).ok_or_else(|| {
            let message = format!(
                "invalid price `{text}`: write dollars for a million tokens as `1.25`, below 1000000 and with at most \
                 {DIGITS} digits after the point"
            );
            Error::new(ErrorKind::InvalidConfig, message)
        })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:06}", self.0 / MILLION, self.0 % MILLION);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// Reads a text or a number. A number has at most twelve digits, and a binary float keeps fifteen, so its
/// shortest text is the one in the file.
impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RateVisitor)
    }
}

struct RateVisitor;

impl Visitor<'_> for RateVisitor {
    type Value = Rate;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("dollars for a million tokens, such as 1.25")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Rate, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Rate, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Rate, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Rate, E> {
        self.visit_str(&number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_read_exactly_from_text_and_from_numbers() {
        let rows = [
            ("0", 0, "0"),
            ("1.25", 1_250_000, "1.25"),
            ("0.000001", 1, "0.000001"),
            ("0.1", 100_000, "0.1"),
            ("2.50", 2_500_000, "2.5"),
            ("999999.999999", 999_999_999_999, "999999.999999"),
        ];
        for (text, units, shown) in rows {
            let rate: Rate = text.parse().unwrap();
            assert_eq!((rate, rate.to_string()), (Rate(units), shown.to_owned()), "{text}");
            assert_eq!(serde_json::from_str::<Rate>(text).unwrap(), rate, "{text}");
            assert_eq!(serde_json::from_str::<Rate>(&format!("\"{text}\"")).unwrap(), rate, "{text}");
        }
    }

    #[test]
    fn what_is_not_such_a_decimal_is_an_error() {
        for text in ["", ".", "1.", ".5", "-1", "+1", "1,25", "1e3", " 1", "0.0000001", "1000000", "NaN", "٣"]
        {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("invalid price `{text}`: ")), "{error}");
        }
        for number in ["-1", "1e-7", "1e6", "true", "null", "18446744073709551615"] {
            assert!(serde_json::from_str::<Rate>(number).is_err(), "{number}");
        }
    }
}
