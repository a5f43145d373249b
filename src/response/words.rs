//! A wait as a human reads it.

use std::fmt;

const UNITS: [(&str, u64); 4] = [("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)];

/// Whole seconds in their two largest units, rounded up: `3 days 21 hours`.
#[derive(Clone, Copy, Debug)]
pub(super) struct InWords(pub(super) u64);

impl fmt::Display for InWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let largest = UNITS.iter().position(|(_, unit)| self.0 >= *unit).unwrap_or(UNITS.len() - 1);
        // To multiples of the second unit: 23:59:59 hours become a day.
        let smallest = UNITS[(largest + 1).min(UNITS.len() - 1)].1;
        let mut rest = self.0.div_ceil(smallest).saturating_mul(smallest);
        let mut is_first = true;
        for (name, unit) in UNITS {
            let count = rest / unit;
            rest %= unit;
            if count > 0 {
                let (space, plural) = (if is_first { "" } else { " " }, if count == 1 { "" } else { "s" });
                write!(f, "{space}{count} {name}{plural}")?;
                is_first = false;
            }
        }
        Ok(())
    }
}
