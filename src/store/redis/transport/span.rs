//! The span of a call to Redis, for OpenTelemetry: see the guide to tracing.

#[cfg(feature = "tracing")]
use tracing::{Span, field::Empty};

use super::queue::Queued;
#[cfg(feature = "tracing")]
use crate::base::ErrorKind;
use crate::{
    base::{Error, panics::caught},
    decision::DecisionSpan,
    store::redis::job::Job,
};

/// The span of a call that is under way. It does nothing unless one of the decisions has a span.
#[derive(Default)]
pub(super) struct CallSpan {
    // Boxed because it is rare, and part of the future of a lane.
    #[cfg(feature = "tracing")]
    call: Option<Box<Call>>,
}

#[cfg(feature = "tracing")]
struct Call {
    span: Span,
    /// The decisions that are not late.
    in_time: usize,
}

impl CallSpan {
    #[inline]
    pub(super) fn begin(jobs: &[&Job], server: &str) -> Self {
        // A subscriber that panics must not end the lane.
        if DecisionSpan::is_enabled() {
            caught(|| Self::of(jobs, server)).unwrap_or_default()
        } else {
            Self::default()
        }
    }
}

#[cfg(feature = "tracing")]
impl CallSpan {
    /// A lone decision is the parent of its call. The call of a batch belongs to no decision more than to
    /// another, so it and the decisions are linked.
    #[cold]
    fn of(jobs: &[&Job], server: &str) -> Self {
        let decisions: Vec<&Span> = jobs.iter().filter_map(|job| job.span.span()).collect();
        let parent = match decisions[..] {
            [] => return Self::default(),
            [only] if jobs.len() == 1 => only.id(),
            _ => None,
        };
        let size = i64::try_from(jobs.len()).unwrap_or(i64::MAX);
        let span = tracing::debug_span!(
            target: "tower_ratelimit::span",
            parent: parent,
            "ratelimit.call",
            otel.name = "EVALSHA",
            otel.kind = "client",
            db.system.name = "redis",
            db.operation.name = "EVALSHA",
            ratelimit.batch.size = size,
            server.address = Empty,
            server.port = Empty,
            error.type = Empty,
            otel.status_code = Empty,
        );
        match server.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?))) {
            Some((host, port)) if !host.contains(", ") => {
                span.record("server.address", host);
                // A signed integer, as OpenTelemetry has them.
                span.record("server.port", i64::from(port));
            }
            // Several nodes of a Cluster, of which redis-rs chooses one.
            _ => {
                span.record("server.address", server);
            }
        }
        if jobs.len() > 1 {
            for decision in decisions {
                span.follows_from(decision);
                decision.follows_from(&span);
            }
        }
        Self { call: Some(Box::new(Call { span, in_time: jobs.len() })) }
    }

    /// Records that these decisions are `late` while the call is under way.
    pub(super) fn expire<'a>(&mut self, late: impl Iterator<Item = &'a Queued>) {
        if let Some(call) = &mut self.call {
            call.in_time -= late.count();
        }
    }

    #[inline]
    pub(super) fn end(self, ended: &Result<(), Error>) {
        if let Some(call) = self.call {
            caught(move || call.end(ended));
        }
    }
}

#[cfg(feature = "tracing")]
impl Call {
    /// A call that is answered after all deadlines has failed, because no caller has its decision.
    #[cold]
    fn end(&self, ended: &Result<(), Error>) {
        let kind = match ended {
            Err(error) => error.kind(),
            Ok(()) if self.in_time == 0 => ErrorKind::StoreTimeout,
            Ok(()) => return,
        };
        self.span.record("error.type", kind.as_str());
        self.span.record("otel.status_code", "ERROR");
    }
}

#[cfg(not(feature = "tracing"))]
#[expect(clippy::unused_self, clippy::missing_const_for_fn, reason = "the same as with the feature")]
impl CallSpan {
    fn of(_: &[&Job], _: &str) -> Self {
        Self {}
    }

    pub(super) fn expire<'a>(&mut self, _: impl Iterator<Item = &'a Queued>) {}

    pub(super) fn end(self, _: &Result<(), Error>) {}
}
