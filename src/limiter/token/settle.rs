//! Settles tokens: [`Limiter::settle_token`](crate::Limiter::settle_token).

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
        units::Units,
    },
    policy::Policy,
    store::Action,
};

/// What the [settlement](crate::Limiter::settle_token) of a token has done: all of its rules are settled.
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

/// Settles the token `text`: charges the given units under each rule. See
/// [`Limiter::settle_token`](crate::Limiter::settle_token).
pub(in crate::limiter) fn settle(
    decider: &Arc<Decider>,
    secret: &SettlementSecret,
    text: &str,
    policies: &[Policy],
    units: &Units<'_>,
) -> Answer<Settlement> {
    let settling = secret.open(text).and_then(|opened| {
        check_store(decider, &opened.token)?;
        let units = opened.token.by_rule(units)?;
        settlements(decider, &opened, policies, &units)
    });
    match settling {
        Ok(rules) => Answer::all(rules).and_then(all_settled),
        Err(error) => Answer::ready(Err(error)),
    }
}

/// # Errors
///
/// The store cannot settle a token, or the estimates are charged on another one.
fn check_store(decider: &Decider, token: &Token) -> Result<(), Error> {
    match decider.store_name()? {
        name if name == token.store || token.rules.is_empty() => Ok(()),
        _ => Err(Error::new(
            ErrorKind::InvalidToken,
            "the settlement token is of another store: a RedisStore settles the tokens of its prefix, and a MemoryStore \
             its own",
        )),
    }
}

/// A rule that is settled, or its policy and why it is not.
type OneRule = Result<SettledRule, (Policy, Error)>;

/// # Errors
///
/// The first error of a rule, with the names of all policies that are not settled.
fn all_settled(rules: Vec<OneRule>) -> Result<Settlement, Error> {
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

/// The settlement of each rule that has a number of units.
fn settlements(
    decider: &Arc<Decider>,
    Opened { id, token }: &Opened,
    policies: &[Policy],
    units: &[Option<u64>],
) -> Result<Vec<Answer<OneRule>>, Error> {
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
    decider.background.check_overdue();
    let settle = |(rule, policy, (action, charges)): (_, _, (Action, Vec<Charge>))| {
        settle_one(decider, rule, policy, action, &charges)
    };
    Ok(calls.into_iter().map(settle).collect())
}

fn settle_one(
    decider: &Arc<Decider>,
    rule: &TokenRule,
    policy: &Policy,
    action: Action,
    charges: &[Charge],
) -> Answer<OneRule> {
    let (policy, unit) = (policy.clone(), rule.unit.clone());
    // `drain` waits for it.
    let work = decider.background.begin_work();
    // Not `Decider::dispatch`, which rejects charges of one key: the refunds of a rule are.
    let answer = decider.store.decide(action, charges);
    let decider = decider.clone();
    answer.then(move |decided| {
        decider.answered(&decided);
        let settled = decided.and_then(|decision| outcome_of(&decision));
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

/// The outcome of a rule, and whether it was settled before.
fn outcome_of(decision: &Decision) -> Result<(Outcome, bool), Error> {
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
