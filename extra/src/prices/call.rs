//! [`Call`]: one call of a model, from its estimate to its answer.

use std::{fmt, future::Future};

use bytes::Bytes;
use http::Response;
use http_body::Body;
use tower_ratelimit::{Answer, Decision, Key, Reservation};

use super::{body::MeteredBody, learned::LearnedOutput, planned::Planned, settling::Settling, usage::Usage};

/// One call of a model, made by a [`UsageMeter`](super::UsageMeter). [The module](super) has an example.
///
/// A clone is of the same request, for a place that must own what it reads: send one of them.
#[must_use = "a call charges nothing until it is sent"]
#[derive(Clone)]
pub struct Call(pub(super) Planned);

impl Call {
    /// Estimates the output by what `learned` knows of `key` and the model, but not above the limit of the
    /// request. The answer is learned, if its usage is [reported](super::Basis::Reported).
    pub fn learned(mut self, learned: &LearnedOutput, key: &Key) -> Self {
        let planned = &mut self.0;
        if let Some(output) = learned.estimate(key, &planned.entry) {
            let limit = if planned.has_limit { planned.estimate.output } else { u64::MAX };
            planned.estimate.output = output.min(limit);
        }
        planned.learned = Some((learned.clone(), key.clone()));
        self
    }

    /// The model of the request.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.0.model
    }

    /// The tokens that the call is expected to use: the bytes of the request's body divided by
    /// [`bytes_per_token`](super::UsageMeter::bytes_per_token), and the most tokens that the answer may have.
    #[must_use]
    pub const fn estimate(&self) -> Usage {
        self.0.estimate
    }

    /// What the [estimate](Self::estimate) costs, in micro-dollars.
    #[must_use]
    pub fn estimated_micro_dollars(&self) -> u64 {
        self.0.price.micro_dollars(&self.0.estimate)
    }

    /// Charges the estimate to the rules of `reservation`, in addition to their [cost](tower_ratelimit::Rule::cost):
    /// [`Reservation::charge_more_each`]. Not needed if the cost of the rules is an estimate already.
    ///
    /// # Errors
    ///
    /// The same as [`Reservation::charge_more_each`].
    pub fn charge(&self, reservation: &Reservation) -> Answer<Decision> {
        let units = self.0.settings.units(self.0.estimate.tokens(), self.estimated_micro_dollars());
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
        let mut settling = Settling::new(self.0, reservation);
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
            .field("api", &self.0.api)
            .field("model", &self.0.model)
            .field("price", &self.0.price)
            .field("estimate", &self.0.estimate)
            .finish_non_exhaustive()
    }
}
