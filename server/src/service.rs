//! [`Service`]: the calls of Envoy.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use envoy_types::pb::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
    rate_limit_service_server::RateLimitService,
};
use metrics::{Counter, counter};
use tonic::{Request, Response, Status, metadata::MetadataMap};
use tower_ratelimit::{
    Criticality, FailureMode,
    policy::{Enforcement, EnforcementSwitch},
};
use tracing::error;

use crate::{
    answer::Answers,
    config::{Followed, Limit, Override},
    decide::Decider,
    plan::{Overrides, Plan},
};

/// The most limits of requests that are kept. They are cheap to make again.
const MAX_OVERRIDES: usize = 1_000;
/// The metadata of a call that says how critical it is, for policies with a headroom.
const CRITICALITY: &str = "x-ratelimit-criticality";

/// Answers the calls of Envoy.
pub(crate) struct Service {
    pub(crate) config: Arc<Followed>,
    pub(crate) decider: Decider,
    pub(crate) answers: Answers,
    pub(crate) switch: EnforcementSwitch,
    pub(crate) failure_mode: FailureMode,
    pub(crate) max_descriptors: usize,
    pub(crate) overrides: Mutex<Overrides>,
    pub(crate) counters: CallCounters,
}

/// The calls, by how they were answered.
pub(crate) struct CallCounters {
    ok: Counter,
    over_limit: Counter,
    error: Counter,
}

impl Default for CallCounters {
    fn default() -> Self {
        let of = |code: &'static str| counter!("ratelimit_server_calls_total", "code" => code);
        Self { ok: of("ok"), over_limit: of("over_limit"), error: of("error") }
    }
}

#[tonic::async_trait]
impl RateLimitService for Service {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let answer = self.answer(request.metadata(), request.get_ref()).await;
        let counter = match &answer {
            Ok(response) if response.overall_code() == Code::OverLimit => &self.counters.over_limit,
            Ok(_) => &self.counters.ok,
            Err(_) => &self.counters.error,
        };
        counter.increment(1);
        answer.map(Response::new)
    }
}

impl Service {
    async fn answer(
        &self,
        metadata: &MetadataMap,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        if request.descriptors.len() > self.max_descriptors {
            let most = self.max_descriptors;
            return Err(Status::invalid_argument(format!("there are more than {most} descriptors")));
        }
        let config = self.config.current();
        let limit_of = |domain: &str, limit: Override| self.override_of(domain, limit);
        let plan = Plan::new(&config, request, criticality(metadata)?, limit_of)?;
        let enforcement = self.switch.get();
        let decided =
            self.decider.decide(&plan, patience(metadata), enforcement).await.map_err(|problem| {
                error!("a call cannot be decided: {problem}");
                Status::internal(problem.to_string())
            })?;
        Ok(self.answers.response(&plan, &decided, enforcement == Enforcement::On).await)
    }

    /// The limit that a request sets.
    fn override_of(&self, domain: &str, limit: Override) -> Result<Arc<Limit>, Status> {
        // A map is whole even if its user has panicked.
        let mut known = self.overrides.lock().unwrap_or_else(PoisonError::into_inner);
        let place = (domain.to_owned(), limit);
        if let Some(limit) = known.get(&place) {
            return Ok(limit.clone());
        }
        let made = limit.limit(domain, self.failure_mode);
        let made = Arc::new(made.map_err(|error| Status::invalid_argument(error.to_string()))?);
        if known.len() == MAX_OVERRIDES {
            known.clear();
        }
        known.insert(place, made.clone());
        Ok(made)
    }
}

fn criticality(metadata: &MetadataMap) -> Result<Criticality, Status> {
    let Some(value) = metadata.get(CRITICALITY) else { return Ok(Criticality::CriticalPlus) };
    let parsed = value.to_str().ok().and_then(|value| value.parse().ok());
    parsed
        .ok_or_else(|| Status::invalid_argument(format!("the metadata `{CRITICALITY}` is not a criticality")))
}

/// The time that the caller waits, as gRPC writes it: at most eight digits and a unit.
fn patience(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3_600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}
