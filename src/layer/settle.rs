//! What happens to a request's charge once its response is known.

use std::sync::Arc;

use http::{Response, request};

use super::{
    context::RequestContext,
    rule::{CountIf, Rule, Settles},
};
use crate::{
    decision::{Charge, Decision, Outcome},
    limiter::{Limiter, Refund, Reservation},
};

/// Pending refunds and reservations of an admitted request.
pub(super) struct Unsettled {
    limiter: Arc<Limiter>,
    decision: Decision,
    /// The charges that count only with some responses. A charge counts if one of its functions returns true.
    counted: Vec<(Charge, CountIf)>,
    /// Whether to refund the charge if this is dropped.
    refunds: bool,
    /// Whether the service runs. If it panics, this stays so.
    is_running: bool,
    settling: Option<Box<Settling>>,
}

impl Unsettled {
    /// What becomes of a charge once the response is known. `None` if the charge always stays, or the request
    /// is denied and the layer only reports.
    #[inline]
    pub(super) fn new(
        context: &RequestContext,
        request: &request::Parts,
        decision: &Decision,
    ) -> Option<Box<Self>> {
        if settles(context) { Self::of_charge(context, request, decision) } else { None }
    }

    fn of_charge(
        context: &RequestContext,
        request: &request::Parts,
        decision: &Decision,
    ) -> Option<Box<Self>> {
        if decision.is_denied() {
            return None;
        }
        let (limiter, charged) = (context.limiter(), charged(context, request, decision));
        let of_rules = |is_meant: &dyn Fn(&Rule) -> bool| {
            let has = |outcome: &Outcome| {
                charged
                    .iter()
                    .any(|(one, rule)| one.charge().is_of_same_count(outcome.charge()) && is_meant(rule))
            };
            decision.of_outcomes(has).filter(|decision| !decision.is_denied())
        };
        let reservation = reserve(context, &limiter, |unit, settles| {
            of_rules(&|rule| rule.unit == unit && rule.settles == Some(settles))
        });
        let of_bytes = of_rules(&|rule| rule.settles == Some(Settles::Bytes));
        let of_bytes = of_bytes.map(|decision| Reservation::new(&limiter, &decision));
        let meter = of_bytes.map(|reservation| Meter { reservation, bytes: 0, charged: 0 });
        let settling =
            (reservation.is_some() || meter.is_some()).then(|| Box::new(Settling { reservation, meter }));
        let always = |charge: &Charge| {
            charged.iter().any(|(one, rule)| one.charge().is_of_same_count(charge) && rule.counts.is_none())
        };
        let counted = |(outcome, rule): &(&Outcome, &Rule)| {
            let counts = rule.counts.clone().filter(|_| !always(outcome.charge()))?;
            Some((outcome.charge().clone(), counts))
        };
        Some(Box::new(Self {
            limiter,
            decision: decision.clone(),
            counted: charged.iter().filter_map(counted).collect(),
            refunds: context.config.refunds_cancelled,
            is_running: false,
            settling,
        }))
    }

    /// Notes whether the service runs.
    pub(super) fn set_running(unsettled: &mut Option<Box<Self>>, is_running: bool) {
        if let Some(unsettled) = unsettled {
            unsettled.is_running = is_running;
        }
    }

    /// Refunds the charge unless the response counts. Returns what its body settles, too.
    pub(super) fn responded<B>(
        mut self,
        response: Response<B>,
    ) -> (Response<B>, Option<Refund>, Option<Box<Settling>>) {
        self.refunds = false;
        let (response, body) = response.into_parts();
        let refund =
            self.uncounted(|counts| counts(&response)).map(|uncounted| Refund::of(&self.limiter, &uncounted));
        (Response::from_parts(response, body), refund, self.settling.take())
    }

    /// Keeps the charge.
    pub(super) fn keep(mut self) {
        self.refunds = false;
    }

    /// Called if the service fails without a response. Refunds the charge as for a cancelled request, and under the
    /// rules that count only if the response says so.
    pub(super) fn failed(unsettled: &mut Option<Box<Self>>) {
        let Some(mut this) = unsettled.take() else { return };
        if !this.refunds
            && let Some(uncounted) = this.uncounted(|_| false)
        {
            this.decision = uncounted;
            this.refunds = true;
        }
    }

    /// The decision of the policies under which the request does not count. Nothing more is charged under
    /// them.
    fn uncounted(&self, counts: impl Fn(&CountIf) -> bool) -> Option<Decision> {
        let (counted, uncounted): (Vec<_>, Vec<_>) =
            self.counted.iter().partition(|(_, counted)| counts(counted));
        if uncounted.is_empty() {
            return None;
        }
        let has = |charges: &[&(Charge, CountIf)], outcome: &Outcome| {
            charges.iter().any(|(one, _)| one.is_of_same_count(outcome.charge()))
        };
        let decision = self.decision.of_outcomes(|one| has(&uncounted, one) && !has(&counted, one))?;
        self.settling.iter().for_each(|settling| settling.stop_charging(&decision));
        Some(decision)
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        // A panic may be caught before this is dropped, or unwind through it.
        let has_panicked = self.is_running || std::thread::panicking();
        if self.refunds && !has_panicked {
            // The units that a handler recorded as used are not charged either.
            self.settling.iter().for_each(|settling| settling.stop_charging(&self.decision));
            drop(Refund::of(&self.limiter, &self.decision));
        }
    }
}

/// The reservations of a request until its response's body ends.
pub(super) struct Settling {
    /// The handler's reservation. Usually the last handle: dropping it ends the reservation.
    reservation: Option<Reservation>,
    meter: Option<Meter>,
}

impl Settling {
    /// Charges no more under the policies of `refunded`.
    fn stop_charging(&self, refunded: &Decision) {
        let of_bytes = self.meter.iter().map(|meter| &meter.reservation);
        self.reservation.iter().chain(of_bytes).for_each(|reservation| reservation.stop_charging(refunded));
    }

    /// The body has sent this many bytes.
    pub(super) fn add(&mut self, bytes: usize) {
        let Some(meter) = &mut self.meter else { return };
        meter.bytes = meter.bytes.saturating_add(bytes as u64);
        if meter.bytes - meter.charged >= PART {
            meter.charged = meter.bytes;
            drop(meter.reservation.extend_to(meter.bytes));
        }
    }
}

/// Charges the bytes of a response's body.
struct Meter {
    reservation: Reservation,
    bytes: u64,
    /// The bytes that are charged already.
    charged: u64,
}

/// The bytes of a stream that are charged in one step.
const PART: u64 = 256 * 1024;

impl Drop for Meter {
    /// Charges the larger of the cost and the bytes sent: the body has ended or was dropped, or there was no response.
    fn drop(&mut self) {
        drop(self.reservation.extend_to(self.bytes));
    }
}

/// Whether a charge may be settled after the decision.
#[inline]
fn settles(context: &RequestContext) -> bool {
    context.config.refunds_cancelled || context.config.settles
}

/// The places of the rules whose charge is refunded if the request is cancelled before its decision. An
/// estimate of a request that `is_unidentified` stays charged, as all of it does. `None` if no rule's charge
/// is refunded.
#[inline]
pub(super) fn refunded_if_cancelled(context: &RequestContext, is_unidentified: bool) -> Option<Vec<usize>> {
    if !settles(context) {
        return None;
    }
    let is_refunded = |rule: &Rule| {
        context.config.refunds_cancelled || !is_unidentified && rule.settles == Some(Settles::HandlerOrRefund)
    };
    let rules = context.config.rules.rules.iter().enumerate();
    let refunded: Vec<_> = rules.filter(|(_, (_, rule))| is_refunded(rule)).map(|(at, _)| at).collect();
    Some(refunded).filter(|refunded| !refunded.is_empty())
}

/// The reservation for the handler of a request. It covers nothing if the request is not charged under a rule
/// that reserves units. `None` if there is no such rule.
#[inline]
pub(super) fn reservation(
    context: &RequestContext,
    unsettled: Option<&Unsettled>,
) -> Option<Box<Reservation>> {
    if !context.config.settles {
        return None;
    }
    let charged = unsettled.and_then(|unsettled| unsettled.settling.as_ref()?.reservation.clone());
    charged.or_else(|| reserve(context, &context.config.limiter, |_, _| None)).map(Box::new)
}

/// One reservation for all rules that reserve, of what `charged` returns for each unit and way to end (`reserve` or
/// `reserve_or_refund`). It covers nothing of a unit that is not charged. `None` if no rule reserves units.
fn reserve(
    context: &RequestContext,
    limiter: &Limiter,
    charged: impl Fn(Option<&'static str>, Settles) -> Option<Decision>,
) -> Option<Reservation> {
    let mut groups: Vec<(Option<&'static str>, Settles)> = Vec::new();
    for (_, rule) in context.config.rules.rules.iter().filter(|(_, rule)| rule.reserves()) {
        let group = (rule.unit, rule.settles?);
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    let part = |(unit, settles)| {
        let decision = charged(unit, settles).unwrap_or_else(Decision::not_limited);
        let part = Reservation::of(limiter, &decision, unit);
        if settles == Settles::HandlerOrRefund { part.or_refund() } else { part }
    };
    groups.into_iter().map(part).reduce(Reservation::and)
}

/// The outcomes of `decision`, which has charged `request`, each with its rules.
fn charged<'a>(
    context: &'a RequestContext,
    request: &request::Parts,
    decision: &'a Decision,
) -> Vec<(&'a Outcome, &'a Rule)> {
    let applicable = context.applicable(request).unwrap_or_default();
    let known = |at: usize| context.rule(at).and_then(|rule| rule.policy.known());
    // Usually one rule: another one belongs to another reading of the path, see `Routes::of`.
    let rules_of = |outcome: &'a Outcome| {
        let made_by = outcome.charge().rule();
        let is_same = move |at: usize| {
            let policy = known(made_by).filter(|policy| policy.name() == outcome.policy().name());
            policy.is_some_and(|policy| known(at).is_some_and(|other| other.name() == policy.name()))
        };
        let its = applicable.iter().copied().filter(move |at| *at == made_by || is_same(*at));
        its.filter_map(|at| context.rule(at)).map(move |rule| (outcome, rule)).collect::<Vec<_>>()
    };
    decision.all_outcomes().iter().flat_map(rules_of).collect()
}
