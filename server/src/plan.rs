//! [`Plan`]: what a call asks to be decided.

use std::{cmp::Reverse, collections::HashMap, sync::Arc};

use envoy_types::pb::{
    envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride},
        service::ratelimit::v3::{RateLimitRequest, rate_limit_response::rate_limit::Unit},
    },
    google::protobuf::UInt64Value,
};
use tonic::Status;
use tower_ratelimit::{Charge, Criticality, Key};

use crate::config::{Config, Counters, Kind, Limit, Override};

/// What a call asks to be decided: a slot for each descriptor, and a charge for each client.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) slots: Vec<Slot>,
    /// No two have the same policy and key.
    pub(crate) charges: Vec<Charge>,
}

/// A descriptor.
#[derive(Debug)]
pub(crate) enum Slot {
    /// No limit, or one that another limit replaces.
    Free,
    Limited {
        limit: Arc<Limit>,
        counters: Counters,
        hits: u64,
        /// Its place among the charges. `None` if nothing is counted.
        charge: Option<usize>,
    },
}

/// The limit of a descriptor, before others replace it.
struct Candidate {
    limit: Arc<Limit>,
    counters: Counters,
    key: Key,
}

impl Plan {
    /// The plan of `request` under `config`. `override_of` makes the limits that the request itself sets.
    ///
    /// # Errors
    ///
    /// `INVALID_ARGUMENT`: the request is not one that Envoy sends.
    pub(crate) fn new(
        config: &Config,
        request: &RateLimitRequest,
        criticality: Criticality,
        override_of: impl Fn(&str, Override) -> Result<Arc<Limit>, Status>,
    ) -> Result<Self, Status> {
        let RateLimitRequest { domain, descriptors, hits_addend } = request;
        if domain.is_empty() {
            return Err(Status::invalid_argument("the domain is empty"));
        }
        if descriptors.is_empty() {
            return Err(Status::invalid_argument("there is no descriptor"));
        }
        let mut candidates = Vec::with_capacity(descriptors.len());
        for descriptor in descriptors {
            if descriptor.is_negative_hits {
                let message = "hits are negative: a caller that refunds itself has no limit";
                return Err(Status::invalid_argument(message));
            }
            candidates.push(candidate(config, domain, descriptor, &override_of)?);
        }
        let mut plan = Self { slots: Vec::with_capacity(candidates.len()), charges: Vec::new() };
        let replaced: Vec<String> = candidates
            .iter()
            .flatten()
            .flat_map(|candidate| candidate.limit.replaces.iter().cloned())
            .collect();
        let is_replaced = |limit: &Limit| limit.name.as_ref().is_some_and(|name| replaced.contains(name));
        for (candidate, descriptor) in candidates.into_iter().zip(descriptors) {
            let slot = match candidate.filter(|candidate| !is_replaced(&candidate.limit)) {
                None => Slot::Free,
                Some(candidate) => {
                    let hits = hits_of(descriptor, *hits_addend);
                    plan.limited(candidate, hits, criticality)
                }
            };
            plan.slots.push(slot);
        }
        Ok(plan)
    }

    fn limited(&mut self, candidate: Candidate, hits: u64, criticality: Criticality) -> Slot {
        let Candidate { limit, counters, key } = candidate;
        let charge = match &limit.kind {
            Kind::Counted(policy) => {
                Some(self.charge(Charge::new(policy, &key, hits).with_criticality(criticality)))
            }
            _ => None,
        };
        Slot::Limited { limit, counters, hits, charge }
    }

    /// Adds `new`, or its hits to the charge of the same client. Returns its place.
    fn charge(&mut self, new: Charge) -> usize {
        let Some(at) = self.charges.iter().position(|old| is_of_same_client(old, &new)) else {
            self.charges.push(new);
            return self.charges.len() - 1;
        };
        let old = &self.charges[at];
        let sum = old.cost().saturating_add(new.cost());
        // One of the two may be a shadow, or a request may set two limits.
        let strictness =
            |charge: &Charge| (charge.policy().settings().enforced, Reverse(charge.policy().capacity()));
        let stricter = if strictness(&new) > strictness(old) { new } else { old.clone() };
        self.charges[at] = stricter.with_cost(sum);
        at
    }

    /// Whether a descriptor is blocked, whatever remains of others.
    pub(crate) fn is_blocked(&self) -> bool {
        self.slots.iter().any(Slot::is_blocked)
    }
}

impl Slot {
    /// Whether the limit is 0, and denies.
    pub(crate) fn is_blocked(&self) -> bool {
        matches!(self, Self::Limited { limit, .. } if matches!(limit.kind, Kind::Blocked) && !limit.is_shadow)
    }
}

/// The limit of `descriptor`, if it has one.
fn candidate(
    config: &Config,
    domain: &str,
    descriptor: &RateLimitDescriptor,
    override_of: impl Fn(&str, Override) -> Result<Arc<Limit>, Status>,
) -> Result<Option<Candidate>, Status> {
    if !config.has_domain(domain) {
        return Ok(None);
    }
    let Some(RateLimitOverride { requests_per_unit, unit }) = descriptor.limit else {
        return Ok(config.find(domain, &descriptor.entries).map(|found| Candidate {
            limit: found.limit.clone(),
            counters: found.counters(),
            key: found.key(),
        }));
    };
    // The units of an override have the numbers of the response's.
    let unit = Unit::try_from(unit).ok().filter(|unit| *unit != Unit::Unknown);
    let unit =
        unit.ok_or_else(|| Status::invalid_argument("the limit of a descriptor has an unknown unit"))?;
    let limit = override_of(domain, Override { unit, requests_per_unit })?;
    let parts = descriptor.entries.iter().flat_map(|entry| [Key::new(&*entry.key), Key::new(&*entry.value)]);
    let key = Key::join(&parts.collect::<Vec<_>>());
    Ok(Some(Candidate { counters: limit.counters.clone(), limit, key }))
}

/// The hits of `descriptor`, which come before the `request`'s. 0 of a descriptor asks without a charge; 0 of a request is 1,
/// as the protocol says.
fn hits_of(descriptor: &RateLimitDescriptor, request: u32) -> u64 {
    match descriptor.hits_addend {
        Some(UInt64Value { value }) => value,
        None => u64::from(request.max(1)),
    }
}

/// Whether both are charged to the same counts.
pub(crate) fn is_of_same_client(one: &Charge, other: &Charge) -> bool {
    one.key() == other.key() && one.policy().name() == other.policy().name()
}

/// The limits that requests set, by their domain.
pub(crate) type Overrides = HashMap<(String, Override), Arc<Limit>>;
