//! Windows of the calendar: days, weeks, months, quarters and years, in UTC, at an offset from it, or in a
//! time zone. They are contiguous: each one ends where the next one starts.
//!
//! [`civil`] has the arithmetic of dates, [`zone`] when a date begins.

mod civil;
mod zone;

use std::cell::Cell;

use self::civil::Date;
pub use self::civil::Weekday;
#[cfg(feature = "time-zones")]
pub(super) use self::zone::NamedZone;
pub(super) use self::zone::Zone;

/// Which windows a calendar has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calendar {
    pub(super) unit: Unit,
    /// The day on which a week starts.
    pub(super) from_weekday: Weekday,
    /// The day of the month on which a month, a quarter or a year starts, from 1 to 31. In a shorter month
    /// it is the last one.
    pub(super) from_day: u8,
    /// The month in which a year or a quarter starts, from 1 to 12.
    pub(super) from_month: u8,
    pub(super) zone: Zone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Day,
    Week,
    Month,
    Quarter,
    Year,
}

const UNITS: [Unit; 5] = [Unit::Day, Unit::Week, Unit::Month, Unit::Quarter, Unit::Year];

/// The window of a moment and its neighbors, in microseconds since 1970. A start before 1970 is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    /// When the window before it starts.
    pub(crate) before: u64,
    pub(crate) starts: u64,
    pub(crate) ends: u64,
    /// When the window after it ends.
    pub(crate) after: u64,
}

const DAY: i64 = 86_400_000_000;
/// Of the parts of a calendar's number: the unit, the weekday, the day, the month; then the zone has these
/// bits.
const RADIX: [u64; 4] = [8, 8, 32, 16];
const ZONE_BITS: u32 = 37;

impl Calendar {
    /// A number that two calendars share if they have the same windows, below 2^52. Calendars in different
    /// time zones share one by chance, one pair in 2^37.
    pub(super) fn number(&self) -> u64 {
        let zone = self.zone.hash() % (1 << ZONE_BITS);
        let parts =
            [self.unit as u64, self.from_weekday as u64, self.from_day.into(), self.from_month.into()];
        let first = parts.iter().zip(RADIX).fold(0, |number, (part, radix)| number * radix + part);
        first << ZONE_BITS | zone
    }

    /// The calendar with this [number](Self::number), which has only a hash of its zone.
    pub(super) fn of_number(number: u64, zone: Zone) -> Self {
        let mut parts = [0; 4];
        let mut rest = number >> ZONE_BITS;
        for (part, radix) in parts.iter_mut().zip(RADIX).rev() {
            (*part, rest) = (rest % radix, rest / radix);
        }
        let [unit, from_weekday, from_day, from_month] = parts;
        Self {
            unit: UNITS[unit as usize % UNITS.len()],
            from_weekday: Weekday::from_number(from_weekday),
            from_day: from_day as u8,
            from_month: from_month as u8,
            zone,
        }
    }

    /// The most microseconds that a window has.
    pub(super) fn longest(&self) -> u64 {
        // A change of the zone's offset can make it longer by a day.
        let days = 1 + match self.unit {
            Unit::Day => 1,
            Unit::Week => 7,
            Unit::Month => 31,
            Unit::Quarter => 92,
            Unit::Year => 366,
        };
        days * DAY.cast_unsigned()
    }

    /// When the window of `now` starts and ends.
    pub(super) fn window(&self, now: u64) -> [u64; 2] {
        let Windows { starts, ends, .. } = self.windows(now);
        [starts, ends]
    }

    /// When these windows start, in their order: the one of `now`, the ones beside it, and `further` more on each
    /// side; and when the last one ends.
    #[cfg(feature = "redis")]
    pub(crate) fn starts(&self, now: u64, further: u64) -> Vec<u64> {
        let Windows { before, starts, ends, after } = self.windows(now);
        let (mut first, mut last) = (vec![before], vec![starts, ends, after]);
        for _ in 0..further {
            first.extend(first.last().map(|starts| self.window(starts.saturating_sub(1))[0]));
            last.extend(last.last().map(|starts| self.window(*starts)[1]));
        }
        first.reverse();
        [first, last].concat()
    }

    /// The windows around `now`.
    pub(crate) fn windows(&self, now: u64) -> Windows {
        thread_local! {
            /// The windows that were found last, which most decisions need.
            static FOUND: Cell<Option<(Calendar, Windows)>> = const { Cell::new(None) };
        }
        match FOUND.get() {
            Some((calendar, windows))
                if calendar == *self && (windows.starts..windows.ends).contains(&now) =>
            {
                windows
            }
            _ => {
                let windows = self.find(now);
                FOUND.set(Some((*self, windows)));
                windows
            }
        }
    }

    fn find(&self, now: u64) -> Windows {
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let mut number = self.number_at(Date::of_days(self.zone.local(now).div_euclid(DAY)));
        // Where the clock is set back over midnight, the date of `now` is of a window that has ended. Where a
        // day does not exist, its window is empty.
        while self.start(number) > now {
            number -= 1;
        }
        while self.start(number + 1) <= now {
            number += 1;
        }
        let (starts, ends) = (self.start(number), self.start(number + 1));
        let (mut before, mut after) = (number - 1, number + 2);
        while self.start(before) == starts {
            before -= 1;
        }
        while self.start(after) == ends {
            after += 1;
        }
        let [before, starts, ends, after] =
            [self.start(before), starts, ends, self.start(after)].map(|start| start.max(0).cast_unsigned());
        Windows { before, starts, ends, after }
    }

    /// The number of the window in which `date` is.
    fn number_at(&self, date: Date) -> i64 {
        let month = || date.month_number() - i64::from(date.day < self.day_in(date.month_number()));
        match self.unit {
            Unit::Day => date.days(),
            Unit::Week => (date.days() - self.first_weekday()).div_euclid(7),
            Unit::Month => month(),
            Unit::Quarter => (month() - self.first_month()).div_euclid(3),
            Unit::Year => (month() - self.first_month()).div_euclid(12),
        }
    }

    /// When the window of this number starts.
    fn start(&self, number: i64) -> i64 {
        let month = match self.unit {
            Unit::Day => return self.zone.start_of(Date::of_days(number)),
            Unit::Week => return self.zone.start_of(Date::of_days(number * 7 + self.first_weekday())),
            Unit::Month => number,
            Unit::Quarter => number * 3 + self.first_month(),
            Unit::Year => number * 12 + self.first_month(),
        };
        self.zone.start_of(Date::of_month(month, self.day_in(month)))
    }

    /// The days from 1970-01-01, a Thursday, to the first start of a week.
    fn first_weekday(&self) -> i64 {
        4 + self.from_weekday as i64
    }

    fn first_month(&self) -> i64 {
        i64::from(self.from_month) - 1
    }

    /// The day on which a window starts in the month of this number.
    fn day_in(&self, month: i64) -> u8 {
        self.from_day.min(civil::days_in(month))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UTC: Calendar = Calendar {
        unit: Unit::Month,
        from_weekday: Weekday::Monday,
        from_day: 1,
        from_month: 1,
        zone: Zone::UTC,
    };

    #[test]
    fn each_window_ends_where_the_next_one_starts() {
        for unit in UNITS {
            for from_day in [1, 15, 29, 31] {
                let calendar = Calendar { unit, from_day, from_month: 4, ..UTC };
                let mut now = 800 * DAY.cast_unsigned();
                for _ in 0..100 {
                    let Windows { before, starts, ends, after } = calendar.windows(now);
                    let is_around = before < starts && starts <= now && now < ends && ends < after;
                    assert!(is_around, "{calendar:?} {now}");
                    let next = calendar.windows(ends);
                    assert_eq!((next.before, next.starts, next.ends), (starts, ends, after));
                    assert_eq!(calendar.window(ends - 1), [starts, ends]);
                    assert!(ends - starts <= calendar.longest());
                    now = ends;
                }
            }
        }
    }

    #[test]
    fn a_calendar_has_another_number_if_any_part_differs() {
        let others = [
            Calendar { unit: Unit::Week, ..UTC },
            Calendar { from_weekday: Weekday::Sunday, ..UTC },
            Calendar { from_day: 2, ..UTC },
            Calendar { from_month: 2, ..UTC },
            Calendar { zone: Zone::Offset(1), ..UTC },
        ];
        for other in others {
            assert_ne!(other.number(), UTC.number(), "{other:?}");
            assert!(other.number() < 1 << 52);
            assert_eq!(Calendar::of_number(other.number(), other.zone), other);
        }
    }
}
