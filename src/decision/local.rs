//! Charges that were made in this process because the store failed, and what became of them.

use std::sync::{Arc, Mutex};

use super::Charge;
use crate::base::sync::lock;

/// A charge that was counted in this process.
#[derive(Debug)]
pub(crate) struct LocalCharge {
    /// The charge with its receipt, under this instance's share of the policy.
    pub(crate) made: Charge,
    /// `None` if the store may have made the charge too, so it is not owed.
    pub(crate) units: Option<Arc<Reconciliation>>,
}

/// Units of one key that this process admitted and that the store is charged together.
///
/// All decisions of these units share it, so a refund finds them wherever they are counted then.
#[derive(Debug, Default)]
pub(crate) struct Reconciliation(Mutex<Units>);

#[derive(Debug, Default)]
struct Units {
    /// The units that are not charged to the store: they are owed, or the store had no room for them.
    here: u64,
    /// The units on their way to the store.
    sent: u64,
    /// The units of `sent` that were refunded on the way.
    undone: u64,
    /// The charge in the store, with the units that are not refunded.
    charged: Option<Charge>,
}

impl Reconciliation {
    pub(crate) fn add(&self, units: u64) {
        lock(&self.0).here += units;
    }

    /// The units to charge to the store: those that still count. No more than `counted` do.
    pub(crate) fn send(&self, counted: u64) -> u64 {
        let units = &mut *lock(&self.0);
        units.sent = std::mem::take(&mut units.here).min(counted);
        units.sent
    }

    /// The store has not charged what was sent, or it is not known.
    pub(crate) fn not_charged(&self) {
        lock(&self.0).end(0);
    }

    /// The store has charged `granted` units of what was sent, as `made`. Returns the units that count there
    /// now instead of here, and those to be refunded there, because they were refunded on the way.
    pub(crate) fn charged(&self, made: &Charge, granted: u64) -> (u64, u64) {
        let units = &mut *lock(&self.0);
        let taken = granted.min(units.sent - units.undone);
        units.end(taken);
        units.charged = Some(made.clone().with_cost(taken));
        (taken, granted - taken)
    }

    /// The units that still count in this process.
    pub(crate) fn local(&self) -> u64 {
        let units = &*lock(&self.0);
        units.here + units.sent - units.undone
    }

    /// Forgets units that are refunded in this process.
    pub(crate) fn release(&self, released: u64) {
        let units = &mut *lock(&self.0);
        let here = released.min(units.here);
        units.here -= here;
        units.undone = units.sent.min(units.undone + released - here);
    }

    /// A refund of up to `units` units of what the store charged. `None` if it was not asked to.
    pub(crate) fn refund(&self, units: u64) -> Option<Charge> {
        let mut all = lock(&self.0);
        let charged = all.charged.take()?;
        let refunded = charged.receipt().map_or(0, |_| units.min(charged.cost()));
        let rest = charged.cost() - refunded;
        all.charged = Some(charged.clone().with_cost(rest));
        Some(charged.with_cost(refunded))
    }
}

impl Units {
    /// Nothing is on its way any more. The store has charged `taken` units.
    fn end(&mut self, taken: u64) {
        self.here += self.sent - self.undone - taken;
        (self.sent, self.undone) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{base::Quota, key::Key, policy::Policy};

    #[test]
    fn what_is_refunded_before_during_or_after_the_call_is_not_charged() {
        // Units admitted, refunded before the call and during it, and the room in the store. Then: units
        // sent, units that move to the store, units to be refunded there, units that stay.
        let rows = [
            ("nothing refunded", (10, 0, 0, 20), (10, 10, 0, 0)),
            ("little room", (10, 0, 0, 4), (10, 4, 0, 6)),
            ("no room", (10, 0, 0, 0), (10, 0, 0, 10)),
            ("before", (10, 3, 0, 20), (7, 7, 0, 0)),
            ("during", (10, 0, 3, 20), (10, 7, 3, 0)),
            ("during, with room for the rest", (10, 0, 3, 7), (10, 7, 0, 0)),
            ("during, with less room", (10, 0, 3, 8), (10, 7, 1, 0)),
            ("during, with no room", (10, 0, 3, 0), (10, 0, 0, 7)),
            ("all", (10, 4, 6, 20), (6, 0, 6, 0)),
        ];
        let charge = Charge::new(&Policy::new("p", Quota::per_day(99)), &Key::new("k"), 10);
        for (name, (admitted, before, during, room), (sent, moved, surplus, stay)) in rows {
            let reconciliation = Reconciliation::default();
            reconciliation.add(admitted);
            reconciliation.release(before);
            let units = reconciliation.send(u64::MAX);
            reconciliation.release(during);
            let ended = reconciliation.charged(&charge, units.min(room));
            assert_eq!((units, ended, reconciliation.local()), (sent, (moved, surplus), stay), "{name}");
        }
    }

    #[test]
    fn what_was_not_sent_is_owed_as_before() {
        let reconciliation = Reconciliation::default();
        reconciliation.add(5);
        assert_eq!(reconciliation.send(4), 4);
        reconciliation.release(1);
        reconciliation.not_charged();
        assert_eq!((reconciliation.local(), reconciliation.send(9)), (3, 3));
    }
}
