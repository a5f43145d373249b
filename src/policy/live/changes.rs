//! What changes, for the log.

use crate::{base::duration_text, policy::Policy};

/// The settings that differ, each as `name old -> new`.
pub(super) fn changes(old: &Policy, new: &Policy) -> String {
    let (before, after) = (old.summary(), new.summary());
    let algorithms = [old, new].map(|policy| format!("{:?}", policy.counting()));
    let is_renamed = before.algorithm() != after.algorithm();
    // The options are in the text for debugging only.
    let [old_algorithm, new_algorithm] =
        if is_renamed { [before.algorithm(), after.algorithm()].map(ToOwned::to_owned) } else { algorithms };
    let rows = [
        ("quota", before.quota().to_string(), after.quota().to_string()),
        ("algorithm", old_algorithm, new_algorithm),
        ("lease", before.lease().to_string(), after.lease().to_string()),
        ("debt", before.debt().to_string(), after.debt().to_string()),
        ("penalty", penalty(old), penalty(new)),
        ("content_bytes", before.content_bytes().to_string(), after.content_bytes().to_string()),
        ("enforced", before.enforced().to_string(), after.enforced().to_string()),
        ("failure mode", before.on_store_failure().to_string(), after.on_store_failure().to_string()),
    ];
    let changed = rows.into_iter().filter(|(_, old, new)| old != new);
    changed.map(|(name, old, new)| format!("{name} {old} -> {new}")).collect::<Vec<_>>().join(", ")
}

fn penalty(policy: &Policy) -> String {
    match policy.bans().map(Policy::arguments) {
        None => "none".to_owned(),
        Some([after, within, first, longest, ..]) if *after > 0 => {
            let [within, first, longest] = [within, first, longest].map(|micros| duration_text(*micros));
            format!("(after {after} in {within}, ban {first} up to {longest})")
        }
        Some(_) => "manual".to_owned(),
    }
}
