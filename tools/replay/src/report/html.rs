//! The page.

use super::{Report, clients::clients, hide::Names, overview, time::full};
use crate::notes::number;

/// The report as one HTML file.
pub(crate) fn html(report: &Report<'_>) -> String {
    let tally = report.tally;
    let name = escaped(report.name);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>Replay of {name}</title><style>{}</style></head><body><main>\n",
        include_str!("style.css")
    );
    page += &format!("<header><h1>Replay of {name}</h1>");
    if tally.requests == 0 {
        page += "<p>The input has no requests.</p></header>";
    } else {
        page += &format!(
            "<p>{} requests from {} to {} UTC, read as {}. This is what the policies below would have done.</p></header>",
            number(tally.requests),
            full(tally.first / 1_000_000),
            full(tally.last / 1_000_000),
            report.format.name(),
        );
        page += &overview::figures(report);
        page += &format!("<section><h2>Policies</h2>{}</section>\n", overview::policies(report));
        page += &format!("<section><h2>Over time</h2>{}</section>\n", overview::over_time(report));
        let names = Names::new(report.shows_keys);
        for (rule, policy) in report.rules.iter().zip(&tally.policies) {
            page += &clients(report, &names, rule, policy);
            page.push('\n');
        }
    }
    page + &format!(
        "<section><h2>Skipped lines and notes</h2>{}</section>\n</main></body></html>\n",
        overview::skipped(report)
    )
}

/// A table. The cells of columns from `numbers` on are numbers.
pub(super) fn table(caption: &str, heads: &[&str], numbers: usize, rows: &str) -> String {
    let heads: String = heads.iter().map(|head| format!("<th scope=\"col\">{head}</th>")).collect();
    let style = match numbers {
        1 => " class=\"from-2\"",
        3 => " class=\"from-4\"",
        _ => "",
    };
    format!(
        "<div class=\"scroll\"><table{style}><caption>{}</caption><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>",
        escaped(caption)
    )
}

/// A row of a table that on a phone is a list: each cell has its head. The cells are HTML.
pub(super) fn listed_row(heads: &[&str], cells: &[String]) -> String {
    let (head, rest) = cells.split_first().map_or(("", &[][..]), |(head, rest)| (head.as_str(), rest));
    let rest: String = heads
        .iter()
        .skip(1)
        .zip(rest)
        .map(|(head, cell)| format!("<td data-head=\"{}\"><span>{cell}</span></td>", escaped(head)))
        .collect();
    format!("<tr><th scope=\"row\">{head}</th>{rest}</tr>")
}

/// A row of a table. The cells are HTML.
pub(super) fn row(cells: &[String]) -> String {
    let (head, rest) = cells.split_first().map_or(("", &[][..]), |(head, rest)| (head.as_str(), rest));
    let rest: String = rest.iter().map(|cell| format!("<td>{cell}</td>")).collect();
    format!("<tr><th scope=\"row\">{head}</th>{rest}</tr>")
}

/// A text as HTML.
pub(super) fn escaped(text: impl AsRef<str>) -> String {
    let mut escaped = String::with_capacity(text.as_ref().len());
    for character in text.as_ref().chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Control characters of a log are not valid in HTML.
            character if character.is_control() => escaped.push('\u{fffd}'),
            character => escaped.push(character),
        }
    }
    escaped
}
