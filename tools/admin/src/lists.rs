//! What several instances list, as one list.

use std::cmp::Reverse;

use serde::Serialize;
use serde_json::json;
use tower_ratelimit::policy::QuotaUnit;
use tower_ratelimit_operate::{
    answer::{AclRule, Denials, DeniedKey, FrequentlyDenied, Networks, PolicyList, Probe},
    config::PolicySummary,
    live::BlockedNetwork,
};

use crate::{
    client::{sort_denials, table_of_denials},
    merged::{Merged, Shared},
    printed::{Printed, push_line},
    span::seconds,
    table::table,
};

/// The same time differs by at most these seconds between the answers of two instances.
const BETWEEN_ANSWERS: f64 = 30.0;

impl Merged<Denials<DeniedKey>> {
    /// The answers of `GET /denials/recent`.
    pub(crate) fn recent(self, limit: usize, as_json: bool) -> Printed {
        let mut denials = self.own(|answer| &answer.denials);
        sort_denials(&mut denials);
        denials.truncate(limit);
        let text = table_of_denials(&denials);
        self.printed(as_json, json!({ "denials": denials }), text)
    }
}

impl Merged<Denials<FrequentlyDenied>> {
    /// The answers of `GET /denials/top`: the sums over all instances.
    pub(crate) fn top(self, limit: usize, as_json: bool) -> Printed {
        let mut sums: Vec<Shared<FrequentlyDenied>> = Vec::new();
        for (instance, answer) in &self.answers {
            for entry in &answer.denials {
                let same = |sum: &&mut Shared<FrequentlyDenied>| {
                    sum.entry.policy == entry.policy && sum.entry.key == entry.key
                };
                match sums.iter_mut().find(same) {
                    Some(sum) => {
                        sum.entry.denials += entry.denials;
                        sum.entry.error += entry.error;
                        sum.instances.push(instance.clone());
                    }
                    None => sums.push(Shared { entry: entry.clone(), instances: vec![instance.clone()] }),
                }
            }
        }
        let certain = |sum: &FrequentlyDenied| sum.denials.saturating_sub(sum.error);
        sums.sort_by_key(|sum| Reverse(certain(&sum.entry)));
        sums.truncate(limit);
        let row = |Shared { entry, .. }: &Shared<FrequentlyDenied>| {
            let (least, most) = (certain(entry), entry.denials);
            let number = if least == most { most.to_string() } else { format!("{least} to {most}") };
            vec![entry.policy.clone(), entry.key.clone(), number]
        };
        let rows: Vec<_> = sums.iter().map(row).collect();
        self.printed(as_json, json!({ "denials": sums }), table(&["POLICY", "KEY", "DENIALS"], &rows))
    }
}

impl Merged<PolicyList> {
    /// The answers of `GET /policies`. It fails if the policies of an instance are not what the file or Redis has.
    pub(crate) fn policies(self, as_json: bool) -> Printed {
        #[derive(Serialize)]
        struct Row<'a> {
            policy: &'a PolicySummary,
            instances: &'a [String],
        }
        let mut rows = self.shared(|answer| &answer.policies, PolicySummary::eq);
        let mut lines = String::new();
        for (instance, answer) in &self.answers {
            for warning in &answer.warnings {
                let mut line = String::new();
                push_line(&mut line, &format!("warning: {warning}"));
                if !lines.contains(&line) {
                    lines.push_str(&line);
                }
            }
            if let Some(error) = &answer.error {
                push_line(&mut lines, &format!("{instance}: the policies stay as they are: {error}"));
            }
        }
        rows.sort_by(|one, other| one.entry.name.cmp(&other.entry.name));
        let cells = |Shared { entry: policy, instances }: &Shared<PolicySummary>| {
            vec![
                policy.name.clone(),
                policy.quota.to_string(),
                policy.algorithm.clone(),
                enforced(policy.enforced),
                policy.failure_mode.to_string(),
                others(policy),
                self.names(instances),
            ]
        };
        let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
        let header = ["POLICY", "QUOTA", "ALGORITHM", "ENFORCED", "FAILURE MODE", "OTHERS", "INSTANCES"];
        let text = table(&header, &cells) + &lines;
        let list = rows.iter().map(|row| Row { policy: &row.entry, instances: &row.instances });
        let json = json!({ "policies": list.collect::<Vec<_>>(), "instances": self.by_instance() });
        let has_error = self.answers.iter().any(|(_, answer)| answer.error.is_some());
        self.printed(as_json, json, text).failed_if(has_error)
    }
}

impl Merged<Networks> {
    /// Whether an answer has an error beside its list.
    pub(crate) fn has_error(&self) -> bool {
        self.answers.iter().any(|(_, answer)| answer.error.is_some())
    }

    /// The answers of `GET /blocklist`.
    pub(crate) fn blocklist(self, as_json: bool) -> Printed {
        let networks = self.shared(|answer| &answer.networks, blocked_alike);
        let row = |network: &Shared<BlockedNetwork>| {
            network_cells(&network.entry).into_iter().chain([self.names(&network.instances)]).collect()
        };
        let rows: Vec<Vec<String>> = networks.iter().map(row).collect();
        let mut text = table(&["NETWORK", "BLOCKED", "REASON", "WHO", "INSTANCES"], &rows);
        let mut errors = Vec::new();
        for (instance, answer) in &self.answers {
            if let Some(error) = &answer.error {
                push_line(&mut text, &format!("{instance}: {error}"));
                errors.push(json!({"instance": instance, "error": error}));
            }
        }
        self.printed(as_json, json!({ "networks": networks, "errors": errors }), text)
    }
}

impl Merged<AclRule> {
    /// The answers of `GET /acl`.
    pub(crate) fn acl(self, as_json: bool) -> Printed {
        let rules = self.shared(std::slice::from_ref, AclRule::eq);
        let mut text = String::new();
        for Shared { entry: AclRule { acl_rule, .. }, instances } in &rules {
            let line = if rules.len() == 1 {
                acl_rule.clone()
            } else {
                format!("{}: {acl_rule}", instances.join(", "))
            };
            push_line(&mut text, &line);
        }
        let json = json!({ "instances": self.by_instance() });
        self.printed(as_json, json, text)
    }
}

impl Merged<Probe> {
    /// The answers of `GET /probe`. It fails if an instance cannot decide.
    pub(crate) fn probe(self, as_json: bool) -> Printed {
        let can_decide = self.answers.iter().all(|(_, answer)| answer.can_decide);
        let mut text = String::new();
        for (instance, answer) in &self.answers {
            push_line(&mut text, &format!("{instance}: {}", answer.report));
        }
        let json = json!({ "instances": self.by_instance() });
        self.printed(as_json, json, text).failed_if(!can_decide)
    }
}

/// Whether both are the same block. The time left differs by the time between two answers.
pub(crate) fn blocked_alike(one: &BlockedNetwork, other: &BlockedNetwork) -> bool {
    let end = |network: &BlockedNetwork| network.blocked_for.map_or(f64::INFINITY, |rest| rest.as_secs_f64());
    (&one.network, &one.reason, &one.who) == (&other.network, &other.reason, &other.who)
        && (end(one) == end(other) || (end(one) - end(other)).abs() < BETWEEN_ANSWERS)
}

/// A blocked network, as cells.
pub(crate) fn network_cells(network: &BlockedNetwork) -> [String; 4] {
    let time = match network.blocked_for.map(|rest| rest.as_secs_f64()) {
        // The end is in whole seconds, so the rest may be a second longer than the time of the block.
        Some(rest) if rest > 3_600.0 => format!("for {}", seconds((rest / 60.0).round() * 60.0)),
        Some(rest) => format!("for {}", seconds(rest)),
        None => "until unblocked".to_owned(),
    };
    let [reason, who] =
        [&network.reason, &network.who].map(|text| text.clone().unwrap_or_else(|| "-".to_owned()));
    [network.network.clone(), time, reason, who]
}

/// For which keys a policy is enforced.
fn enforced(share: f64) -> String {
    match share {
        1.0 => "yes".to_owned(),
        0.0 => "no, a shadow".to_owned(),
        // In millionths, so four digits are enough.
        share => format!("{} % of the keys", (share * 1e6).round() / 1e4),
    }
}

/// The settings of a policy that few policies have.
fn others(policy: &PolicySummary) -> String {
    let unit = Some(policy.quota_unit).filter(|unit| *unit != QuotaUnit::Requests);
    let shares: Vec<String> = policy.notify_at.iter().map(|share| format!("{share} %")).collect();
    let all = [
        unit.map(|unit| format!("of {unit}")),
        (policy.max_debt > 0).then(|| format!("debt up to {}", policy.max_debt)),
        (policy.max_lease > 0).then(|| format!("leases up to {}", policy.max_lease)),
        policy.has_penalty.then(|| "penalty".to_owned()),
        (!shares.is_empty()).then(|| format!("notifies at {}", shares.join(" and "))),
    ];
    let all: Vec<String> = all.into_iter().flatten().collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_network_whose_blocks_end_at_other_times_has_a_line_for_each() {
        let answer = |instance: &str, seconds: Value| {
            let network =
                json!({"network": "203.0.113.0/24", "blocked_for": seconds, "reason": null, "who": null});
            let answer = json!({"networks": [network], "applies_to": "this-instance", "error": null});
            (instance.to_owned(), Ok(answer))
        };
        let lines = |answers| Merged::<Networks>::new(answers).blocklist(false).text.lines().count();
        for (other, expected) in [(json!(3_601.5), 1), (json!(300.0), 2), (Value::Null, 2)] {
            let answers = vec![answer("a", json!(3_600.0)), answer("b", other.clone())];
            assert_eq!(lines(answers), 1 + expected, "{other}");
        }
        let forever = || answer("a", Value::Null);
        assert_eq!(lines(vec![forever(), forever()]), 2);
    }
}
