//! The page.

use super::{Report, clients::clients, hide::Names, html::escaped, overview, time::full};
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
