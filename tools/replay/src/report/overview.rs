//! The parts about all requests.

use super::{
    Report, chart,
    html::{escaped, listed_row, row, table},
    time::full,
};
use crate::{
    notes::{number, percent, several},
    tally::{DENIED, FIRST_POLICY, REQUESTS},
};

/// The counts that matter most.
pub(super) fn figures(report: &Report<'_>) -> String {
    let tally = report.tally;
    let clients = |count: fn(&crate::tally::PolicyTally) -> usize| {
        tally.policies.iter().map(count).max().unwrap_or_default() as u64
    };
    let mut figures = vec![
        ("requests", number(tally.requests), String::new()),
        (
            "admitted",
            number(tally.requests - tally.denied),
            percent(tally.requests - tally.denied, tally.requests),
        ),
        ("denied", number(tally.denied), percent(tally.denied, tally.requests)),
    ];
    if tally.delayed > 0 {
        figures.push(("delayed", number(tally.delayed), percent(tally.delayed, tally.requests)));
    }
    if let [policy] = &tally.policies[..] {
        let (denied, all) = (policy.denied_clients() as u64, clients(|policy| policy.clients.len()));
        figures.push(("clients", number(all), String::new()));
        figures.push(("clients denied", number(denied), percent(denied, all)));
    }
    let figure = |(name, count, share): (&str, String, String)| {
        let style = if name.ends_with("denied") { " class=\"bad\"" } else { "" };
        format!("<div{style}><dt>{name}</dt><dd>{count} <small>{share}</small></dd></div>")
    };
    format!("<dl class=\"figures\">{}</dl>", figures.into_iter().map(figure).collect::<String>())
}

/// A row for each policy.
pub(super) fn policies(report: &Report<'_>) -> String {
    let rows = report.rules.iter().zip(&report.tally.policies).map(|(rule, tally)| {
        let clients = tally.clients.len() as u64;
        let denied = tally.denied_clients() as u64;
        // In a replay there is no failure.
        let settings = rule.policy.to_string();
        let settings = settings.rsplit_once(", failure mode ").map_or(&*settings, |(settings, _)| settings);
        let cells = [
            escaped(rule.policy.name()),
            escaped(settings),
            escaped(&rule.key_text),
            number(clients),
            with_share(denied, clients),
            with_share(tally.denied, report.tally.requests),
            number(tally.denied_alone),
            number(tally.shadow_denied),
            number(tally.banned),
        ];
        listed_row(&POLICY_HEADS, &cells)
    });
    table("What each policy denies", &POLICY_HEADS, 3, &rows.collect::<String>())
}

const POLICY_HEADS: [&str; 9] = [
    "policy",
    "settings",
    "key",
    "clients",
    "clients denied",
    "requests denied",
    "only by this one",
    "as a shadow",
    "in bans",
];

fn with_share(part: u64, whole: u64) -> String {
    format!("{} <small>{}</small>", number(part), percent(part, whole))
}

/// The requests over time, and the denials of each policy.
pub(super) fn over_time(report: &Report<'_>) -> String {
    let timeline = &report.tally.timeline;
    let all = chart::over_time("Admitted and denied requests over time", timeline, 230.0, |span| {
        vec![("admitted", span[REQUESTS] - span[DENIED]), ("denied", span[DENIED])]
    });
    let has_shadow = report.tally.policies.iter().any(|policy| policy.shadow_denied > 0);
    let shadow = match has_shadow {
        true => " <span class=\"shadow\"></span> would be denied by a shadow",
        false => "",
    };
    let mut text = format!(
        "<p class=\"legend\"><span class=\"admitted\"></span> admitted <span class=\"denied\"></span> \
         denied{shadow}</p><p class=\"quiet\">Each bar covers {}. Times are in \
         UTC.</p><h3>All policies together</h3><figure>{all}</figure>",
        humantime::format_duration(std::time::Duration::from_secs(timeline.seconds()))
    );
    for (place, (rule, tally)) in report.rules.iter().zip(&report.tally.policies).enumerate() {
        let name = escaped(rule.policy.name());
        if tally.denied + tally.shadow_denied == 0 {
            text += &format!("<h3>{name}</h3><p>It denies nothing.</p>");
            continue;
        }
        let style = if tally.denied == 0 { "shadow" } else { "denied" };
        let title = format!("Requests that the policy {} denies, over time", rule.policy.name());
        let bars =
            chart::over_time(&title, timeline, 130.0, |span| vec![(style, span[FIRST_POLICY + place])]);
        let what = if tally.denied == 0 { "denied as a shadow" } else { "denied" };
        text += &format!("<h3>{name}: {what}</h3><figure>{bars}</figure>");
    }
    let mut heads = vec!["from (UTC)", "requests", "admitted", "denied"];
    heads.extend(report.rules.iter().map(|rule| rule.policy.name()));
    let rows = timeline.spans().iter().enumerate().filter(|(_, span)| span[REQUESTS] > 0);
    let rows = rows.map(|(place, span)| {
        let mut cells = vec![
            full(timeline.start() + place as u64 * timeline.seconds()),
            number(span[REQUESTS]),
            number(span[REQUESTS] - span[DENIED]),
            number(span[DENIED]),
        ];
        cells.extend(span[FIRST_POLICY..].iter().map(|denied| number(*denied)));
        row(&cells)
    });
    let heads: Vec<String> = heads.into_iter().map(escaped).collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let rows =
        table("Requests over time; for each policy, what it denies", &heads, 1, &rows.collect::<String>());
    text + &format!("<details><summary>Table of these charts</summary>{rows}</details>")
}

/// What was not replayed, and what a replay cannot show.
pub(super) fn skipped(report: &Report<'_>) -> String {
    let tally = report.tally;
    let mut text = String::new();
    if tally.malformed > 0 {
        text += &format!("<p>Malformed and skipped: {}.</p>", several(tally.malformed, "line"));
        let rows = tally.shown.iter().map(|(line, problem, excerpt)| {
            let mut cells = vec![number(*line), escaped(problem)];
            if report.shows_keys {
                cells.push(format!("<code>{}</code>", escaped(excerpt)));
            }
            row(&cells)
        });
        let heads: &[&str] =
            if report.shows_keys { &["line", "reason", "text"] } else { &["line", "reason"] };
        text += &table("The first malformed lines", heads, usize::MAX, &rows.collect::<String>());
    } else {
        text += "<p>Every line was read.</p>";
    }
    if !report.notes.is_empty() {
        let items: String = report.notes.iter().map(|note| format!("<li>{}</li>", escaped(note))).collect();
        text += &format!("<ul>{items}</ul>");
    }
    text
}
