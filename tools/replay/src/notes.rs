//! Notes on what a replay cannot show, for the summary and the report.

use std::time::Duration;

use tower_ratelimit::policy::Enforcement;

use crate::{rules::Rule, tally::Tally};

/// Limits of shorter periods need times that are more exact than a second.
const SHORT: Duration = Duration::from_secs(10);

/// What is known at the end of a replay, apart from the counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) enforcement: Enforcement,
    /// Requests whose line came too late to be sorted.
    pub(crate) late: u64,
    /// Whether a time was not a whole second.
    pub(crate) has_fractions: bool,
    /// Requests with permits and without a duration.
    pub(crate) without_duration: u64,
    /// The keys in the store, and how many it holds.
    pub(crate) keys: usize,
    pub(crate) capacity: usize,
}

/// One sentence for each.
pub(crate) fn notes(rules: &[Rule], tally: &Tally, end: &End) -> Vec<String> {
    let mut notes = Vec::new();
    if end.enforcement != Enforcement::On {
        notes.push(format!(
            "The file sets the enforcement to {}. The replay shows what happens when it is on.",
            end.enforcement
        ));
    }
    for (rule, policy) in rules.iter().zip(&tally.policies).filter(|(_, policy)| policy.unidentified > 0) {
        notes.push(format!(
            "{} requests have no {}, so the policy {} cannot identify the client. A layer rejects them; the replay \
             charges them nothing.",
            number(policy.unidentified),
            rule.key_text,
            rule.policy.name(),
        ));
    }
    if end.late > 0 {
        notes.push(format!(
            "{} requests were logged too late to be sorted by their arrival, and are decided later. A longer \
             `--reorder` sorts them.",
            number(end.late)
        ));
    }
    if end.without_duration > 0 {
        notes.push(format!(
            "{} admitted requests have no duration in the log. They release their permits immediately, so limits \
             on concurrency deny less than in service.",
            number(end.without_duration)
        ));
    }
    let is_short = |rule: &&Rule| !rule.policy.has_permits() && rule.policy.quota().period() < SHORT;
    if tally.requests > 0
        && !end.has_fractions
        && let Some(rule) = rules.iter().find(is_short)
    {
        notes.push(format!(
            "The log's times are whole seconds. All requests of a second are decided in one burst, so the policy {} \
             may deny more than in service.",
            rule.policy.name()
        ));
    }
    if end.keys >= end.capacity / 10 * 9 {
        notes.push(format!(
            "More than {} keys were counted, and the counts of some were evicted: clients may have been denied \
             less than in service. A larger `--max-keys` keeps them.",
            number(end.capacity as u64)
        ));
    }
    let untracked: u64 = tally.policies.iter().map(|policy| policy.untracked).sum();
    if untracked > 0 {
        notes.push(format!(
            "{} requests of clients beyond `--max-keys` are missing in the lists of clients.",
            number(untracked)
        ));
    }
    notes
}

/// A number with its thousands apart.
pub(crate) fn number(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| str::from_utf8(group).unwrap_or_default()).collect();
    groups.join(",")
}

/// A number and what it counts, which needs an s if there are several.
pub(crate) fn several(count: u64, what: &str) -> String {
    format!("{} {what}{}", number(count), if count == 1 { "" } else { "s" })
}

/// The share as a percentage. A share above zero is not shown as zero.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    let percent = part as f64 * 100.0 / whole.max(1) as f64;
    match percent {
        _ if part == 0 => "0 %".to_owned(),
        ..0.01 => "< 0.01 %".to_owned(),
        ..1.0 => format!("{percent:.2} %"),
        _ => format!("{percent:.1} %"),
    }
}
