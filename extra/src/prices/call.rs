//! [`Call`]: one call of a model, from its estimate to its answer.

use std::{fmt, future::Future, sync::Arc};

use bytes::Bytes;
use http::Response;
use http_body::Body;
use tower_ratelimit::{Answer, Decision, Key, Reservation};

use super::{
    api::Api, body::MeteredBody, learned::LearnedOutput, price::Price, settings::Settings,
    settling::Settling, usage::Usage,
};

/// One call of a model, made by a [`UsageMeter`](super::UsageMeter). [The module](super) has an example.
#[must_use = "a call charges nothing until it is sent"]
pub struct Call {
    pub(super) api: Api,
    pub(super) model: String,
    /// The name of the entry with the price.
    pub(super) entry: Arc<str>,
    pub(super) price: Price,
    pub(super) version: String,
    pub(super) estimate: Usage,
    /// Whether the request limits its output.
    pub(super) has_limit: bool,
    pub(super) learned: Option<(LearnedOutput, Key)>,
    pub(super) settings: Arc<Settings>,
}

impl Call {
    /// Estimates the output by what `learned` knows of `key` and the model, but not above the limit of the
    /// request. The answer is learned, if its usage is [reported](super::Basis::Reported).
    pub fn learned(mut self, learned: &LearnedOutput, key: &Key) -> Self {
        if let Some(output) = learned.estimate(key, &self.entry) {
            self.estimate.output = if self.has_limit { output.min(self.estimate.output) } else { output };
        }
        self.learned = Some((learned.clone(), key.clone()));
        self
    }

    /// The model of the request.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The tokens that the call is expected to use: the bytes of the request's body divided by
    /// [`bytes_per_token`](super::UsageMeter::bytes_per_token), and the most tokens that the answer may have.
    #[must_use]
    pub const fn estimate(&self) -> Usage {
        self.estimate
    }

    /// What the [estimate](Self::estimate) costs, in micro-dollars.
    #[must_use]
    pub fn estimated_micro_dollars(&self) -> u64 {
        self.price.micro_dollars(&self.estimate)
    }

    /// Charges the estimate to the rules of `reservation`, in addition to their [cost](tower_ratelimit::Rule::cost):
    /// [`Reservation::charge_more_each`]. Not needed if the cost of the rules is an estimate already.
    ///
    /// # Errors
    ///
    /// The same as [`Reservation::charge_more_each`].
    pub fn charge(&self, reservation: &Reservation) -> Answer<Decision> {
        let units = self.settings.units(self.estimate.tokens(), self.estimated_micro_dollars());
        reservation.charge_more_each(units)
    }

    /// Waits for the upstream service's response, and settles `reservation` at what it
    /// [costs](super#what-a-call-is-charged). The response passes unchanged.
    ///
    /// # Errors
    ///
    /// The error of `sent`, after which the call is refunded.
    pub async fn metered<B: Body<Data = Bytes>, E>(
        self,
        reservation: Reservation,
        sent: impl Future<Output = Result<Response<B>, E>>,
    ) -> Result<Response<MeteredBody<B>>, E> {
        // If this future is dropped, the estimate is charged.
        let mut settling = Settling::new(self, reservation);
        match sent.await {
            Ok(response) => {
                let (head, body) = response.into_parts();
                settling.begin(&head);
                Ok(Response::from_parts(head, MeteredBody::new(body, settling)))
            }
            Err(error) => {
                settling.refund();
                Err(error)
            }
        }
    }
}

/// Shows no key.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("api", &self.api)
            .field("model", &self.model)
            .field("price", &self.price)
            .field("estimate", &self.estimate)
            .finish_non_exhaustive()
    }
}
