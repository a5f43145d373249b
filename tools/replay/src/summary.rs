//! The summary on stderr.

use std::time::Duration;

use crate::{
    notes::{number, percent, several},
    rules::Rule,
    tally::{DENIED, REQUESTS, Tally},
    timeline::Timeline,
    verdicts::shown,
};

/// The number of clients that are listed for each policy.
const CLIENTS: usize = 10;
/// The most rows of the histogram, and the characters of the longest.
const ROWS: usize = 24;
const WIDTH: u64 = 50;

/// What became of the requests, as text.
pub(crate) fn summary(rules: &[Rule], tally: &Tally, notes: &[String]) -> String {
    let mut text = String::new();
    if let ([rule], [policy]) = (rules, &tally.policies[..]) {
        text += &format!(
            "{}\n{} of {}, {} denied ({})\n",
            rule.policy.quota(),
            several(tally.requests, "request"),
            several(policy.clients.len() as u64, "key"),
            number(tally.denied),
            percent(tally.denied, tally.requests),
        );
    } else {
        text += &format!(
            "{}, {} denied ({})\n",
            several(tally.requests, "request"),
            number(tally.denied),
            percent(tally.denied, tally.requests)
        );
    }
    if tally.delayed > 0 {
        text += &format!("{} admitted after a delay\n", number(tally.delayed));
    }
    if tally.malformed > 0 {
        text += &format!("{} did not parse; the first:\n", several(tally.malformed, "line"));
        for (line, problem, excerpt) in &tally.shown {
            text += &format!("  line {line}: {problem}: {excerpt}\n");
        }
    }
    for note in notes {
        text += &format!("note: {note}\n");
    }
    for (rule, policy) in rules.iter().zip(&tally.policies) {
        if rules.len() > 1 {
            let would = if policy.shadow_denied > 0 {
                format!(", {} more as a shadow", number(policy.shadow_denied))
            } else {
                String::new()
            };
            text += &format!(
                "{} by {} ({}): {} denied{would}, {} by no other policy; {} of {} clients\n",
                rule.policy.name(),
                rule.key_text,
                rule.policy.quota(),
                number(policy.denied),
                number(policy.denied_alone),
                number(policy.denied_clients() as u64),
                number(policy.clients.len() as u64),
            );
        }
        let worst = policy.worst(CLIENTS);
        if !worst.is_empty() {
            text += "most denied:\n";
        }
        for (key, client) in worst {
            text += &format!("{:>10}  {}\n", client.denied, shown(key));
        }
    }
    text + &histogram(&tally.timeline)
}

/// A bar of the requests in each span of time, and the part that was denied.
fn histogram(timeline: &Timeline) -> String {
    let spans = timeline.spans();
    let Some(most) = spans.iter().map(|span| span[REQUESTS]).max() else { return String::new() };
    let merged = spans.len().div_ceil(ROWS).max(1);
    let rows: Vec<(u64, u64)> = spans
        .chunks(merged)
        .map(|part| (part.iter().map(|one| one[REQUESTS]).sum(), part.iter().map(|one| one[DENIED]).sum()))
        .collect();
    let most = rows.iter().map(|(requests, _)| *requests).max().unwrap_or(most).max(1);
    let seconds = timeline.seconds() * merged as u64;
    let time = |seconds| humantime::format_duration(Duration::from_secs(seconds)).to_string();
    let mut lines = format!("requests over time, {} each; # denied, = admitted:\n", time(seconds));
    for (place, (requests, denied)) in rows.iter().enumerate() {
        // A count above zero is at least one character.
        let width = |count: u64| (count * WIDTH).div_ceil(most);
        let denied_width = width(*denied);
        let bar = "#".repeat(denied_width as usize)
            + &"=".repeat(width(*requests).saturating_sub(denied_width) as usize);
        lines += &format!("{:>12} {bar} {requests}\n", time(place as u64 * seconds));
    }
    lines
}
