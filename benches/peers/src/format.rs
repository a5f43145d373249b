//! Figures and rows of Markdown.

use std::fmt::Write;

pub(crate) fn ratio(ratio: f64) -> String {
    format!("{ratio:.*}", if ratio < 0.1 { 4 } else { 2 })
}

pub(crate) fn rate(rate: f64) -> String {
    match rate {
        rate if rate >= 1e6 => format!("{:.2} M", rate / 1e6),
        rate if rate >= 1e4 => format!("{:.0} k", rate / 1e3),
        rate if rate >= 1e3 => format!("{:.1} k", rate / 1e3),
        rate => format!("{rate:.0}"),
    }
}

/// Of nanoseconds.
pub(crate) fn microseconds(nanoseconds: f64) -> String {
    let micro = nanoseconds / 1e3;
    format!("{micro:.*} µs", if micro < 10.0 { 2 } else { 1 })
}

pub(crate) fn heading<'a>(text: &mut String, columns: impl IntoIterator<Item = &'a str>) {
    let columns: Vec<&str> = columns.into_iter().collect();
    let _ = writeln!(text, "| | {} |\n|---|{}", columns.join(" | "), "---|".repeat(columns.len()));
}

pub(crate) fn row(text: &mut String, name: &str, cells: impl IntoIterator<Item = String>) {
    let _ = writeln!(text, "| {name} | {} |", cells.into_iter().collect::<Vec<_>>().join(" | "));
}

pub(crate) fn one_line(text: &str) -> String {
    text.replace(['\n', '|'], " ")
}
