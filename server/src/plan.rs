//! [`Plan`]: what a call asks to be decided.

use std::{cmp::Reverse, sync::Arc};

use envoy_types::pb::{
    envoy::{
        extensions::common::ratelimit::v3::RateLimitDescriptor,
        service::ratelimit::v3::{RateLimitRequest, rate_limit_response::rate_limit::Unit},
    },
    google::protobuf::UInt64Value,
};
use tonic::Status;
use tower_ratelimit::{Charge, Criticality, FailureMode, Key};

use crate::config::{Config, Hits, Kind, Limit};

/// What a call asks to be decided: a slot for each descriptor, and a charge for each client.
#[derive(Debug)]
pub(crate) struct Plan {
    /// `None` where no limit applies.
    pub(crate) slots: Vec<Option<Slot>>,
    /// No two have the same policy and key.
    pub(crate) charges: Vec<Charge>,
}

/// A descriptor with a limit.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) limit: Arc<Limit>,
    key: Key,
    pub(crate) hits: u64,
    /// Separate metrics, if they are not the limit's.
    pub(crate) detailed: Option<Hits>,
    /// Its place among the charges. `None` if nothing is counted.
    pub(crate) charge: Option<usize>,
}

impl Plan {
    /// The plan of `request` under `config`. `mode` is the failure mode of limits that the request sets.
    ///
    /// # Errors
    ///
    /// `INVALID_ARGUMENT`: the request is not one that Envoy sends.
    pub(crate) fn new(
        config: &Config,
        request: &RateLimitRequest,
        criticality: Criticality,
        mode: FailureMode,
    ) -> Result<Self, Status> {
        let RateLimitRequest { domain, descriptors, hits_addend } = request;
        if domain.is_empty() || descriptors.is_empty() {
            return Err(Status::invalid_argument("the domain is empty, or there is no descriptor"));
        }
        if descriptors.iter().any(|descriptor| descriptor.is_negative_hits) {
            let message = "hits are negative: a caller that refunds itself has no limit";
            return Err(Status::invalid_argument(message));
        }
        let slots = descriptors.iter().map(|descriptor| slot(config, domain, descriptor, *hits_addend, mode));
        let mut slots = slots.collect::<Result<Vec<_>, _>>()?;
        let replaced: Vec<_> =
            slots.iter().flatten().flat_map(|slot| slot.limit.replaces.iter().cloned()).collect();
        let mut charges = Vec::with_capacity(slots.len());
        for place in &mut slots {
            place.take_if(|slot| slot.limit.name.as_ref().is_some_and(|name| replaced.contains(name)));
            if let Some(slot) = place
                && let Kind::Counted(policy) = &slot.limit.kind
            {
                let charge = Charge::new(policy, &slot.key, slot.hits).with_criticality(criticality);
                slot.charge = Some(add(&mut charges, charge));
            }
        }
        Ok(Self { slots, charges })
    }

    /// Whether a descriptor has 0 hits.
    pub(crate) fn asks(&self) -> bool {
        self.charges.iter().any(|charge| charge.cost() == 0)
    }

    /// Whether a descriptor is blocked, regardless of what remains of others.
    pub(crate) fn is_blocked(&self) -> bool {
        self.slots
            .iter()
            .flatten()
            .any(|slot| matches!(slot.limit.kind, Kind::Blocked) && !slot.limit.is_shadow)
    }
}

/// The slot of `descriptor`, if a limit applies.
fn slot(
    config: &Config,
    domain: &str,
    descriptor: &RateLimitDescriptor,
    request_hits: u32,
    mode: FailureMode,
) -> Result<Option<Slot>, Status> {
    // 0 of a descriptor asks without a charge; 0 of a request is 1, as the protocol says.
    let hits = match descriptor.hits_addend {
        Some(UInt64Value { value }) => value,
        None => request_hits.max(1).into(),
    };
    let Some(limit) = descriptor.limit.filter(|_| config.domains.contains_key(domain)) else {
        return Ok(config.find(domain, &descriptor.entries).map(|found| {
            let (key, detailed) = (found.key(), found.hits());
            Slot { limit: found.limit.clone(), key, hits, detailed, charge: None }
        }));
    };
    // The units of requests have the numbers of the response's.
    let unit = Unit::try_from(limit.unit).ok().filter(|unit| *unit != Unit::Unknown);
    let unit =
        unit.ok_or_else(|| Status::invalid_argument("the limit of a descriptor has an unknown unit"))?;
    let limit = Limit::of_request(domain, unit, limit.requests_per_unit, mode);
    let limit = Arc::new(limit.map_err(|error| Status::invalid_argument(error.to_string()))?);
    let parts = descriptor.entries.iter().flat_map(|entry| [Key::new(&*entry.key), Key::new(&*entry.value)]);
    let key = Key::join(&parts.collect::<Vec<_>>());
    Ok(Some(Slot { limit, key, hits, detailed: None, charge: None }))
}

/// Adds `new` to `charges`, or its hits to the charge of the same client. Returns its place.
fn add(charges: &mut Vec<Charge>, new: Charge) -> usize {
    let Some(at) = charges.iter().position(|old| is_of_same_client(old, &new)) else {
        charges.push(new);
        return charges.len() - 1;
    };
    let old = &charges[at];
    let sum = old.cost().saturating_add(new.cost());
    // One of the two may be a shadow, or a request may set two limits.
    let strictness =
        |charge: &Charge| (charge.policy().settings().enforced, Reverse(charge.policy().capacity()));
    let stricter = if strictness(&new) > strictness(old) { new } else { old.clone() };
    charges[at] = stricter.with_cost(sum);
    at
}

/// Whether both are charged to the same counts.
pub(crate) fn is_of_same_client(one: &Charge, other: &Charge) -> bool {
    one.key() == other.key() && one.policy().name() == other.policy().name()
}
