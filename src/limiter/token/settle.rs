//! Settles tokens: [`Limiter::settle_token`].

use std::{fmt::Write as _, sync::Arc};

use super::{
    form::{Token, TokenRule},
    secret::{Opened, SettlementSecret},
};
use crate::{
    base::{Answer, Error, ErrorKind},
    decision::{Charge, Decision, Outcome, Verdict},
    limiter::{
        decider::{Decider, ended},
        limiter::Limiter,
    },
    policy::Policy,
    store::Action,
};

/// What the [settlement](Limiter::settle_token) of a token has done: all of its rules are settled.
#[derive(Clone, Debug)]
pub struct Settlement {
    rules: Vec<SettledRule>,
    decision: Decision,
}

/// A rule of a token that is settled.
#[derive(Clone, Debug)]
pub struct SettledRule {
    unit: Option<String>,
    outcome: Outcome,
    is_repeated: bool,
}

impl Settlement {
    /// The rules of the token that are settled, in their order.
    #[must_use]
    pub fn rules(&self) -> &[SettledRule] {
        &self.rules
    }

    /// What remains under the policies of the rules, after the settlement.
    #[must_use]
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Whether an earlier call has settled all rules, so this one changed nothing. It may have been an
    /// attempt of this call whose reply was lost.
    #[must_use]
    pub fn is_repeated(&self) -> bool {
        !self.rules.is_empty() && self.rules.iter().all(SettledRule::is_repeated)
    }

    fn of(rules: Vec<SettledRule>) -> Self {
        let decision = Decision::new(rules.iter().map(|rule| rule.outcome.clone()));
        Self { rules, decision }
    }
}

impl SettledRule {
    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        self.outcome.policy()
    }

    /// The rule's [unit](crate::Rule::unit).
    #[must_use]
    pub fn unit(&self) -> Option<&str> {
        self.unit.as_deref()
    }

    /// What remains after the settlement. The outcome of a debit shows the
    /// [units](Outcome::granted) that it charged.
    #[must_use]
    pub const fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// Whether an earlier call has settled the rule, so this one changed nothing. It may have been an attempt
    /// of this call whose reply was lost.
    #[must_use]
    pub const fn is_repeated(&self) -> bool {
        self.is_repeated
    }
}

/// Settlements of [tokens](crate::settlement).
impl Limiter {
    /// Settles the [token](crate::Reservation::into_token) of a reservation: charges `units` in total instead
    /// of the estimate, as [`Reservation::settle`](crate::Reservation::settle) does. Another process has made
    /// the token, with a limiter on the same store.
    ///
    /// `policies` has the policy of each of the token's rules, and may have others. Policies are found by
    /// their name and algorithm. Their quotas may have changed since the charge.
    ///
    /// Each rule is settled once: in one step, the store settles it and notes that. A second call changes
    /// nothing, even if it has other units, and [says so](SettledRule::is_repeated). So repeat a call that
    /// failed, or whose answer was lost, until it is answered. The rules are settled concurrently, in separate
    /// steps.
    ///
    /// The store's clock decides whether the token has expired; on Redis, the server's. The
    /// [failure modes](crate::FailureMode) do not apply: while the store fails, this is an error.
    ///
    /// # Errors
    ///
    /// * [`InvalidToken`](ErrorKind::InvalidToken): the text is not a token, is truncated, was changed, or is
    ///   sealed with another secret.
    /// * [`ExpiredToken`](ErrorKind::ExpiredToken): it was not settled in its lifetime, so the estimate stays
    ///   charged.
    /// * [`InvalidConfig`](ErrorKind::InvalidConfig): a policy of the token is not among `policies`, the rules
    ///   have several units, which [`settle_token_each`](Self::settle_token_each) settles, or the store is a
    ///   custom one. Nothing is settled.
    /// * Every error of the store. The message lists the policies whose rules are not settled; the others
    ///   are. Repeat the call.
    ///
    /// # Example
    ///
    /// See the module [`settlement`](crate::settlement).
    pub fn settle_token(
        &self,
        secret: &SettlementSecret,
        token: &str,
        policies: &[Policy],
        units: u64,
    ) -> Answer<Settlement> {
        self.settle_rules(secret, token, policies, |token| token.in_one_unit(units))
    }

    /// [`settle_token`](Self::settle_token) for rules with [units](crate::Rule::unit): charges the given
    /// number of each unit in total. Rules with other units stay unsettled, and another call can settle them.
    ///
    /// # Errors
    ///
    /// The same as [`settle_token`](Self::settle_token), and [`InvalidConfig`](ErrorKind::InvalidConfig),
    /// without settling anything, if no rule has one of the units.
    pub fn settle_token_each<'a>(
        &self,
        secret: &SettlementSecret,
        token: &str,
        policies: &[Policy],
        units: impl IntoIterator<Item = (&'a str, u64)>,
    ) -> Answer<Settlement> {
        self.settle_rules(secret, token, policies, |token| token.by_rule(units))
    }

    fn settle_rules(
        &self,
        secret: &SettlementSecret,
        text: &str,
        policies: &[Policy],
        units: impl FnOnce(&Token) -> Result<Vec<Option<u64>>, Error>,
    ) -> Answer<Settlement> {
        let settling = secret.open(text).and_then(|opened| {
            let units = units(&opened.token)?;
            self.decider.settlements(&opened, policies, &units)
        });
        match settling {
            Ok(rules) => Answer::all(rules).and_then(all_settled),
            Err(error) => Answer::ready(Err(error)),
        }
    }
}

/// A rule that is settled, or the name of its policy and why it is not.
type Settled = Result<SettledRule, (Policy, Error)>;

/// # Errors
///
/// The first error of a rule, with the names of all policies that are not settled.
fn all_settled(rules: Vec<Settled>) -> Result<Settlement, Error> {
    let (mut settled, mut failed) = (Vec::new(), Vec::new());
    for rule in rules {
        match rule {
            Ok(rule) => settled.push(rule),
            Err(failure) => failed.push(failure),
        }
    }
    let Some((_, error)) = failed.first() else { return Ok(Settlement::of(settled)) };
    let names: Vec<String> = failed.iter().map(|(policy, _)| format!("`{}`", policy.name())).collect();
    let mut message = format!("the settlement token is not settled under {}: {error}", names.join(", "));
    if error.kind() != ErrorKind::ExpiredToken {
        message += "; repeat the settlement";
    }
    if !settled.is_empty() {
        let _ = write!(message, " ({} of its other rules are settled)", settled.len());
    }
    Err(Error::new(error.kind(), message).with_source(error.clone()))
}

impl Decider {
    /// The settlement of each rule that has a number of units.
    fn settlements(
        self: &Arc<Self>,
        Opened { id, token }: &Opened,
        policies: &[Policy],
        units: &[Option<u64>],
    ) -> Result<Vec<Answer<Settled>>, Error> {
        ensure!(
            self.store.backend().is_some(),
            "only a RedisStore or a MemoryStore, or a store around one, can settle a token"
        );
        let mut calls = Vec::new();
        for (place, (rule, units)) in token.rules.iter().zip(units).enumerate() {
            let Some(units) = units else { continue };
            let Some(policy) = policies.iter().find(|policy| policy.label() == rule.label) else {
                return Err(invalid!(
                    "the settlement token needs the policy `{}`, which is not among the given ones",
                    rule.label
                ));
            };
            let name = format!("%settled.{:032x}.{place}", u128::from_be_bytes(*id));
            calls.push((rule, policy, rule.settlement(policy, *units, &name, token.lifetime)?));
        }
        self.background.check_overdue();
        let settle = |(rule, policy, (action, charges)): (_, _, (Action, Vec<Charge>))| {
            self.settle_one(rule, policy, action, &charges)
        };
        Ok(calls.into_iter().map(settle).collect())
    }

    fn settle_one(
        self: &Arc<Self>,
        rule: &TokenRule,
        policy: &Policy,
        action: Action,
        charges: &[Charge],
    ) -> Answer<Settled> {
        let (decider, policy, unit) = (self.clone(), policy.clone(), rule.unit.clone());
        // `drain` waits for it.
        let work = self.background.begin_work();
        self.store.decide(action, charges).then(move |decided| {
            decider.answered(&decided);
            let settled = decided.and_then(|decision| settled(&decision));
            // Only units that are charged now can reach a threshold.
            let is_charged = matches!(settled, Ok((_, false)));
            let charged = if is_charged { action } else { Action::Peek };
            let without_stamp = match &settled {
                Ok((outcome, _)) => Ok(Decision::new([outcome.clone()])),
                Err(error) if error.kind() == ErrorKind::ExpiredToken => Ok(Decision::new([])),
                Err(error) => Err(error.clone()),
            };
            let _ = ended(charged, without_stamp, &decider.local);
            drop(work);
            Ok(match settled {
                Ok((outcome, is_repeated)) => {
                    let outcome = match action {
                        Action::Debit => outcome.of_debit(&policy, policy.settings().max_debt),
                        _ => outcome,
                    };
                    let outcome = if is_repeated { outcome.with_granted(0) } else { outcome };
                    Ok(SettledRule { unit, outcome, is_repeated })
                }
                Err(error) => Err((policy, error)),
            })
        })
    }
}

/// The outcome of a rule, and whether it was settled before.
fn settled(decision: &Decision) -> Result<(Outcome, bool), Error> {
    let is_stamp = |outcome: &&Outcome| outcome.charge().stamp().is_some();
    let outcomes = decision.all_outcomes();
    let stamp = outcomes.iter().find(is_stamp);
    // Of several refunds, the last one shows what remains after all of them.
    let outcome = outcomes.iter().rev().find(|outcome| !is_stamp(outcome));
    let Some((stamp, outcome)) = stamp.zip(outcome) else {
        return Err(Error::new(ErrorKind::StoreReply, "the store has not settled the token"));
    };
    let is_repeated = match stamp.verdict() {
        Verdict::Deny { retry_after: None } => {
            return Err(Error::new(
                ErrorKind::ExpiredToken,
                "the settlement token has expired, so the estimate stays charged",
            ));
        }
        verdict => verdict.is_denied(),
    };
    Ok((outcome.clone(), is_repeated))
}
