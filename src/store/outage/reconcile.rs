//! After an outage, charges and refunds to the store what was admitted and refunded without it.

use std::{
    slice,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::stream::{self, StreamExt as _};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

use super::LocalCounts;
use crate::{
    base::{
        Now,
        panics::{answer_of, caught_in},
        sync::lock,
    },
    decision::Charge,
    store::{Action, Store},
};

/// How many charges are reconciled concurrently: about as many as fit into a call.
const MOST_CONCURRENT: usize = 128;
/// The pause after the start of a round's last call before the next round, unless `drain` waits for it.
const PAUSE: Duration = Duration::from_millis(250);

/// Charges to `store` what is owed to it, in the background, unless a round has just begun. Call it when the
/// store has answered.
pub(crate) fn start_reconciling(local: &Arc<LocalCounts<dyn Store>>, store: &Arc<dyn Store>) {
    let Ok(runtime) = Handle::try_current() else { return };
    {
        let owing = &mut *lock(&local.owing);
        if owing.len() == 0 {
            // A round under way may put units back.
            return local.owes.store(local.reconciling.count() > 0, Ordering::Relaxed);
        }
        if owing.pause_until.is_some_and(|end| Instant::now() < end) {
            return;
        }
        // The pause is longer for each round whose calls hang, perhaps because its runtime is not driven.
        let rounds = (local.reconciling.count() + 1).min(4) as u32;
        owing.pause(PAUSE * rounds * rounds);
    }
    let (local, store) = (local.clone(), store.clone());
    // The runtime may end, or not be driven, so everything stays owed until its call is made.
    runtime.spawn(async move {
        let _under_way = local.reconciling.begin();
        // Refunds first, because they make room for the charges.
        let refunds = stream::iter(0..lock(&local.owing).refunds.len());
        refunds
            .for_each_concurrent(MOST_CONCURRENT, |_| async {
                let _ = caught_in(refund_next(&local, &store)).await;
            })
            .await;
        let charges = {
            let charges = &mut lock(&local.owing).charges;
            // The round goes from the end, where unsent charges are put back. Reversed, the oldest are at the
            // end.
            charges.reverse();
            stream::iter((0..charges.len()).rev())
        };
        let (local, store) = (&local, &store);
        // A twin that panics stops no other charge.
        charges
            .for_each_concurrent(MOST_CONCURRENT, |place| async move {
                let _ = caught_in(reconcile_one(local, store, place)).await;
            })
            .await;
    });
}

/// Charges to `store` what is owed to it, again until that succeeds.
pub(crate) async fn reconcile(local: &Arc<LocalCounts<dyn Store>>, store: &Arc<dyn Store>) {
    loop {
        {
            let owing = &mut *lock(&local.owing);
            if local.reconciling.count() == 0 {
                if owing.len() == 0 {
                    return;
                }
                owing.pause_until = None;
            }
        }
        start_reconciling(local, store);
        sleep(PAUSE / 10).await;
    }
}

/// Sends the next refund to `store`. Puts it back if it was not sent.
async fn refund_next(local: &LocalCounts<dyn Store>, store: &Arc<dyn Store>) {
    let (refund, _sent) = {
        let owing = &mut *lock(&local.owing);
        owing.pause(PAUSE);
        let Some(refund) = owing.refunds.pop_front() else { return };
        let sent = owing.send(refund.policy(), refund.key());
        (refund, sent)
    };
    let refunded = answer_of(|| store.decide(Action::Refund, slice::from_ref(&refund))).await;
    if refunded.is_err_and(|error| !error.kind().may_have_charged()) {
        lock(&local.owing).refunds.push_back(refund);
    }
}

/// Charges to `store` the units that it is owed at `place`. Puts them back if they were not sent.
async fn reconcile_one(local: &LocalCounts<dyn Store>, store: &Arc<dyn Store>, place: usize) {
    let Some(counts) = local.counts.get() else { return };
    let (mut name, owed, units, _sent) = {
        let owing = &mut *lock(&local.owing);
        owing.pause(PAUSE);
        let Some((name, owed)) = owing.charges.swap_remove_index(place) else { return };
        // Units that have been replenished no longer count.
        let peek = Charge::new(&owed.share, &name.1, 0);
        let Now::Ready(Ok(local)) = counts.decide(Action::Peek, &[peek]).now() else { return };
        let counted = owed.share.capacity().saturating_sub(local.remaining().unwrap_or_default());
        let units = owed.units.send(counted);
        let sent = owing.send(&owed.policy, &name.1);
        (name, owed, units, sent)
    };
    if units == 0 {
        return;
    }
    // Without the penalty, because no request is denied here whose denial could count.
    let charge = Charge::new(&owed.policy.without_penalty(), &name.1, units);
    let charged = match answer_of(|| store.decide(Action::ChargeUpTo, &[charge])).await {
        Ok(decision) => decision.all_outcomes().first().cloned(),
        // If it may have been charged, another attempt could charge it twice.
        Err(error) if error.kind().may_have_charged() => None,
        Err(_) => {
            let owing = &mut *lock(&local.owing);
            owed.units.not_charged();
            // Units that are admitted later are charged together with these, unless newer ones are owed
            // already.
            name.3 = 0;
            if owing.charges.contains_key(&name) {
                owing.number += 1;
                name.3 = owing.number;
            }
            owing.charges.insert(name, owed);
            return;
        }
    };
    let Some(charged) = charged else { return owed.units.not_charged() };
    local.watchers.charged_apart(&charged, 0);
    {
        let owing = &mut *lock(&local.owing);
        let (taken, surplus) = owed.units.charged(charged.charge(), charged.granted());
        // Units that the store did not take still count here, or every outage would be a new quota. Units
        // that were admitted during the call count, too.
        drop(counts.decide(Action::Refund, &[Charge::new(&owed.share, &name.1, taken)]));
        let Some(surplus) = charged.refund(charged.claim_refund(surplus).units) else { return };
        owing.refunds.push_front(surplus);
    }
    refund_next(local, store).await;
}
