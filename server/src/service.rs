//! [`Service`]: the calls of Envoy.

use std::{sync::Arc, time::Duration};

use envoy_types::pb::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
    rate_limit_service_server::RateLimitService,
};
use http::HeaderName;
use metrics::Counter;
use tonic::{Request, Response, Status, metadata::MetadataMap};
use tower_ratelimit::{
    Criticality, FailureMode,
    policy::{Enforcement, EnforcementSwitch},
};
use tracing::error;

use crate::{answer::response, config::Followed, decide::Decider, options::Calls, plan::Plan};

/// The metadata of a call that says how critical it is, for policies with a headroom.
static CRITICALITY: HeaderName = HeaderName::from_static("x-ratelimit-criticality");
static TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Answers the calls of Envoy.
pub(crate) struct Service {
    pub(crate) config: Arc<Followed>,
    pub(crate) decider: Decider,
    pub(crate) switch: EnforcementSwitch,
    pub(crate) failure_mode: FailureMode,
    pub(crate) options: Calls,
    /// The calls, by their answer: OK, over the limit, and an error.
    pub(crate) calls: [Counter; 3],
}

#[tonic::async_trait]
impl RateLimitService for Service {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let answer = self.answer(request.metadata(), request.get_ref()).await;
        let [ok, over_limit, error] = &self.calls;
        let counter = match &answer {
            Ok(response) if response.overall_code() == Code::OverLimit => over_limit,
            Ok(_) => ok,
            Err(_) => error,
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
        let most = self.options.max_descriptors;
        if request.descriptors.len() > most {
            return Err(Status::invalid_argument(format!("there are more than {most} descriptors")));
        }
        let plan =
            Plan::new(&self.config.current.load(), request, criticality(metadata)?, self.failure_mode)?;
        let enforcement = self.switch.get();
        let decided =
            self.decider.decide(&plan, patience(metadata), enforcement).await.map_err(|problem| {
                error!("a call cannot be decided: {problem}");
                Status::internal(problem.to_string())
            })?;
        Ok(response(&self.options, &plan, &decided, enforcement == Enforcement::On).await)
    }
}

fn criticality(metadata: &MetadataMap) -> Result<Criticality, Status> {
    let Some(value) = metadata.as_ref().get(&CRITICALITY) else { return Ok(Criticality::CriticalPlus) };
    let parsed = value.to_str().ok().and_then(|value| value.parse().ok());
    parsed
        .ok_or_else(|| Status::invalid_argument(format!("the metadata `{CRITICALITY}` is not a criticality")))
}

/// The time that the caller waits, as gRPC writes it: at most eight digits and a unit.
fn patience(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.as_ref().get(&TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u32 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    let unit = match unit {
        "H" => Duration::from_secs(3_600),
        "M" => Duration::from_secs(60),
        "S" => Duration::from_secs(1),
        "m" => Duration::from_millis(1),
        "u" => Duration::from_micros(1),
        "n" => Duration::from_nanos(1),
        _ => return None,
    };
    Some(unit * number)
}
