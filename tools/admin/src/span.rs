//! Times.

use std::time::Duration;

/// A time such as `1h 12m`, as explanations print it, but in whole seconds. Rounded up.
pub(crate) fn span(time: Duration) -> String {
    let mut rest = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    if rest == 0 {
        return "0s".to_owned();
    }
    let mut parts = Vec::new();
    for (seconds, unit) in [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")] {
        if rest >= seconds {
            parts.push(format!("{}{unit}", rest / seconds));
            rest %= seconds;
        }
    }
    parts.join(" ")
}

/// [`span`] of a number of seconds.
pub(crate) fn seconds(seconds: f64) -> String {
    span(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_rounded_up_to_seconds() {
        let rows = [
            (0, "0s"),
            (1, "1s"),
            (59_999_999_999, "1m"),
            (4_320_000_000_000, "1h 12m"),
            (90_061_000_000_001, "1d 1h 1m 2s"),
            (86_400_000_000_000, "1d"),
        ];
        for (nanos, expected) in rows {
            assert_eq!(span(Duration::from_nanos(nanos)), expected);
        }
    }
}
