//! Finds the smallest limit that denies few clients, by replaying.

use std::{collections::HashMap, error::Error};

use tower_ratelimit::{Key, Policy};

use crate::{
    engine::Engine,
    formats::{Format, Op},
    input::Input,
    notes::{number, percent, several},
    options::Options,
    policies::with_limit,
    request::{Request, RuleCharge, Step},
    rules::{Rule, rules},
    run::Setup,
    source::Source,
    verdicts::shown,
};

/// The number of denied clients that are listed.
const CLIENTS: usize = 20;
/// Limits in the table, in percent of the suggested one.
const AROUND: [u64; 9] = [25, 50, 75, 90, 100, 110, 125, 150, 200];

/// The requests that are replayed again and again.
struct Log {
    requests: Vec<Compact>,
    keys: Vec<Key>,
    skipped: u64,
}

/// A request in little memory.
#[derive(Clone, Copy)]
struct Compact {
    time: u64,
    cost: u64,
    /// The microseconds that it took. `u64::MAX` if that is unknown.
    duration: u64,
    key: u32,
}

/// What a limit would have done.
struct Outcome {
    limit: u64,
    /// For each client, its denied requests.
    denied: Vec<u32>,
}

impl Outcome {
    fn clients(&self) -> u64 {
        self.denied.iter().filter(|denied| **denied > 0).count() as u64
    }

    fn requests(&self) -> u64 {
        self.denied.iter().map(|denied| u64::from(*denied)).sum()
    }
}

pub(crate) async fn suggest(
    options: &Options,
    setup: &Setup,
    input: Input,
    format: Format,
) -> Result<(), Box<dyn Error>> {
    let all = rules(&setup.policies, &options.key, &options.cost, format)?;
    let name = options.suggest.as_deref().unwrap_or_default();
    let meant: Vec<&Rule> = all.iter().filter(|rule| name.is_empty() || rule.policy.name() == name).collect();
    let [rule] = meant[..] else {
        let names: Vec<&str> = all.iter().map(|rule| rule.policy.name()).collect();
        return Err(format!("`--suggest=POLICY` needs one policy of {}", names.join(", ")).into());
    };
    if rule.charges_bytes() {
        return Err(
            "a limit on bytes that are charged later cannot be suggested: use the cost field:NAME".into()
        );
    }
    let rules = std::slice::from_ref(rule);
    // A JSON line may have charges under the other policies, too. An access log has keys for them only if it has
    // the parts.
    let read_with = if format == Format::Jsonl { &all[..] } else { rules };
    let log = read(Source::new(input, format, read_with, options.reorder), read_with, rule)?;
    if log.keys.is_empty() {
        return Err("the input has no requests".into());
    }
    let policy = |limit| match &options.policies {
        Some(_) => with_limit(&rule.policy, limit).map_err(Into::into),
        None => options.shape.policy(limit),
    };
    let may_deny = (log.keys.len() as f64 * options.suggest_share) as u64;
    let Some(found) = search(&log, rules, may_deny, &policy).await? else {
        let problem = "every limit denies more clients: a burst or another setting denies them at any limit";
        return Err(problem.into());
    };
    print!("{}", table(&log, rules, &found, may_deny, &policy).await?);
    Ok(())
}

/// The charges under `meant`, one of `rules`.
fn read(mut source: Source<'_>, rules: &[Rule], meant: &Rule) -> Result<Log, Box<dyn Error>> {
    let is_meant = |charge: &RuleCharge| rules[charge.rule].policy.name() == meant.policy.name();
    let mut log = Log { requests: Vec::new(), keys: Vec::new(), skipped: 0 };
    let mut places: HashMap<Key, u32> = HashMap::new();
    while let Some(step) = source.next()? {
        let request = match step {
            Step::Request(request) => request,
            Step::Command(command) if command.op == Op::Charge => command.request,
            Step::Command(_) | Step::Skipped(_) => {
                log.skipped += 1;
                continue;
            }
        };
        for RuleCharge { key, cost, .. } in request.charges.into_iter().filter(is_meant) {
            let next = u32::try_from(places.len()).map_err(|_| "too many clients")?;
            let place = *places.entry(key.clone()).or_insert(next);
            if place == next {
                log.keys.push(key);
            }
            let duration = request.duration.unwrap_or(u64::MAX);
            log.requests.push(Compact { time: request.time, cost, duration, key: place });
        }
    }
    Ok(log)
}

/// The smallest limit that denies at most `may_deny` clients, by halving. A client that a limit denies nothing
/// is not denied by a larger one, so the steps that follow replay only the clients that are undecided.
async fn search(
    log: &Log,
    rules: &[Rule],
    may_deny: u64,
    policy: &impl Fn(u64) -> Result<Policy, Box<dyn Error>>,
) -> Result<Option<Outcome>, Box<dyn Error>> {
    // A client never has more than all of its units in use.
    let mut units = vec![0_u64; log.keys.len()];
    log.requests.iter().for_each(|one| units[one.key as usize] += one.cost);
    let mut high = units.iter().copied().max().unwrap_or(1).max(1);
    while high > 1 && policy(high).is_err() {
        high /= 2;
    }
    let mut is_open = vec![true; log.keys.len()];
    let at_most = replay(log, rules, policy(high)?, &is_open).await?;
    if at_most.clients() > may_deny {
        return Ok(None);
    }
    // Clients that every limit up to `high` denies.
    let mut denied_above = at_most.clients();
    close(&mut is_open, |client| at_most.denied[client] > 0);
    // The smallest limit is above `low` and at most `high`.
    let mut low = 0;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let tried = replay(log, rules, policy(middle)?, &is_open).await?;
        if denied_above + tried.clients() <= may_deny {
            high = middle;
            denied_above += tried.clients();
            close(&mut is_open, |client| tried.denied[client] > 0);
        } else {
            low = middle;
            close(&mut is_open, |client| tried.denied[client] == 0);
        }
    }
    let everything = vec![true; log.keys.len()];
    Ok(Some(replay(log, rules, policy(high)?, &everything).await?))
}

/// Ends the search for the clients about which the last replay has decided.
fn close(is_open: &mut [bool], is_decided: impl Fn(usize) -> bool) {
    for (client, is_open) in is_open.iter_mut().enumerate() {
        *is_open &= !is_decided(client);
    }
}

/// Replays the requests of the clients for which `is_meant` is true.
async fn replay(
    log: &Log,
    rules: &[Rule],
    policy: Policy,
    is_meant: &[bool],
) -> Result<Outcome, Box<dyn Error>> {
    let limit = policy.quota().limit();
    // Room for all keys, and for the keys of a penalty.
    let mut engine = Engine::in_memory(rules, log.keys.len() * 3 + 1_000);
    engine.policies = vec![policy];
    let mut denied = vec![0; log.keys.len()];
    let mut request = Request { line: 0, time: 0, duration: None, bytes: None, charges: Vec::new() };
    for one in log.requests.iter().filter(|one| is_meant[one.key as usize]) {
        let key = log.keys[one.key as usize].clone();
        request.time = one.time;
        request.duration = Some(one.duration).filter(|duration| *duration != u64::MAX);
        request.charges.clear();
        request.charges.push(RuleCharge { rule: 0, key, cost: one.cost });
        engine.advance(one.time).await?;
        let decision = engine.charge(&request).await?;
        engine.begin(&request, &decision, None).await?;
        let outcomes = decision.outcomes().iter().chain(decision.shadows());
        denied[one.key as usize] += outcomes.filter(|outcome| outcome.verdict().is_denied()).count() as u32;
    }
    Ok(Outcome { limit, denied })
}

/// The suggested limit, those around it, and the clients that it denies.
async fn table(
    log: &Log,
    rules: &[Rule],
    found: &Outcome,
    may_deny: u64,
    policy: &impl Fn(u64) -> Result<Policy, Box<dyn Error>>,
) -> Result<String, Box<dyn Error>> {
    let (clients, requests) = (log.keys.len() as u64, log.requests.len() as u64);
    let quota = policy(found.limit)?.quota();
    let mut text = format!(
        "{} requests of {} clients; a limit may deny {} of them\nsuggested: {quota}, the smallest limit that denies \
         no more\n\n{:>12} {:>15} {:>10} {:>15} {:>10}\n",
        number(requests),
        number(clients),
        number(may_deny),
        "limit",
        "clients denied",
        "share",
        "requests denied",
        "share",
    );
    if log.skipped > 0 {
        text.insert_str(0, &format!("{} lines were skipped\n", number(log.skipped)));
    }
    let mut limits: Vec<u64> = AROUND.iter().map(|percent| (found.limit * percent / 100).max(1)).collect();
    limits.extend([found.limit.saturating_sub(1).max(1), found.limit + 1]);
    limits.sort_unstable();
    limits.dedup();
    let everything = vec![true; log.keys.len()];
    for limit in limits {
        // A limit beside the suggested one may be out of the algorithm's bounds.
        let Ok(policy) = policy(limit) else { continue };
        let outcome = replay(log, rules, policy, &everything).await?;
        text += &format!(
            "{:>12} {:>15} {:>10} {:>15} {:>10}{}\n",
            number(limit),
            number(outcome.clients()),
            percent(outcome.clients(), clients),
            number(outcome.requests()),
            percent(outcome.requests(), requests),
            if limit == found.limit { "  suggested" } else { "" },
        );
    }
    let mut denied: Vec<(u32, String)> = found
        .denied
        .iter()
        .zip(&log.keys)
        .filter(|(denied, _)| **denied > 0)
        .map(|(denied, key)| (*denied, shown(key)))
        .collect();
    denied.sort_unstable_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    if !denied.is_empty() {
        text += &format!("\nthe suggested limit denies {}:\n", several(denied.len() as u64, "client"));
    }
    for (denied, client) in denied.iter().take(CLIENTS) {
        text += &format!("{denied:>10}  {client}\n");
    }
    Ok(text)
}
