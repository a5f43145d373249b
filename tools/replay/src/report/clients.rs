//! The parts about the clients of a policy.

use super::{
    Report, chart,
    chart::Bar,
    hide::Names,
    html::{escaped, row, table},
};
use crate::{
    notes::{number, percent},
    rules::Rule,
    tally::{Client, PolicyTally},
};

/// The number of clients that are listed.
const LISTED: usize = 15;
/// The groups of clients by the share of the limit that they used, without those that are denied.
const GROUPS: usize = 10;

/// The clients of the policy `rule`: how much of the limit they use, and which are denied most.
pub(super) fn clients(report: &Report<'_>, names: &Names, rule: &Rule, tally: &PolicyTally) -> String {
    let name = escaped(rule.policy.name());
    format!(
        "<section><h2>{name}: its clients</h2><h3>How much of the limit they use</h3>{}<h3>Denied most</h3>{}</section>",
        usage(tally),
        worst(report, names, tally)
    )
}

/// The clients by the largest share of the capacity that they had in use.
fn usage(tally: &PolicyTally) -> String {
    let mut groups = [0; GROUPS + 1];
    for client in tally.clients.values() {
        groups[group(client)] += 1;
    }
    let all: u64 = groups.iter().sum();
    let label = |place: usize| match place {
        GROUPS => "denied".to_owned(),
        place => format!("{} to {} %", place * 10, place * 10 + 10),
    };
    let name = |place: usize| if place == GROUPS { label(place) } else { format!("{}%", place * 10 + 10) };
    let denied = if tally.denied == 0 { "shadow" } else { "denied" };
    let style = |place| if place == GROUPS { denied } else { "admitted" };
    let bars: Vec<Bar> = groups
        .iter()
        .enumerate()
        .map(|(place, count)| Bar {
            label: label(place),
            name: name(place),
            parts: vec![(style(place), *count)],
        })
        .collect();
    let rows = groups
        .iter()
        .enumerate()
        .filter(|(_, count)| **count > 0)
        .map(|(place, count)| row(&[label(place), number(*count), percent(*count, all)]));
    let title = "Clients by the largest share of the limit that they used";
    format!(
        "<p class=\"quiet\">Each client by the largest share of the limit that it had in use. The scale is \
         logarithmic.</p><div class=\"pair\"><figure>{}</figure>{}</div>",
        chart::of_groups(title, 320.0, &bars),
        table(title, &["of the limit", "clients", "share"], 1, &rows.collect::<String>())
    )
}

fn group(client: &Client) -> usize {
    if client.denied > 0 { GROUPS } else { (usize::from(client.peak.saturating_sub(1)) / 10).min(GROUPS - 1) }
}

fn worst(report: &Report<'_>, names: &Names, tally: &PolicyTally) -> String {
    let worst = tally.worst(LISTED);
    if worst.is_empty() {
        return "<p>No client is denied.</p>".to_owned();
    }
    let rows = worst.iter().map(|(key, client)| {
        row(&[
            format!("<code>{}</code>", escaped(names.of(key))),
            number(client.requests),
            number(client.denied),
            percent(client.denied, client.requests),
        ])
    });
    let note = if report.shows_keys {
        ""
    } else {
        "<p class=\"quiet\">Keys are hashed with a secret of this run. <code>--show-keys</code> shows them.</p>"
    };
    let rows = rows.collect::<String>();
    table("The clients that are denied most", &["key", "requests", "denied", "share"], 1, &rows) + note
}
