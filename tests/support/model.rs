//! What the algorithms promise, computed the slow and obvious way: exact fractions, no packing, no
//! shared code with the crate.

use std::{collections::HashMap, time::Duration};

/// A policy as the model knows it.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub counting: Counting,
    pub limit: u64,
    pub period: u64,
    pub capacity: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    Gcra,
    Anchored,
    /// Windows open at this many microseconds past each multiple of the period.
    Aligned(u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub admitted: bool,
    pub remaining: u64,
    pub reset: Duration,
    /// Of a refusal: the wait, or `None` where waiting cannot help.
    pub retry: Option<Duration>,
}

/// Everything that was charged and still counts: so many units since a moment.
#[derive(Clone, Copy, Debug)]
struct Account {
    since: i128,
    units: i128,
}

#[derive(Default)]
pub struct Model {
    accounts: HashMap<(usize, String), Account>,
}

/// A look at one account at one moment.
struct View {
    account: Account,
    /// The account had to be moved to now, because the clock stepped back or the quota was lowered.
    moved: bool,
    used_up: Used,
}

/// What is used of the capacity, as a fraction.
#[derive(Clone, Copy)]
struct Used {
    numerator: i128,
    denominator: i128,
}

impl Model {
    /// All of `charges` (policy number, policy, key, cost) at `now`, or none.
    pub fn decide(&mut self, charges: &[(usize, Rule, &str, u64)], now: u64, take: bool) -> Vec<Said> {
        let now = i128::from(now);
        let views: Vec<View> =
            charges.iter().map(|&(id, rule, key, _)| self.view(id, rule, key, now)).collect();
        let admitted = charges.iter().zip(&views).all(|((_, rule, _, cost), view)| view.admits(*rule, *cost));
        let mut said = Vec::new();
        for (&(id, rule, key, cost), view) in charges.iter().zip(&views) {
            let mut after = Account { ..view.account };
            if take && admitted {
                after.units += i128::from(cost);
            }
            if take && cost > 0 && (admitted || view.moved) {
                self.accounts.insert((id, key.to_owned()), after);
            }
            let fits = view.admits(rule, cost);
            said.push(Said {
                admitted: fits,
                remaining: remaining(rule, after, now),
                reset: micros(first(now, |then| drained(rule, after, then))),
                retry: (!fits && cost <= rule.capacity)
                    .then(|| micros(first(now, |then| used(rule, after, then).leaves(rule.capacity, cost)))),
            });
        }
        said
    }

    pub fn reset(&mut self, id: usize, key: &str) {
        self.accounts.remove(&(id, key.to_owned()));
    }

    fn view(&self, id: usize, rule: Rule, key: &str, now: i128) -> View {
        let fresh = Account { since: start(rule, now), units: 0 };
        let mut account = self.accounts.get(&(id, key.to_owned())).copied().unwrap_or(fresh);
        let mut moved = false;
        if account.since > fresh.since {
            account.since = fresh.since;
            moved = true;
        }
        if drained(rule, account, now) {
            account = fresh;
            moved = false;
        }
        if rule.counting == Counting::Gcra {
            // The account moves along in the shortest spans in which whole units come back.
            let (units, span) = lowest_terms(rule);
            let spans = (now - account.since) / span;
            account = Account { since: account.since + spans * span, units: account.units - spans * units };
            if used(rule, account, now).exceeds(rule.capacity) {
                account = Account { since: now, units: i128::from(rule.capacity) };
                moved = true;
            }
        }
        View { account, moved: moved && account.units > 0, used_up: used(rule, account, now) }
    }
}

impl View {
    fn admits(&self, rule: Rule, cost: u64) -> bool {
        cost == 0 || self.used_up.leaves(rule.capacity, cost)
    }
}

impl Used {
    fn leaves(self, capacity: u64, cost: u64) -> bool {
        self.numerator + i128::from(cost) * self.denominator <= i128::from(capacity) * self.denominator
    }

    fn exceeds(self, capacity: u64) -> bool {
        self.numerator > i128::from(capacity) * self.denominator
    }
}

/// Where an account opened at `now` starts.
fn start(rule: Rule, now: i128) -> i128 {
    match rule.counting {
        Counting::Gcra | Counting::Anchored => now,
        Counting::Aligned(offset) => now - (now - i128::from(offset)).rem_euclid(i128::from(rule.period)),
    }
}

/// What is used of `account` at `now`, if nothing happens until then.
fn used(rule: Rule, account: Account, now: i128) -> Used {
    let period = i128::from(rule.period);
    match rule.counting {
        Counting::Gcra => Used {
            numerator: (account.units * period - (now - account.since) * i128::from(rule.limit)).max(0),
            denominator: period,
        },
        Counting::Anchored => {
            Used { numerator: if now >= account.since + period { 0 } else { account.units }, denominator: 1 }
        }
        Counting::Aligned(_) => Used {
            numerator: if start(rule, now) > account.since { 0 } else { account.units },
            denominator: 1,
        },
    }
}

fn drained(rule: Rule, account: Account, now: i128) -> bool {
    used(rule, account, now).numerator == 0
}

fn remaining(rule: Rule, account: Account, now: i128) -> u64 {
    let used = used(rule, account, now);
    let free = (i128::from(rule.capacity) * used.denominator - used.numerator).max(0) / used.denominator;
    u64::try_from(free).unwrap()
}

/// The shortest wait from `now` until `holds`, found by bisection: once true it stays true.
fn first(now: i128, holds: impl Fn(i128) -> bool) -> i128 {
    let (mut low, mut high) = (0, 1);
    if holds(now) {
        return 0;
    }
    while !holds(now + high) {
        low = high;
        high *= 2;
    }
    while high - low > 1 {
        let middle = (low + high) / 2;
        if holds(now + middle) { high = middle } else { low = middle }
    }
    high
}

fn lowest_terms(rule: Rule) -> (i128, i128) {
    let (mut a, mut b) = (rule.limit, rule.period);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    (i128::from(rule.limit / a), i128::from(rule.period / a))
}

fn micros(wait: i128) -> Duration {
    Duration::from_micros(u64::try_from(wait).unwrap())
}
