//! A wait as a human reads it.

/// The singular, the plural and the seconds of each unit.
const UNITS: [(&str, &str, u64); 4] = [
    (" day", " days", 86_400),
    (" hour", " hours", 3_600),
    (" minute", " minutes", 60),
    (" second", " seconds", 1),
];

/// Appends whole seconds in their two largest units, rounded up: `3 days 21 hours`. Without the formatting
/// machinery, because every denial has one.
pub(super) fn push_wait(text: &mut String, seconds: u64) {
    let largest = UNITS.iter().position(|(_, _, unit)| seconds >= *unit).unwrap_or(UNITS.len() - 1);
    // To multiples of the second unit: 23:59:59 hours become a day.
    let smallest = UNITS[(largest + 1).min(UNITS.len() - 1)].2;
    let mut rest = seconds.div_ceil(smallest).saturating_mul(smallest);
    let mut space = "";
    for (one, several, unit) in UNITS {
        let count = rest / unit;
        if count > 0 {
            for part in [space, itoa::Buffer::new().format(count), if count == 1 { one } else { several }] {
                text.push_str(part);
            }
            (rest, space) = (rest % unit, " ");
        }
    }
}
