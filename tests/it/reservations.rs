//! Charges, debits, refunds and settlements: what each call answers, and what stays charged. The rows are in `tables`, and
//! `tables/reservations.txt` lists their words.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use support::{Fake, PATIENT, RedisServer, eventually, fails, settings, table::rows};
use tower_ratelimit::{
    Charge, Decision, Error, ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, Quota, Reservation,
    algorithm::{FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    policy::Penalty,
    store::{Action, ManualClock},
};

use crate::debits::windows;

#[tokio::test]
async fn a_reservation_is_charged_what_its_last_total_says() {
    check(include_str!("tables/reservations.txt")).await;
}

#[tokio::test]
async fn a_debit_is_charged_beyond_what_remains_up_to_the_debt() {
    check(include_str!("tables/debits.txt")).await;
}

#[tokio::test]
async fn a_refund_returns_what_still_counts_of_its_charge() {
    check(include_str!("tables/refunds.txt")).await;
}

const MINUTE: Duration = Duration::from_secs(60);

/// Units, of which `all` is the largest number.
fn units(word: &str) -> u64 {
    if word == "all" { u64::MAX } else { word.parse().unwrap_or_else(|_| panic!("not a number: {word}")) }
}

fn duration(word: &str) -> Duration {
    let number = word.trim_end_matches(char::is_alphabetic);
    let seconds = match &word[number.len()..] {
        "days" => 86_400.0,
        "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        unit => panic!("not a unit of time: {unit}"),
    };
    Duration::from_nanos((number.parse::<f64>().unwrap() * seconds * 1e9).round() as u64)
}

/// One of the policies that a row stands for, its algorithm and setting, and the starts of its windows.
type Variant = (String, Policy, Option<[u64; 5]>);

/// The policies of `tokens: gcra log 10/60s debt 5 open closed`, one for each algorithm and failure mode.
fn variants(definition: &str) -> Vec<Variant> {
    const EVERY: &str = "gcra meter tokens steps anchored aligned log cells";
    let (name, definition) = definition.split_once(": ").unwrap_or(("p", definition));
    let definition = definition.replace("every", EVERY);
    let words: Vec<&str> = definition.split(' ').collect();
    let after = |word| words.iter().position(|one| *one == word).map(|place| units(words[place + 1]));
    let quota = words.iter().find_map(|word| {
        let (limit, period) = word.split_once('/')?;
        let per_day = period == "day";
        Some(if per_day { Quota::per_day(units(limit)) } else { Quota::new(units(limit), duration(period)) })
    });
    let quota = quota.unwrap_or_else(|| Quota::per_day(10));
    let quota = after("burst").map_or(quota, |burst| quota.burst(burst));
    let plain = || Policy::new(name, quota);
    let mut made: Vec<Variant> = Vec::new();
    for word in &words {
        let step = || quota.period() / u32::try_from(quota.limit()).unwrap();
        let policy = match word.split_once('-').map_or((*word, ""), |parts| parts) {
            ("gcra", _) => plain().algorithm(Gcra::new()),
            ("meter", _) => plain().algorithm(LeakyBucket::meter()),
            ("tokens", _) => plain().algorithm(TokenBucket::new()),
            ("low", start) => plain().algorithm(TokenBucket::new().starting_at(units(start))),
            ("steps", "") => plain().algorithm(TokenBucket::new().refill_every(step())),
            ("steps", step) => plain().algorithm(TokenBucket::new().refill_every(duration(step))),
            ("anchored", _) => plain().algorithm(FixedWindow::anchored()),
            ("aligned", _) => plain().algorithm(FixedWindow::aligned()),
            ("log", _) => plain().algorithm(SlidingLog::new()),
            ("cells", _) => plain().algorithm(SlidingWindow::new().segments(10)),
            ("sliding", _) => plain().algorithm(SlidingWindow::new()),
            ("permits", _) => Policy::concurrency(name, after("permits").unwrap()),
            ("windows", _) => {
                made.extend(windows().map(|(name, policy, starts)| (name.to_owned(), policy, Some(starts))));
                continue;
            }
            _ => continue,
        };
        made.push(((*word).to_owned(), policy, None));
    }
    let modes: Vec<_> = words.iter().copied().filter(|word| matches!(*word, "open" | "closed")).collect();
    let modes = if modes.is_empty() { vec![""] } else { modes };
    let with = |(name, policy, starts): &Variant, mode: &str| {
        let set = |policy: Policy, word: &&str| match *word {
            "debt" => policy.max_debt(after("debt").unwrap()),
            "shadow" => policy.shadow(),
            "penalty" => policy.penalty(Penalty::after(5, MINUTE).ban(MINUTE)),
            "open" if mode == "open" => policy.failure_mode(FailureMode::Open),
            "closed" if mode == "closed" => policy.failure_mode(FailureMode::Closed),
            _ => policy,
        };
        (format!("{name} {mode}"), words.iter().fold(policy.clone(), set), *starts)
    };
    modes.iter().flat_map(|mode| made.iter().map(move |one| with(one, mode)).collect::<Vec<_>>()).collect()
}

/// The facts of an answer that a row may expect.
pub(crate) fn facts(answer: &Result<Decision, Error>) -> Vec<String> {
    let decision = match answer {
        Ok(decision) => decision,
        Err(error) => return vec!["failed".into(), format!("{:?}", error.kind())],
    };
    let granted: Vec<_> = decision.outcomes().iter().map(|one| one.granted().to_string()).collect();
    let verdict = if decision.is_admitted() { "admitted" } else { "denied" };
    let mut facts = vec![verdict.to_owned(), format!("{} granted", granted.join("/"))];
    facts.extend(decision.remaining().map(|left| format!("{left} left")));
    facts.push(decision.retry_after().map_or_else(|| "no wait".into(), |wait| format!("wait {wait:?}")));
    facts.extend(decision.outcomes().first().map(|one| format!("reset {:?}", one.reset_after())));
    facts.extend(decision.failure().map(|_| "failed".to_owned()));
    facts
}

/// A row with one of its policies on one store.
struct Case {
    limiter: Limiter,
    /// The store in process, and whether it loses the answers of the debits and refunds that it makes.
    fake: Fake,
    loses: Arc<AtomicBool>,
    clock: ManualClock,
    policies: Vec<Policy>,
    starts: Option<[u64; 5]>,
    key: Key,
    decisions: HashMap<String, Decision>,
    handles: Vec<Reservation>,
}

impl Case {
    async fn new(store: &str, server: &RedisServer, variants: Vec<Variant>, key: Key) -> Self {
        let (clock, loses) = (ManualClock::new(), Arc::new(AtomicBool::new(false)));
        let is_lost = loses.clone();
        let fake = Fake::new(MemoryStore::with_clock(clock.clone()), move |store, action, charges| {
            let answer = store.decide(action, charges);
            let is_lost = is_lost.load(Relaxed) && matches!(action, Action::Debit | Action::Refund);
            if is_lost { fails(ErrorKind::StoreTimeout) } else { answer }
        });
        let redis = settings().manual_clock(clock.clone()).prefix(store);
        let limiter = match store {
            "memory" => Limiter::new(fake.clone()),
            "redis" => Limiter::new(redis.connect(&server.url()).await.unwrap()),
            _ => Limiter::new(redis.deny_cache(Duration::ZERO).connect(&server.url()).await.unwrap()),
        };
        let starts = variants.iter().find_map(|(.., starts)| *starts);
        let policies = variants.into_iter().map(|(_, policy, _)| policy).collect();
        let (decisions, handles) = (HashMap::new(), Vec::new());
        Self { limiter, fake, loses, clock, policies, starts, key, decisions, handles }
    }

    fn policy(&self, name: &str) -> &Policy {
        self.policies.iter().find(|policy| policy.name() == name).unwrap()
    }

    /// The charges of `10`, of `10 with limit 50 debt 5`, or of `tokens 10, permits 1`.
    fn charges(&self, text: &str) -> Vec<Charge> {
        let charge = |part: &str| {
            let words: Vec<_> = part.split(' ').collect();
            let is_named = words[0].parse::<u64>().is_err();
            let mut policy = if is_named { self.policy(words[0]) } else { &self.policies[0] }.clone();
            for change in words.windows(2) {
                match change[0] {
                    "limit" => {
                        let quota = policy.quota().with_limit(units(change[1])).unwrap();
                        policy = policy.with_quota(quota).unwrap();
                    }
                    "debt" => policy = policy.max_debt(units(change[1])),
                    _ => {}
                }
            }
            Charge::new(&policy, &self.key, units(words[usize::from(is_named)]))
        };
        text.split(", ").map(charge).collect()
    }

    /// What each policy is charged, with shadows.
    async fn charged(&self) -> String {
        let mut charged = Vec::new();
        for policy in &self.policies {
            let left = self.limiter.peek(policy, &self.key, 0).await.unwrap();
            let one = left.outcomes().iter().chain(left.shadows()).next().unwrap();
            charged.push((policy.capacity() - one.remaining()).to_string());
        }
        format!("{} charged", charged.join("/"))
    }

    /// Runs `verb` with the words after it. Returns the facts, or nothing if it has no answer.
    async fn run(&mut self, name: &str, verb: &str, rest: &str) -> Option<Vec<String>> {
        let (first, second) = rest.split_once(' ').unwrap_or((rest, ""));
        let answer = match verb {
            "check" => self.limiter.check_all(&self.charges(rest)).await,
            "take" => {
                let charge = &self.charges(rest)[0];
                self.limiter.check_up_to(charge.policy(), charge.key(), charge.cost()).await
            }
            "peek" => {
                let charge = &self.charges(rest)[0];
                self.limiter.peek(charge.policy(), charge.key(), charge.cost()).await
            }
            "reserve" => {
                let charges = self.charges(rest.trim_end_matches(" or refund"));
                let answer = self.limiter.check_all(&charges).await;
                let handle = Reservation::new(&self.limiter, answer.as_ref().unwrap());
                self.handles.push(if rest.ends_with("refund") { handle.or_refund() } else { handle });
                answer
            }
            "debit" => self.limiter.debit(&self.decisions[first], units(second)).await,
            "refund" => match second.split_once(' ') {
                Some((policy, cost)) => {
                    let part = self.decisions[first].for_policy(policy).unwrap();
                    self.limiter.refund(&part, units(cost)).await
                }
                None => self.limiter.refund(&self.decisions[first].clone(), units(second)).await,
            },
            "settle" => self.handles[0].settle(units(rest)).await,
            "extend" => self.handles[0].extend_to(units(rest)).await,
            "more" => self.handles[0].charge_more(units(rest)).await,
            "owed" => {
                let owed = self.limiter.operator().owed(&self.policies[0], &self.key).await.unwrap();
                return Some(vec![owed.to_string(), "admitted".to_owned()]);
            }
            "refunds" => {
                let made = self.fake.asked(Action::Refund).len();
                return Some(vec![made.to_string(), "admitted".to_owned()]);
            }
            _ => {
                self.act(verb, first, second).await;
                return None;
            }
        };
        let facts = facts(&answer);
        if let Ok(decision) = answer {
            self.decisions.insert(name.to_owned(), decision);
        }
        Some(facts)
    }

    /// Runs a verb that has no answer.
    async fn act(&mut self, verb: &str, first: &str, second: &str) {
        let start =
            |window: &str| Duration::from_secs(self.starts.unwrap()[window.parse::<usize>().unwrap() - 1]);
        match (verb, first) {
            ("store", "fails") => self.fake.fail(ErrorKind::StoreUnreachable),
            ("store", "loses") => self.loses.store(true, Relaxed),
            ("store", "answers") => {
                self.fake.fail(None);
                self.loses.store(false, Relaxed);
            }
            // The answer is dropped without being polled.
            ("send", "settle") => drop(self.handles[0].settle(units(second))),
            ("send", "extend") => drop(self.handles[0].extend_to(units(second))),
            ("record", _) => self.handles[0].record(units(first)),
            ("clone", _) => self.handles.push(self.handles[0].clone()),
            ("drop", _) => self.handles.clear(),
            ("drain", _) => self.limiter.drain(PATIENT).await.unwrap(),
            ("wait", _) => self.clock.advance(duration(first)),
            ("before", _) => {
                self.clock.set(ManualClock::new().now() + start(second) - Duration::from_micros(1))
            }
            ("window", _) => self.clock.set(ManualClock::new().now() + start(first)),
            ("reset", _) => self.limiter.operator().reset(&self.policies[0], &self.key).await.unwrap(),
            ("ban", _) => {
                self.limiter.operator().ban(self.policy(first), &self.key, MINUTE).await.unwrap();
            }
            _ => panic!("not a verb: {verb} {first}"),
        }
    }

    /// Runs a step such as `a: check 10 = denied, wait 60s`. Without an expectation, it is admitted and does not fail.
    async fn step(&mut self, step: &str) -> Result<(), String> {
        let (call, expected) = step.split_once(" = ").unwrap_or((step, ""));
        let (name, call) = call.split_once(": ").unwrap_or(("", call));
        let repeats = call.starts_with("soon ");
        let call = call.trim_start_matches("soon ");
        let (verb, rest) = call.split_once(' ').unwrap_or((call, ""));
        let mut expected: Vec<_> = expected.split(", ").filter(|fact| !fact.is_empty()).collect();
        if !["denied", "failed", "any"].iter().any(|fact| expected.contains(fact)) {
            expected.push("admitted");
        }
        let mut seen = Vec::new();
        let mut holds = async || {
            let Some(facts) = self.run(name, verb, rest).await else { return true };
            seen = facts;
            if expected.iter().any(|fact| fact.ends_with("charged")) {
                seen.push(self.charged().await);
            }
            let fails = seen.contains(&"failed".to_owned()) && !expected.contains(&"failed");
            !fails && expected.iter().all(|fact| *fact == "any" || seen.iter().any(|seen| seen == fact))
        };
        let holds = if repeats { eventually(holds).await } else { holds().await };
        if holds { Ok(()) } else { Err(format!("`{step}`: {}", seen.join(", "))) }
    }
}

/// `text` with the first or the second of the words in each `(one/other)`.
pub(crate) fn chosen(text: &str, place: usize) -> String {
    let mut parts = text.split('(');
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |text, part| {
        let (words, rest) = part.split_once(')').unwrap();
        let word = words.split('/').nth(place).unwrap();
        format!("{text}{word}{rest}")
    })
}

/// The steps of a cell, with `3 times a then b` written out.
fn steps(cell: &str) -> Vec<String> {
    let mut steps = Vec::new();
    for step in cell.split([';', '|']).map(str::trim) {
        match step.split_once(" times ") {
            Some((times, of)) => {
                let of: Vec<_> = of.split(" then ").map(str::to_owned).collect();
                steps.extend(std::iter::repeat_n(of, times.parse().unwrap()).flatten());
            }
            None => steps.push(step.to_owned()),
        }
    }
    steps
}

/// Runs each row with each of its policies on each store, and shows all that differ.
async fn check(table: &str) {
    let server = RedisServer::start();
    let mut differ = Vec::new();
    for [name, policies, cell] in rows(table) {
        let line = 1 + table.lines().position(|line| line.starts_with(&name)).unwrap();
        let mut alternatives = vec![Vec::new()];
        for definition in policies.split(", ") {
            let variants = variants(definition);
            assert!(!variants.is_empty(), "line {line}, {name}: no algorithm");
            let with = |before: &Vec<Variant>| {
                variants
                    .iter()
                    .map(|one| [&before[..], std::slice::from_ref(one)].concat())
                    .collect::<Vec<_>>()
            };
            alternatives = alternatives.iter().flat_map(with).collect();
        }
        let stores: &[_] =
            if cell.contains("store ") { &["memory"] } else { &["memory", "redis", "no-deny-cache"] };
        for (place, variants) in (0..=usize::from(cell.contains('(')))
            .flat_map(|place| alternatives.iter().map(move |variants| (place, variants)))
        {
            let mut cell = chosen(&cell, place);
            for (window, start) in
                variants.iter().find_map(|(.., starts)| *starts).into_iter().flatten().enumerate()
            {
                cell =
                    cell.replace(&format!("<{}>", window + 1), &format!("{:?}", Duration::from_secs(start)));
            }
            let variant = variants.iter().map(|(name, ..)| &**name).collect::<Vec<_>>().join(" ");
            for store in stores {
                let key = Key::new(format!("{line} {place} {variant}"));
                let mut case = Case::new(store, &server, variants.clone(), key).await;
                for step in steps(&cell) {
                    if let Err(seen) = case.step(&step).await {
                        differ.push(format!("line {line}, {name}, {variant}, {store}: {seen}"));
                        break;
                    }
                }
            }
        }
    }
    assert!(differ.is_empty(), "{} cases differ; expected and seen:\n{}", differ.len(), differ.join("\n"));
    // Each key in Redis expires.
    let keys: Vec<String> = server.command(&["KEYS", "*"]);
    assert!(!keys.is_empty());
    for key in keys {
        let ttl: i64 = server.command(&["PTTL", &key]);
        assert!(ttl > 0, "{key}: {ttl}");
    }
}
