//! Dates of the proleptic Gregorian calendar, as days since 1970-01-01 and as months since January 1970.
//!
//! A year begins in March here, so that the leap day is its last one: the days before a month are then a
//! linear function of its number, and an era of 400 years always has 146,097 days.

use std::str::FromStr;

use crate::base::Error;

/// A day of the week, on which weeks can start: see [`FixedWindow::from_weekday`].
///
/// It parses from the English name in any case, such as `sunday`.
///
/// [`FixedWindow::from_weekday`]: crate::algorithm::FixedWindow::from_weekday
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Weekday {
    #[default]
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

impl Weekday {
    /// The day of this number, from 0 for Monday.
    pub(super) const fn from_number(number: u64) -> Self {
        Self::ALL[number as usize % 7]
    }

    const ALL: [Self; 7] = [
        Self::Monday,
        Self::Tuesday,
        Self::Wednesday,
        Self::Thursday,
        Self::Friday,
        Self::Saturday,
        Self::Sunday,
    ];
}

impl FromStr for Weekday {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let is_it = |day: &Self| format!("{day:?}").eq_ignore_ascii_case(text);
        let unknown = || invalid!("unknown weekday `{text}`: write its English name, such as `monday`");
        Self::ALL.into_iter().find(is_it).ok_or_else(unknown)
    }
}

/// A date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Date {
    pub(super) year: i64,
    /// From 1 to 12.
    pub(super) month: u8,
    /// From 1 to 31.
    pub(super) day: u8,
}

/// The days of 400 years.
const ERA: i64 = 146_097;
/// The days from 0000-03-01 to 1970-01-01.
const EPOCH: i64 = 719_468;

impl Date {
    /// The date that is this number of days after 1970-01-01.
    pub(super) const fn of_days(days: i64) -> Self {
        let days = days + EPOCH;
        let (era, day) = (days.div_euclid(ERA), days.rem_euclid(ERA));
        // Without the leap days before it, each year of the era has 365 days.
        let year = (day - day / 1_460 + day / 36_524 - day / (ERA - 1)) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        // The months from March have 31, 30, 31, 30, 31 days, then again: 153 in five months.
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
        // Both are in the ranges of the fields.
        Self { year: era * 400 + year, month: month as u8, day: day as u8 }
    }

    /// The day `day` of the month that is this number of months after January 1970.
    pub(super) const fn of_month(number: i64, day: u8) -> Self {
        Self { year: 1970 + number.div_euclid(12), month: number.rem_euclid(12) as u8 + 1, day }
    }

    /// The days since 1970-01-01.
    pub(super) const fn days(self) -> i64 {
        let month = self.month as i64;
        let (year, month) = if month > 2 { (self.year, month - 3) } else { (self.year - 1, month + 9) };
        let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
        let day = (153 * month + 2) / 5 + self.day as i64 - 1;
        era * ERA + 365 * year + year / 4 - year / 100 + day - EPOCH
    }

    /// The months since January 1970.
    pub(super) const fn month_number(self) -> i64 {
        (self.year - 1970) * 12 + self.month as i64 - 1
    }
}

/// The days of the month that is this number of months after January 1970.
pub(super) const fn days_in(month: i64) -> u8 {
    // From 28 to 31.
    (Date::of_month(month + 1, 1).days() - Date::of_month(month, 1).days()) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_day_follows_the_one_before() {
        let mut last = Date::of_days(-800_000);
        for days in -799_999..800_000 {
            let date = Date::of_days(days);
            assert_eq!(date.days(), days);
            let is_next = date == Date { day: last.day + 1, ..last }
                || date.day == 1 && date.month_number() == last.month_number() + 1 && last.day >= 28;
            assert!(is_next, "{last:?} {date:?}");
            last = date;
        }
    }

    #[test]
    fn known_dates_have_their_days() {
        for (year, month, day, days) in [
            (1970, 1, 1, 0),
            (2000, 2, 29, 11_016),
            (2000, 3, 1, 11_017),
            (2100, 3, 1, 47_541),
            (1900, 3, 1, -25_508),
        ] {
            assert_eq!(Date { year, month, day }.days(), days);
        }
        assert_eq!([0, 1, 25, 361].map(days_in), [31, 28, 29, 29]);
    }
}
