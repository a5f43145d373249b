//! The figures, their budgets, and how they compare with recorded ones.

use crate::results::{Measured, Results};

pub(crate) const CONTENDERS: &[&str] = &[
    "stored",
    "stored-pair",
    "stored-window",
    "stored-month",
    "shared",
    "shared-pair",
    "pool",
    "stored-headroom",
    "denied",
    "denied-headroom",
    "denied-below",
    "alone-stored",
    "memory",
    "memory-info",
    "memory-spans",
    "one-stored",
    "two-stored",
    "alone",
    "idle",
    "idle-pair",
    "one",
    "two",
    "three",
    "penalty",
    "leased",
];

/// A figure may be this many times the recorded one.
const TOLERANCE: f64 = 1.02;

enum Budget {
    /// At most this.
    Most(f64),
    /// At most a multiple of another figure.
    Times(f64, &'static str),
    /// At most this much more than another figure.
    More(f64, &'static str),
    None,
}

use Budget::{More, Most, None as Free, Times};

/// In the order of the tables, with their titles: first what most services send.
const FIGURES: &[(&str, &[(&str, Budget)])] = &[
    (
        "Stored keys, small calls",
        &[
            ("stored, 1 a call, Redis", Most(50_000.0)),
            ("stored, 16 a call, Redis", Most(27_000.0)),
            ("stored-pair, 1 a call, Redis", Most(78_000.0)),
            ("stored-pair, 16 a call, Redis", Free),
            ("stored-window, 1 a call, Redis", Free),
            ("stored-window, 16 a call, Redis", Free),
            ("stored-month, 1 a call, Redis", Free),
            ("stored-month, 16 a call, Redis", Free),
            ("stored, 4 a call, Redis", Free),
            ("stored-pair, 4 a call, Redis", Free),
            ("stored-window, 4 a call, Redis", Free),
            ("stored-month, 4 a call, Redis", Free),
            ("alone-stored, client", Free),
            ("alone-stored, allocations", Free),
        ],
    ),
    (
        "In process",
        &[
            ("memory, allowed", Most(4_700.0)),
            ("memory, allowed, allocations", Free),
            ("memory, denied", Most(6_000.0)),
            ("memory, denied, allocations", Free),
            // The record of a denial is to take at most 100 instructions.
            ("memory, denied, recorded", More(100.0, "memory, denied")),
            ("memory, denied, recorded, allocations", Free),
            ("memory, denied, many", Free),
            ("memory, denied, many, allocations", Free),
            ("memory, denied, many, recorded", More(100.0, "memory, denied, many")),
            ("memory, denied, many, recorded, allocations", Free),
            ("memory, denied, flood", Free),
            ("memory, denied, flood, allocations", Free),
            ("memory, denied, flood, recorded", More(600.0, "memory, denied, flood")),
            ("memory, denied, flood, recorded, allocations", Free),
            // Spans that no subscriber wants are to cost almost nothing.
            ("memory-info, allowed", Times(1.01, "memory, allowed")),
            ("memory-spans, allowed", Free),
        ],
    ),
    (
        "Stored keys, large batches",
        &[
            ("stored, 64 a call, Redis", Most(24_000.0)),
            ("stored-pair, 64 a call, Redis", Free),
            ("stored-window, 64 a call, Redis", Free),
            ("stored-month, 64 a call, Redis", Free),
            ("shared, 4 a call, Redis", Free),
            ("shared, 16 a call, Redis", Free),
            ("shared, 64 a call, Redis", Free),
            ("shared-pair, 4 a call, Redis", Free),
            ("shared-pair, 16 a call, Redis", Free),
            ("shared-pair, 64 a call, Redis", Times(1.3, "two-stored, Redis")),
            ("pool, 4 a call, Redis", Free),
            ("pool, 16 a call, Redis", Free),
            ("pool, 64 a call, Redis", Times(1.1, "shared-pair, 64 a call, Redis")),
            ("one-stored, client", Free),
            ("one-stored, allocations", Free),
            ("one-stored, Redis", Free),
            ("two-stored, client", Free),
            ("two-stored, allocations", Free),
            ("two-stored, Redis", Free),
        ],
    ),
    (
        "Headroom, beside the same without",
        &[
            ("stored-headroom, 1 a call, Redis", Times(1.02, "stored, 1 a call, Redis")),
            ("stored-headroom, 64 a call, Redis", Times(1.02, "stored, 64 a call, Redis")),
            ("denied, 1 a call, Redis", Free),
            ("denied, 64 a call, Redis", Free),
            ("denied-headroom, 1 a call, Redis", Times(1.02, "denied, 1 a call, Redis")),
            ("denied-headroom, 64 a call, Redis", Times(1.02, "denied, 64 a call, Redis")),
            ("denied-below, 1 a call, Redis", Times(1.03, "denied, 1 a call, Redis")),
            ("denied-below, 64 a call, Redis", Times(1.03, "denied, 64 a call, Redis")),
        ],
    ),
    (
        "Idle keys, small calls",
        &[
            ("idle, 1 a call, Redis", Most(58_000.0)),
            ("idle, 4 a call, Redis", Free),
            ("idle, 16 a call, Redis", Free),
            ("idle-pair, 1 a call, Redis", Free),
            ("idle-pair, 4 a call, Redis", Free),
            ("idle-pair, 16 a call, Redis", Free),
            ("alone, client", Most(29_000.0)),
            ("alone, allocations", Free),
        ],
    ),
    (
        "Idle keys, large batches",
        &[
            ("idle, 64 a call, Redis", Most(18_900.0)),
            ("idle-pair, 64 a call, Redis", Free),
            ("one, client", Most(12_500.0)),
            ("one, allocations", Most(7.0)),
            ("one, Redis", Most(33_000.0)),
            ("two, client", Most(16_500.0)),
            ("two, allocations", Free),
            ("two, Redis", Most(70_000.0)),
            ("three, client", Most(20_000.0)),
            ("three, allocations", Free),
            ("three, Redis", Most(102_000.0)),
            ("penalty, client", Most(13_500.0)),
            ("penalty, allocations", Free),
            ("penalty, Redis", Most(45_000.0)),
            // Where no key is hot, leases are to cost almost nothing.
            ("leased, client", Times(1.05, "one, client")),
            ("leased, allocations", Free),
            ("leased, Redis", Times(1.02, "one, Redis")),
        ],
    ),
];

/// The measured figures beside the recorded ones and the budgets, as Markdown.
pub(crate) fn tables(results: &Results, recorded: &Measured) -> String {
    let mut text = String::new();
    for (title, figures) in FIGURES {
        let rows: String = figures.iter().filter_map(|figure| row(figure, results, recorded)).collect();
        if !rows.is_empty() {
            text.push_str(&format!(
                "{title}:\n\n\
                 | figure | decisions a call | now | recorded | change | budget | within |\n\
                 |---|---|---|---|---|---|---|\n\
                 {rows}\n"
            ));
        }
    }
    text
}

/// The row of a figure, if it is measured.
fn row((name, budget): &(&str, Budget), results: &Results, recorded: &Measured) -> Option<String> {
    let now = *results.figures.get(*name)?;
    let figure = |name: &str| results.figures.get(name).or_else(|| recorded.get(name));
    let budget = match budget {
        Most(most) => Some(*most),
        Times(times, other) => figure(other).map(|other| times * other),
        More(more, other) => figure(other).map(|other| more + other),
        Free => None,
    };
    let recorded = recorded.get(*name);
    Some(format!(
        "| {name} | {} | {} | {} | {} | {} | {} |\n",
        results.batches.get(*name).map_or_else(String::new, |decisions| number(*decisions)),
        number(now),
        recorded.map_or_else(String::new, |recorded| number(*recorded)),
        recorded.map_or_else(String::new, |recorded| format!("{:+.1} %", (now / recorded - 1.0) * 100.0)),
        budget.map_or_else(String::new, number),
        budget.map_or("", |budget| if now <= budget { "yes" } else { "no" }),
    ))
}

/// The figures that are too far above the recorded ones.
pub(crate) fn worse(measured: &Measured, recorded: &Measured) -> Vec<String> {
    let worse = |(name, now): (&String, &f64)| *now > recorded.get(name).unwrap_or(now) * TOLERANCE;
    measured.iter().filter(|figure| worse(*figure)).map(|(name, _)| name.clone()).collect()
}

/// `17,900`, or `15.3` below a hundred.
fn number(figure: f64) -> String {
    if figure < 100.0 {
        return format!("{figure:.1}");
    }
    let digits = format!("{figure:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rows: &[(&str, f64)]) -> Measured {
        rows.iter().map(|(name, figure)| ((*name).to_owned(), *figure)).collect()
    }

    #[test]
    fn a_figure_more_than_two_percent_above_the_recorded_one_is_worse() {
        let rows = [
            ("two percent more", 10_000.0, 10_200.0, false),
            ("more than that", 10_000.0, 10_201.0, true),
            ("less", 10_000.0, 5_000.0, false),
            ("allocations", 15.0, 15.4, true),
        ];
        for (name, recorded, now, expected) in rows {
            let worse = worse(&figures(&[("one, client", now)]), &figures(&[("one, client", recorded)]));
            assert_eq!(!worse.is_empty(), expected, "{name}");
        }
        assert!(worse(&figures(&[("one, client", 1.0)]), &Measured::new()).is_empty(), "nothing recorded");
    }

    #[test]
    fn the_tables_have_a_row_for_each_measured_figure() {
        let measured = [
            ("one, client", 17_900.0),
            ("one, allocations", 6.0),
            ("leased, client", 18_000.0),
            ("stored, 4 a call, Redis", 31_000.0),
        ];
        let batches = figures(&[("stored, 4 a call, Redis", 4.0)]);
        let results = Results { figures: figures(&measured), batches };
        let tables = tables(&results, &figures(&[("one, client", 17_000.0)]));
        let rows: Vec<_> =
            tables.lines().filter(|line| line.starts_with("| ") && line.contains(',')).collect();
        let expected = [
            "| stored, 4 a call, Redis | 4.0 | 31,000 |  |  |  |  |",
            "| one, client |  | 17,900 | 17,000 | +5.3 % | 12,500 | no |",
            "| one, allocations |  | 6.0 |  |  | 7.0 | yes |",
            "| leased, client |  | 18,000 |  |  | 18,795 | yes |",
        ];
        assert_eq!(rows, expected);
    }

    /// A contender without a row would be counted in vain.
    #[test]
    fn each_contender_has_a_row() {
        let rows: Vec<_> = FIGURES.iter().flat_map(|(_, figures)| figures.iter()).collect();
        for contender in CONTENDERS {
            let start = format!("{contender}, ");
            assert!(rows.iter().any(|(name, _)| name.starts_with(&start)), "{contender}");
        }
    }

    #[test]
    fn numbers_have_separators() {
        let rows = [(7.0, "7.0"), (17_900.4, "17,900"), (134_000.0, "134,000"), (1_234_567.0, "1,234,567")];
        for (figure, text) in rows {
            assert_eq!(number(figure), text);
        }
    }
}
