//! The operations of JSON lines.

use std::time::Duration;

use tower_ratelimit::{Decision, Error, ErrorKind, Policy, Quota};

use crate::{
    engine::{Engine, stored},
    formats::Op,
    request::{Command, QuotaChange},
};

/// Carries out `command`. A command about several policies may take several decisions.
///
/// # Errors
///
/// The error is of the kind [`InvalidConfig`](ErrorKind::InvalidConfig) if the command is invalid.
pub(crate) async fn carry_out(engine: &mut Engine, command: &Command) -> Result<Vec<Decision>, Error> {
    let Command { request, op, .. } = command;
    engine.advance(request.time).await?;
    let limiter = engine.limiter.clone();
    let earlier = |engine: &Engine| {
        let named = command.of.as_ref().map(|name| (name, engine.named.get(name).cloned()));
        match named {
            Some((name, None)) => Err(invalid(&format!("no decision has the id `{name}`"))),
            Some((_, found)) => Ok(found),
            None => Ok(None),
        }
    };
    let decision = match op {
        Op::Charge => {
            let decision = engine.charge(request).await?;
            engine.begin(request, &decision, command.id.as_ref()).await?;
            decision
        }
        Op::ChargeUpTo => {
            let [charge] = &request.charges[..] else {
                return Err(invalid("`charge-up-to` is for one charge: name its policy"));
            };
            let answer = limiter.check_up_to(&engine.policies[charge.rule], &charge.key, charge.cost);
            let decision = stored(answer.await?)?;
            engine.begin(request, &decision, command.id.as_ref()).await?;
            decision
        }
        Op::Peek => peek(engine, command).await?,
        Op::Debit | Op::Refund => {
            let units = request.charges.first().map_or(1, |charge| charge.cost);
            if let Some(earlier) = earlier(engine)? {
                let answer = match op {
                    Op::Debit => limiter.debit(&earlier, units),
                    _ => limiter.refund(&earlier, units),
                };
                return Ok(vec![stored(answer.await?)?]);
            }
            let mut decisions = Vec::with_capacity(request.charges.len());
            for charge in &request.charges {
                let policy = &engine.policies[charge.rule];
                let decision = if *op == Op::Debit {
                    let free = limiter.check(policy, &charge.key, 0).await?;
                    limiter.debit(&free, charge.cost).await?
                } else {
                    limiter.operator().refund_latest(policy, &charge.key, charge.cost).await?
                };
                decisions.push(stored(decision)?);
            }
            return Ok(decisions);
        }
        Op::Release => {
            let name =
                command.of.as_ref().ok_or_else(|| invalid("`release` needs the id of a decision: `of`"))?;
            let released = engine.named.remove(name);
            let released = released.ok_or_else(|| invalid(&format!("no decision has the id `{name}`")))?;
            engine.release(&released).await?;
            drop(released);
            state(engine, command).await?
        }
        Op::Reset | Op::Ban | Op::Unban => {
            for charge in &request.charges {
                let (policy, operator) = (&engine.policies[charge.rule], limiter.operator());
                match op {
                    Op::Reset => operator.reset(policy, &charge.key).await?,
                    Op::Ban => {
                        let time = command.ban_us.ok_or_else(|| invalid("`ban` needs a time: `ban_us`"))?;
                        operator.ban(policy, &charge.key, Duration::from_micros(time)).await?;
                    }
                    _ => operator.unban(policy, &charge.key).await?,
                }
            }
            // A cost of 0 is admitted even if the key is banned.
            let is_reset = *op == Op::Reset;
            if is_reset { state(engine, command).await? } else { peek(engine, command).await? }
        }
        Op::SetQuota => {
            let mut changed = engine.policies.clone();
            for charge in &request.charges {
                changed[charge.rule] = with_quota(&changed[charge.rule], &command.quota)?;
            }
            engine.policies = changed;
            state(engine, command).await?
        }
    };
    Ok(vec![decision])
}

async fn peek(engine: &Engine, command: &Command) -> Result<Decision, Error> {
    stored(engine.limiter.peek_all(&engine.charges(&command.request)).await?)
}

/// What remains for the charges of `command`.
async fn state(engine: &Engine, command: &Command) -> Result<Decision, Error> {
    let charges: Vec<_> =
        engine.charges(&command.request).into_iter().map(|charge| charge.with_cost(0)).collect();
    stored(engine.limiter.peek_all(&charges).await?)
}

fn with_quota(policy: &Policy, change: &QuotaChange) -> Result<Policy, Error> {
    let old = policy.quota();
    let limit = change.limit.unwrap_or_else(|| old.limit());
    let quota = match change.period_us {
        Some(period) => Quota::try_new(limit, Duration::from_micros(period))?,
        None => old.with_limit(limit)?,
    };
    policy.with_quota(change.burst.map_or(Ok(quota), |burst| quota.try_burst(burst))?)
}

fn invalid(problem: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, problem.to_owned())
}
