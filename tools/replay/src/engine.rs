//! [`Engine`]: decides requests with the library, on a clock that follows the log.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, HashMap},
    sync::Arc,
    time::Duration,
};

use tower_ratelimit::{
    Charge, Decision, Error, Limiter, MemoryStore, Policy,
    decision::Outcome,
    store::{Action, ManualClock, Store},
};

use crate::{request::Request, rules::Rule};

/// Decides requests with the library, on a clock that follows the log.
pub(crate) struct Engine {
    pub(crate) limiter: Limiter,
    /// The store of the limiter, which renews permits.
    store: Arc<dyn Store>,
    /// The same store, if it counts in memory.
    memory: Option<MemoryStore>,
    clock: ManualClock,
    /// The policies of the rules. A command can change their quotas.
    pub(crate) policies: Vec<Policy>,
    /// For each rule, whether the bytes of the response are charged at the end.
    charges_bytes: Vec<bool>,
    /// What happens between the requests.
    events: BinaryHeap<Reverse<Event>>,
    /// The number of events, which orders those at one time.
    begun: u64,
    /// Decisions with a name, until a line releases them.
    pub(crate) named: HashMap<String, Decision>,
    /// The number of admitted requests that got a permit and have no duration, so it was released
    /// immediately.
    pub(crate) without_duration: u64,
}

struct Event {
    time: u64,
    number: u64,
    what: What,
}

enum What {
    /// Renew the permits of the decision, or release them if this is the end of its request.
    Hold { decision: Decision, end: u64 },
    /// Renew the permits of a named decision.
    RenewNamed(String),
    /// Debit the bytes of a response.
    Debit(Decision, u64),
}

impl Engine {
    /// Counts in the memory of this process, for about `keys` keys.
    pub(crate) fn in_memory(rules: &[Rule], keys: usize) -> Self {
        let clock = ManualClock::new();
        let store = MemoryStore::with_clock(clock.clone()).capacity(keys);
        Self { memory: Some(store.clone()), ..Self::new(rules, store, clock) }
    }

    /// Counts in `store`, which follows `clock`.
    pub(crate) fn new(rules: &[Rule], store: impl Store + Clone, clock: ManualClock) -> Self {
        Self {
            limiter: Limiter::new(store.clone()),
            store: Arc::new(store),
            memory: None,
            clock,
            policies: rules.iter().map(|rule| rule.policy.clone()).collect(),
            charges_bytes: rules.iter().map(Rule::charges_bytes).collect(),
            events: BinaryHeap::new(),
            begun: 0,
            named: HashMap::new(),
            without_duration: 0,
        }
    }

    /// The charges of `request`.
    pub(crate) fn charges(&self, request: &Request) -> Vec<Charge> {
        let charges = request.charges.iter();
        charges.map(|charge| Charge::new(&self.policies[charge.rule], &charge.key, charge.cost)).collect()
    }

    /// Charges `request`, all or nothing.
    pub(crate) async fn charge(&self, request: &Request) -> Result<Decision, Error> {
        let decided = match &request.charges[..] {
            [one] => self.limiter.check(&self.policies[one.rule], &one.key, one.cost),
            _ => self.limiter.check_all(&self.charges(request)),
        };
        stored(decided.await?)
    }

    /// Notes what happens until the end of a request, if it is admitted. It holds its permits until then, or
    /// under the name `id` until a line releases them.
    pub(crate) async fn begin(
        &mut self,
        request: &Request,
        decision: &Decision,
        id: Option<&String>,
    ) -> Result<(), Error> {
        if decision.is_denied() {
            return Ok(());
        }
        let wait = decision.delay().unwrap_or_default();
        let start = request.time.saturating_add(micros(wait));
        let end = start.saturating_add(request.duration.unwrap_or_default());
        if let Some(bytes) = request.bytes {
            for rule in request.charges.iter().map(|charge| charge.rule) {
                // The request was charged one of them.
                let rest = bytes.saturating_sub(1);
                if self.charges_bytes[rule]
                    && rest > 0
                    && let Some(alone) = decision.for_policy(self.policies[rule].name())
                {
                    self.at(end, What::Debit(alone, rest));
                }
            }
        }
        let renewal = next_renewal(request.time, decision);
        if let Some(id) = id {
            self.named.insert(id.clone(), decision.clone());
            renewal.into_iter().for_each(|time| self.at(time, What::RenewNamed(id.clone())));
        } else if renewal.is_some() && request.duration.is_some() {
            self.hold(request.time, decision.clone(), end);
        } else if renewal.is_some() {
            self.without_duration += 1;
            self.release(decision).await?;
        }
        Ok(())
    }

    fn hold(&mut self, now: u64, decision: Decision, end: u64) {
        let time = next_renewal(now, &decision).unwrap_or(end).min(end);
        self.at(time, What::Hold { decision, end });
    }

    fn at(&mut self, time: u64, what: What) {
        self.begun += 1;
        self.events.push(Reverse(Event { time, number: self.begun, what }));
    }

    /// The number of keys that are counted in memory.
    pub(crate) fn key_count(&self) -> usize {
        self.memory.as_ref().map_or(0, MemoryStore::key_count)
    }

    /// Sets the clock to `time`, after everything that happens until then.
    pub(crate) async fn advance(&mut self, time: u64) -> Result<(), Error> {
        while self.events.peek().is_some_and(|Reverse(next)| next.time <= time) {
            let Some(Reverse(Event { time, what, .. })) = self.events.pop() else { break };
            self.clock.set(Duration::from_micros(time));
            match what {
                What::Hold { decision, end } if end <= time => self.release(&decision).await?,
                What::Hold { decision, end } => {
                    self.renew(&decision).await?;
                    self.hold(time, decision, end);
                }
                What::RenewNamed(name) => {
                    if let Some(decision) = self.named.get(&name).cloned() {
                        self.renew(&decision).await?;
                        if let Some(time) = next_renewal(time, &decision) {
                            self.at(time, What::RenewNamed(name));
                        }
                    }
                }
                What::Debit(decision, units) => {
                    stored(self.limiter.debit(&decision, units).await?)?;
                }
            }
        }
        self.clock.set(Duration::from_micros(time));
        Ok(())
    }

    /// Releases the permits of `decision`, whose last clone is dropped next. In memory, the drop releases them;
    /// on a server, the library would release them in the background, maybe after the next request.
    pub(crate) async fn release(&self, decision: &Decision) -> Result<(), Error> {
        let charges: Vec<Charge> = permits(decision).map(|outcome| outcome.charge().clone()).collect();
        if self.memory.is_none() && !charges.is_empty() {
            self.store.decide(Action::Refund, &charges).await?;
        }
        Ok(())
    }

    /// Renews permits as the library does while a request runs. Its own renewals follow the time of this
    /// machine.
    async fn renew(&self, decision: &Decision) -> Result<(), Error> {
        let charges: Vec<Charge> = permits(decision).map(|outcome| outcome.charge().clone()).collect();
        self.store.decide(Action::Renew, &charges).await.map(|_| ())
    }
}

/// The outcomes of `decision` that granted permits.
fn permits(decision: &Decision) -> impl Iterator<Item = &Outcome> {
    let all = decision.outcomes().iter().chain(decision.shadows());
    all.filter(|outcome| outcome.policy().has_permits() && outcome.granted() > 0)
}

/// When the permits of `decision` must be renewed: three times in a period.
fn next_renewal(now: u64, decision: &Decision) -> Option<u64> {
    let pause = permits(decision).map(|outcome| outcome.policy().quota().period() / 3).min()?;
    Some(now.saturating_add(micros(pause).max(1)))
}

/// The decision of the store. What a failure mode decides is not the verdict that is looked for.
pub(crate) fn stored(decision: Decision) -> Result<Decision, Error> {
    match decision.failure() {
        Some(failure) => Err(failure.clone()),
        None => Ok(decision),
    }
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.time, self.number).cmp(&(other.time, other.number))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Event {}
