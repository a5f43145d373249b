//! What differs between two versions of a policy.

use super::Policy;
use crate::base::duration_text;

impl Policy {
    /// The settings that differ in `new`, each as `name old -> new`, for a log. Empty if both are equal.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Policy, Quota};
    ///
    /// let login = Policy::new("login", Quota::per_minute(5));
    /// let new = Policy::new("login", Quota::per_minute(10)).debt(20);
    /// assert_eq!(login.changes_to(&new), "quota 5/min -> 10/min, debt 0 -> 20");
    /// ```
    #[doc(hidden)]
    #[must_use]
    pub fn changes_to(&self, new: &Self) -> String {
        let (before, after) = (self.summary(), new.summary());
        let algorithms = [self, new].map(|policy| format!("{:?}", policy.counting()));
        let is_renamed = before.algorithm != after.algorithm;
        // The options are in the text for debugging only.
        let [old_algorithm, new_algorithm] =
            if is_renamed { [before.algorithm, after.algorithm] } else { algorithms };
        let rows = [
            ("quota", before.quota.to_string(), after.quota.to_string()),
            ("algorithm", old_algorithm, new_algorithm),
            ("lease", before.lease.to_string(), after.lease.to_string()),
            ("debt", before.debt.to_string(), after.debt.to_string()),
            ("penalty", self.penalty_text(), new.penalty_text()),
            ("content_bytes", before.content_bytes.to_string(), after.content_bytes.to_string()),
            ("enforced", before.enforced.to_string(), after.enforced.to_string()),
            ("failure mode", before.on_store_failure.to_string(), after.on_store_failure.to_string()),
        ];
        let changed = rows.into_iter().filter(|(_, old, new)| old != new);
        changed.map(|(name, old, new)| format!("{name} {old} -> {new}")).collect::<Vec<_>>().join(", ")
    }

    fn penalty_text(&self) -> String {
        match self.bans().map(Self::arguments) {
            None => "none".to_owned(),
            Some([after, within, first, longest, ..]) if *after > 0 => {
                let [within, first, longest] = [within, first, longest].map(|micros| duration_text(*micros));
                format!("(after {after} in {within}, ban {first} up to {longest})")
            }
            Some(_) => "manual".to_owned(),
        }
    }
}
