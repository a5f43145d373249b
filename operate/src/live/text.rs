//! The text of a log for a changed policy.

use tower_ratelimit::Policy;

/// The settings that differ, each as `name old -> new`. Empty if both policies are equal.
pub(super) fn changes(old: &Policy, new: &Policy) -> String {
    let rows = rows(old).into_iter().zip(rows(new));
    let changed = rows.filter(|(old, new)| old != new);
    changed.map(|((name, old), (_, new))| format!("{name} {old} -> {new}")).collect::<Vec<_>>().join(", ")
}

fn rows(policy: &Policy) -> [(&'static str, String); 11] {
    let settings = policy.settings();
    let headroom =
        settings.headroom.iter().rev().map(|(criticality, units)| format!("{criticality}: {units}"));
    let headroom: Vec<String> = headroom.collect();
    [
        ("quota", settings.quota.to_string()),
        ("algorithm", settings.algorithm.name().to_owned()),
        // Only `Debug` shows the options of an algorithm.
        ("options", format!("{:?}", settings.algorithm)),
        ("max_lease", settings.max_lease.unwrap_or_default().to_string()),
        ("max_debt", settings.max_debt.to_string()),
        ("penalty", settings.penalty.map_or_else(|| "none".to_owned(), |penalty| penalty.to_string())),
        ("headroom", format!("{{{}}}", headroom.join(", "))),
        ("quota_unit", settings.quota_unit.to_string()),
        ("enforced", settings.enforced.to_string()),
        ("failure mode", settings.failure_mode.to_string()),
        ("notify_at", format!("{:?}", settings.notify_at)),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tower_ratelimit::{
        Criticality, Quota,
        policy::{Headroom, Penalty},
    };

    use super::*;

    #[test]
    fn a_change_is_shown_with_the_old_and_the_new_value() {
        let minute = Duration::from_secs(60);
        let old = || Policy::new("login", Quota::per_minute(5));
        let penalty = Penalty::after(3, minute).up_to(60 * minute);
        let rows = [
            (old(), ""),
            (
                Policy::new("login", Quota::per_minute(10)).max_debt(20),
                "quota 5/min -> 10/min, max_debt 0 -> 20",
            ),
            (old().shadow().max_lease(5), "max_lease 0 -> 5, enforced 1 -> 0"),
            (old().penalty(Penalty::manual()), "penalty none -> manual"),
            (
                old().headroom(Criticality::Sheddable, Headroom::Percent(20)),
                "headroom {} -> {sheddable: 20%}",
            ),
            (old().penalty(penalty), "penalty none -> ban 1min up to 1h after 3 denials in 1min"),
        ];
        for (new, expected) in rows {
            assert_eq!(changes(&old(), &new), expected);
        }
    }
}
