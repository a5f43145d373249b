//! The rules that the answers of every algorithm obey.

use std::time::Duration;

use tower_ratelimit::store::Action;

use super::{contest::Contest, failure::Finding, said::Said, step::Step};

const TICK: Duration = Duration::from_micros(1);

/// The rules of all algorithms, checked after a decision.
impl Contest {
    /// A denial says when the request is admitted.
    pub(super) async fn check_denial(
        &mut self,
        step: &Step,
        key: u64,
        cost: u64,
        said: Said,
    ) -> Result<(), Finding> {
        if said.is_admitted() {
            return Ok(());
        }
        if cost == 0 {
            return Err(self.broken("a cost of 0 is admitted", step, said));
        }
        self.retry = said.verdict.retry_after();
        let Some(wait) = self.retry else {
            if cost <= self.policy.capacity() {
                return Err(self.broken("a denied cost within the capacity has a retry time", step, said));
            }
            return Ok(());
        };
        if cost > self.policy.capacity() {
            return Err(self.broken("a cost above the capacity is denied without a retry time", step, said));
        }
        if !self.reaches(wait) {
            return Ok(());
        }
        self.clock.advance(wait - TICK);
        let early = self.peek(step, key, cost).await?;
        self.clock.advance(TICK);
        let then = self.peek(step, key, cost).await?;
        self.clock.step_back(wait);
        if early.is_admitted() {
            return Err(self.broken("a request is not admitted before its retry time", step, said));
        }
        if self.exact_retry && !then.is_admitted() {
            return Err(self.broken("a request is admitted after its retry time", step, said));
        }
        Ok(())
    }

    pub(super) async fn check_remaining(
        &mut self,
        step: &Step,
        key: u64,
        remaining: u64,
    ) -> Result<(), Finding> {
        let most = self.peek(step, key, remaining).await?;
        if !most.is_admitted() {
            return Err(self.broken("the remaining units can be charged", step, most));
        }
        let above = self.peek(step, key, remaining + 1).await?;
        if above.is_admitted() {
            return Err(self.broken("no more than the remaining units can be charged", step, above));
        }
        Ok(())
    }

    pub(super) async fn changed_nothing(
        &mut self,
        step: &Step,
        key: u64,
        before: &[Said],
    ) -> Result<(), Finding> {
        let after = self.peeks(step, key).await?;
        match before.iter().zip(&after).find(|(before, after)| before != after) {
            Some((before, after)) => {
                let words = format!("a peek returned \"{before}\" before and \"{after}\" after it");
                Err(self.finding(Some("a denied request changes nothing"), step, words.clone(), words))
            }
            None => Ok(()),
        }
    }

    /// The decisions that a key's state leads to now.
    pub(super) async fn peeks(&mut self, step: &Step, key: u64) -> Result<Vec<Said>, Finding> {
        let mut said = Vec::new();
        for cost in [0, 1, self.policy.capacity()] {
            said.push(self.peek(step, key, cost).await?);
        }
        Ok(said)
    }

    async fn peek(&mut self, step: &Step, key: u64, cost: u64) -> Result<Said, Finding> {
        let charge = self.charge(key, cost);
        Ok(self.ask(step, Action::Peek, &[charge]).await?.said[0])
    }

    pub(super) fn broken(&self, rule: &'static str, step: &Step, said: Said) -> Finding {
        self.finding(Some(rule), step, said.to_string(), said.to_string())
    }
}
