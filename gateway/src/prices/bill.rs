//! [`Bill`]: what a call was charged in the end.

use super::usage::Usage;

/// What a call was charged in the end, for [`UsageMeter::on_settled`](super::UsageMeter::on_settled).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bill {
    /// The model of the request, as the client has written it.
    pub model: String,
    /// The tokens. All zero if the call was refunded.
    pub usage: Usage,
    /// What they cost.
    pub micro_dollars: u64,
    /// Where the usage is from.
    pub basis: Basis,
    /// The version of the [prices](super::Prices::new).
    pub prices_version: String,
}

/// Where the usage of a [`Bill`] is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Basis {
    /// The upstream service has reported all that it has sent.
    Reported,
    /// At least a part was counted: see [what a call is charged](super#what-a-call-is-charged).
    Counted,
    /// The usage was not reported, so it is the estimate from before the call.
    Estimated,
    /// The upstream service has failed, so nothing is charged.
    Refunded,
}
