//! Moments.

use std::time::{Duration, UNIX_EPOCH};

/// A moment as text, in UTC, from seconds since 1970.
pub(crate) fn time(seconds: f64) -> String {
    let since = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    // Later than any text can state.
    let moment =
        UNIX_EPOCH.checked_add(since.min(Duration::from_secs(253_402_300_799))).unwrap_or(UNIX_EPOCH);
    humantime::format_rfc3339_seconds(moment).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_in_utc() {
        for (seconds, text) in [
            (0.0, "1970-01-01T00:00:00Z"),
            (1_764_283_200.9, "2025-11-27T22:40:00Z"),
            (f64::MAX, "1970-01-01T00:00:00Z"),
            (1e18, "9999-12-31T23:59:59Z"),
            (-1.0, "1970-01-01T00:00:00Z"),
        ] {
            assert_eq!(time(seconds), text);
        }
    }
}
