//! The span of a decision, for OpenTelemetry: see the guide to tracing.

use crate::base::Error;
#[cfg(feature = "tracing")]
use {
    super::{Decision, Outcome, Verdict},
    crate::base::panics::caught,
    tracing::{Level, Span, field::Empty},
};

#[cfg(feature = "tracing")]
const NAME: &str = "ratelimit.decision";

/// The span of a decision that is being made. Without the feature `tracing`, or while no subscriber wants the
/// span, it does nothing. A subscriber that panics changes no decision.
#[derive(Clone, Default)]
pub(crate) struct DecisionSpan {
    // Boxed because it is rare, and what has it is moved at each decision.
    #[cfg(feature = "tracing")]
    span: Option<Box<Span>>,
}

#[cfg(feature = "tracing")]
impl DecisionSpan {
    #[inline]
    pub(crate) fn is_enabled() -> bool {
        tracing::span_enabled!(target: "tower_ratelimit::span", Level::DEBUG)
    }

    /// A new span, in the current one.
    #[cold]
    pub(crate) fn new(action: &str) -> Self {
        let new = || {
            tracing::debug_span!(
                target: "tower_ratelimit::span",
                NAME,
                ratelimit.action = action,
                ratelimit.policy = Empty,
                ratelimit.verdict = Empty,
                ratelimit.limit = Empty,
                ratelimit.remaining = Empty,
                ratelimit.retry_after = Empty,
                ratelimit.source = Empty,
                ratelimit.failure_mode = Empty,
                ratelimit.shadow = Empty,
                ratelimit.degraded = Empty,
                ratelimit.key_hash = Empty,
                error.type = Empty,
                otel.status_code = Empty,
            )
        };
        Self { span: caught(new).map(Box::new) }
    }

    /// The current span, if it is a decision's. Calls that belong to no decision, such as the announcement of
    /// an instance, have no span.
    #[cfg(feature = "redis")]
    #[cold]
    pub(crate) fn current() -> Self {
        let is_decision = |span: &Span| span.metadata().is_some_and(|metadata| metadata.name() == NAME);
        Self { span: caught(Span::current).filter(is_decision).map(Box::new) }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn span(&self) -> Option<&Span> {
        self.span.as_deref()
    }

    pub(crate) fn in_scope<T>(&self, make: impl FnOnce() -> T) -> T {
        match &self.span {
            Some(span) => {
                let entered = caught(|| span.enter());
                let made = make();
                caught(|| drop(entered));
                made
            }
            None => make(),
        }
    }

    /// Ends the span with the decision.
    #[cold]
    pub(crate) fn end(self, decided: &Result<Decision, Error>) {
        let Some(span) = &self.span else { return };
        let record = || match decided {
            Ok(decision) => record(span, decision),
            Err(error) => {
                span.record("error.type", error.kind().as_str());
                span.record("otel.status_code", "ERROR");
            }
        };
        caught(record);
    }
}

#[cfg(feature = "tracing")]
impl Drop for DecisionSpan {
    /// The subscriber learns that the span is closed.
    #[inline]
    fn drop(&mut self) {
        if let Some(span) = self.span.take() {
            caught(|| drop(span));
        }
    }
}

/// OpenTelemetry has only signed integers: tracing-opentelemetry exports a `u64` as a string.
#[cfg(feature = "tracing")]
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(feature = "tracing")]
fn record(span: &Span, decision: &Decision) {
    span.record("ratelimit.source", decision.source().as_str());
    let verdict = match decision.verdict() {
        Verdict::Admit => "admitted",
        Verdict::Delay(_) => "delayed",
        Verdict::Deny { .. } if decision.is_banned() => "banned",
        Verdict::Deny { .. } if decision.is_shed() => "shed",
        Verdict::Deny { .. } => "denied",
    };
    span.record("ratelimit.verdict", verdict);
    if let Some(retry_after) = decision.retry_after() {
        span.record("ratelimit.retry_after", retry_after.as_secs_f64());
    }
    if let Some(binding) = decision.binding() {
        span.record("ratelimit.policy", binding.policy().name());
        span.record("ratelimit.limit", signed(binding.capacity()));
        span.record("ratelimit.remaining", signed(binding.remaining()));
        if let Some(key_hash) = binding.key().secret_digest() {
            span.record("ratelimit.key_hash", &*key_hash);
        }
    }
    if let Some(failure) = decision.failure() {
        // Only `FailureMode::Open` makes decisions without an outcome.
        let mode = decision.binding().map_or_else(
            || "open".to_owned(),
            |binding| binding.policy().settings().failure_mode.to_string(),
        );
        span.record("ratelimit.failure_mode", &*mode);
        span.record("error.type", failure.kind().as_str());
    }
    let name = |outcome: &Outcome| outcome.policy().name().to_owned();
    let is_shadow = |outcome: &&Outcome| outcome.is_denied() && outcome.is_shadow();
    let shadows: Vec<String> = decision.shadows().iter().filter(is_shadow).map(name).collect();
    let degraded: Vec<String> = decision.degraded().map(name).collect();
    for (field, names) in [("ratelimit.shadow", shadows), ("ratelimit.degraded", degraded)] {
        if !names.is_empty() {
            span.record(field, &*names.join(","));
        }
    }
}

#[cfg(not(feature = "tracing"))]
#[expect(clippy::unused_self, clippy::missing_const_for_fn, reason = "the same as with the feature")]
impl DecisionSpan {
    #[inline]
    pub(crate) fn is_enabled() -> bool {
        false
    }

    pub(crate) fn new(_: &str) -> Self {
        Self {}
    }

    pub(crate) fn in_scope<T>(&self, make: impl FnOnce() -> T) -> T {
        make()
    }

    pub(crate) fn end(self, _: &Result<super::Decision, Error>) {}
}
