//! The report: one HTML file without references to others, for light and dark, with a table for each chart.

mod chart;
mod clients;
mod hide;
mod html;
mod overview;
mod page;
mod time;

use crate::{formats::Format, rules::Rule, tally::Tally};

pub(crate) use self::page::html;

/// What the report shows.
pub(crate) struct Report<'a> {
    /// The name of the input.
    pub(crate) name: &'a str,
    pub(crate) format: Format,
    pub(crate) rules: &'a [Rule],
    pub(crate) tally: &'a Tally,
    pub(crate) notes: &'a [String],
    /// Whether identities are shown and not hashed.
    pub(crate) shows_keys: bool,
}
