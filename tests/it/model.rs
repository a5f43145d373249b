//! The promises of the algorithms, computed in a slow and obvious way: with exact fractions, times found by
//! bisection, no packed state, and no code shared with the crate.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use jiff::{
    Span, Timestamp,
    civil::Date,
    tz::{Offset, TimeZone},
};

/// The most units of a cell: 40 bits.
const MOST_OF_A_CELL: i128 = (1 << 40) - 1;

/// A policy as the model knows it. Times are microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) counting: Counting,
    pub(crate) limit: u64,
    pub(crate) period: u64,
    /// The capacity of a bucket. Unused by the other algorithms.
    pub(crate) burst: u64,
    /// The units by which debits may exceed the capacity.
    pub(crate) debt: u64,
    /// Whether its denials deny nothing.
    pub(crate) shadow: bool,
    pub(crate) penalty: Option<Penalty>,
    /// The units that must remain for the request to be admitted.
    pub(crate) headroom: u64,
}

/// When denials ban a key. Times are microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Penalty {
    pub(crate) after: u64,
    pub(crate) within: u64,
    pub(crate) first: u64,
    pub(crate) longest: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// GCRA, the continuous token bucket that is full at first, and the leaky bucket as a meter.
    Gcra,
    Meter,
    /// With `step`, tokens are added together, at this interval.
    Tokens {
        initial: u64,
        step: Option<u64>,
    },
    /// The `burst` of the rule is admitted without a delay. No delay is longer than `wait`.
    Queue {
        wait: u64,
    },
    Anchored,
    /// Windows open at this many microseconds past each multiple of the period.
    Aligned(u64),
    Calendar(Calendar),
    Log,
    Cells(u64),
}

/// The windows of a calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Calendar {
    /// `day`, `week`, `month`, `quarter` or `year`.
    pub(crate) unit: &'static str,
    /// The weekday from Monday, counted from 0, on which a week starts; the day of a month; or the month in which
    /// a quarter or a year starts.
    pub(crate) first: i8,
    /// Of the IANA database, or an offset such as `+05:45`.
    pub(crate) zone: &'static str,
}

thread_local! {
    /// What [`Calendar::starts`] has found, by the calendar, the day, and whether the windows before it were looked for.
    static STARTS: RefCell<HashMap<(Calendar, Date, bool), Vec<i128>>> = RefCell::default();
}

impl Calendar {
    /// When the window of `now` started: the latest date on which one starts, looked for day by day.
    fn start(self, now: i128) -> i128 {
        self.starts(now, true).into_iter().filter(|start| *start <= now).max().unwrap()
    }

    /// When the window after the one of `now` starts: the earliest date after that one on which one starts.
    fn next(self, now: i128) -> i128 {
        let start = self.start(now);
        self.starts(start, false).into_iter().filter(|next| *next > start).min().unwrap()
    }

    /// When windows start at `now` or in the longest window before it, otherwise after it, and some others.
    fn starts(self, now: i128, is_before: bool) -> Vec<i128> {
        let zone = match self.zone.strip_prefix('+').and_then(|offset| offset.split_once(':')) {
            Some((hours, minutes)) => {
                let minutes = hours.parse::<i32>().unwrap() * 60 + minutes.parse::<i32>().unwrap();
                TimeZone::fixed(Offset::from_seconds(minutes * 60).unwrap())
            }
            None => TimeZone::get(self.zone).unwrap(),
        };
        let now = i64::try_from(now).unwrap();
        let today = Timestamp::from_microsecond(now).unwrap().to_zoned(zone.clone()).date();
        let found = STARTS.with_borrow(|starts| starts.get(&(self, today, is_before)).cloned());
        found.unwrap_or_else(|| {
            // A window is no longer than this, and a time zone can skip a day.
            let longest = match self.unit {
                "day" => 3,
                "week" => 9,
                "month" => 33,
                "quarter" => 94,
                _ => 368,
            };
            let days = (-1..longest).map(|days| Span::new().days(if is_before { -days } else { days }));
            let days = days.map(|days| today.saturating_add(days)).filter(|day| self.is_start(*day));
            let start = |day: Date| day.to_zoned(zone.clone()).unwrap().start_of_day().unwrap().timestamp();
            let found: Vec<i128> = days.map(|day| start(day).as_microsecond().into()).collect();
            STARTS.with_borrow_mut(|starts| starts.insert((self, today, is_before), found.clone()));
            found
        })
    }

    fn is_start(self, day: Date) -> bool {
        let is_first = day.day() == 1 && (day.month() - self.first).rem_euclid(3) == 0;
        match self.unit {
            "day" => true,
            "week" => day.weekday().to_monday_zero_offset() == self.first,
            "month" => day.day() == self.first.min(day.days_in_month()),
            "quarter" => is_first,
            _ => is_first && day.month() == self.first,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Take,
    TakeUpTo,
    Debit,
    Peek,
    /// A refund of the latest units, without a receipt.
    Refund,
    /// A refund of the charges with these receipts, one for each charge.
    RefundOf,
}

/// Identifies a charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Receipt {
    made: i128,
    mark: i128,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) admitted: bool,
    pub(crate) granted: u64,
    pub(crate) remaining: u64,
    pub(crate) reset: Duration,
    pub(crate) delay: Duration,
    /// The wait of a denial, or `None` if waiting does not help.
    pub(crate) retry: Option<Duration>,
    /// The rest of the ban of the key.
    pub(crate) banned: Option<Duration>,
}

/// Every charge that may still count (time and units), and the width of cells at that time.
#[derive(Clone, Debug, Default)]
struct Account {
    entries: Vec<(i128, i128)>,
    width: i128,
    /// By how many microseconds refunds moved the front of a bucket.
    refunded: i128,
    /// The start of the account. Earlier charges cannot be refunded any more.
    since: i128,
    /// The units of a bucket in addition to its entry's, and the capacity of the policy that its entry is of.
    above: (i128, i128),
    /// How many units of the entry are owed: a debt.
    owed: i128,
    /// How many units of a window's entry earlier windows charged, and when the last of those that was written began.
    carried: (i128, i128),
    /// The time of a bucket before this one never passed: refunds drained the bucket for so much longer.
    real_from: i128,
    /// The units that drained in it, and in how many microseconds.
    rate: (i128, i128),
}

/// Every denial of the window, the number of bans, and the latest one: when it began and when it ends.
#[derive(Clone, Debug, Default)]
struct Punished {
    denials: Vec<i128>,
    bans: u32,
    latest: Option<(i128, i128)>,
}

#[derive(Default)]
pub(crate) struct Model {
    punished: HashMap<(usize, String), Punished>,
    accounts: HashMap<(usize, String), Account>,
    /// When a key with an account was last reset.
    resets: HashMap<(usize, String), i128>,
    /// The receipts of the latest decision that charged something, and those that a refund refers to.
    pub(crate) receipts: Vec<Receipt>,
    /// Whether the latest decision was a denial that changed an account.
    pub(crate) moved_by_denial: bool,
}

/// The units that must remain for a cost to be admitted.
fn beside(ask: Ask, rule: Rule, cost: u64) -> u64 {
    let leaves = cost > 0 && matches!(ask, Ask::Take | Ask::Peek);
    cost + if leaves { rule.headroom } else { 0 }
}

/// An account at a moment; and whether it had to be changed because the clock stepped back, the quota was
/// lowered, or the key is new and does not start full.
struct View {
    account: Account,
    moved: bool,
}

impl Model {
    /// `ask` for all of `charges` (policy number, policy, key, cost) at `now`.
    pub(crate) fn decide(&mut self, ask: Ask, charges: &[(usize, Rule, &str, u64)], now: u64) -> Vec<Said> {
        let now = i128::from(now);
        let mut asked = Vec::new();
        let mut punished = Vec::new();
        for &(id, rule, key, cost) in charges {
            let checks = matches!(ask, Ask::Take | Ask::TakeUpTo | Ask::Peek) && cost > 0 && !rule.shadow;
            punished.push(rule.penalty.filter(|_| checks).map(|penalty| {
                let (punished, moved) = self.punished(id, penalty, key, now);
                (penalty, punished, moved)
            }));
        }
        let was_banned = punished.iter().flatten().any(|(_, punished, _)| punished.rest(now) > 0);
        for &(id, rule, key, mut cost) in charges {
            let mut view = self.view(id, rule, key, now);
            if matches!(ask, Ask::Refund | Ask::RefundOf) {
                let account = self.accounts.get(&(id, key.to_owned()));
                let seen = account.is_some_and(|account| !account.entries.is_empty());
                let reset = self.resets.get(&(id, key.to_owned()));
                let is_returned = match ask {
                    Ask::RefundOf if reset.is_some_and(|reset| self.receipts[asked.len()].made <= *reset) => {
                        false
                    }
                    Ask::RefundOf if cost > 0 && seen => {
                        let raw = &self.accounts[&(id, key.to_owned())];
                        view.refund_of(raw, rule, cost, now, self.receipts[asked.len()])
                    }
                    Ask::Refund if cost > 0 && seen => {
                        view.refund(rule, cost, now);
                        true
                    }
                    _ => false,
                };
                if is_returned {
                    self.accounts.insert((id, key.to_owned()), view.written(rule, now));
                }
                view = self.view(id, rule, key, now);
                cost = 0;
            }
            if ask == Ask::TakeUpTo && !view.admits(rule, cost, now) {
                cost = view.remaining(rule, now).max(1);
            }
            if ask == Ask::Debit {
                cost = cost.min(view.room(rule, now));
            }
            asked.push((id, rule, key, cost, view));
        }
        let admits = |rule: Rule, cost, view: &View| {
            ask == Ask::Debit || view.admits(rule, beside(ask, rule, cost), now)
        };
        let admitted = !was_banned
            && asked.iter().all(|(_, rule, _, cost, view)| rule.shadow || admits(*rule, *cost, view));
        let takes = matches!(ask, Ask::Take | Ask::TakeUpTo | Ask::Debit);
        if takes && admitted {
            self.receipts.clear();
        }
        self.moved_by_denial = takes
            && asked.iter().any(|(_, rule, _, cost, view)| {
                *cost > 0 && view.moved && !(admitted && admits(*rule, *cost, view))
            });
        for ((id, rule, key, cost, view), punished) in asked.iter().zip(&mut punished) {
            let Some((penalty, punished, moved)) = punished else { continue };
            let is_kept = rule.headroom > 0 && view.admits(*rule, *cost, now);
            let strikes = takes && !was_banned && !admits(*rule, *cost, view) && !is_kept;
            if strikes {
                punished.strike(*penalty, now);
            }
            if takes && (strikes || *moved) {
                self.punished.insert((*id, (*key).to_owned()), punished.clone());
            }
            self.moved_by_denial |= takes && *moved;
        }
        let mut said = Vec::new();
        for ((id, rule, key, cost, view), punished) in asked.into_iter().zip(punished) {
            let fits = admits(rule, cost, &view);
            let delay = if fits && ask != Ask::Debit { view.delay(rule, cost, now) } else { 0 };
            let retry = (!fits && beside(ask, rule, cost) <= capacity(rule))
                .then(|| first(|wait| view.admits(rule, beside(ask, rule, cost), now + wait)));
            let mut after = View { account: view.account.clone(), moved: view.moved };
            let charged = takes && admitted && fits;
            if charged {
                after.charge(rule, cost, now);
                self.receipts.push(after.receipt(rule, now));
            }
            if takes && cost > 0 && (charged || view.moved) {
                self.accounts.insert((id, key.to_owned()), after.written(rule, now));
            }
            let mut of_rule = Said {
                admitted: fits,
                granted: if fits { cost } else { 0 },
                remaining: after.remaining(rule, now).saturating_sub(rule.headroom),
                reset: micros(first(|wait| after.is_fully_replenished(rule, now + wait))),
                delay: micros(delay),
                retry: retry.map(micros),
                banned: None,
            };
            let rest = punished.map_or(0, |(_, punished, _)| punished.rest(now));
            if rest > 0 {
                let rest = micros(rest);
                of_rule = Said {
                    admitted: false,
                    granted: 0,
                    remaining: 0,
                    reset: of_rule.reset.max(rest),
                    delay: Duration::ZERO,
                    retry: if fits { Some(rest) } else { of_rule.retry.map(|retry| retry.max(rest)) },
                    banned: Some(rest),
                };
            }
            said.push(of_rule);
        }
        said
    }

    /// A charge from before it, or from the same microsecond, returns nothing afterwards.
    pub(crate) fn reset(&mut self, id: usize, key: &str, now: u64) {
        let account = self.accounts.remove(&(id, key.to_owned()));
        if account.is_some_and(|account| !account.entries.is_empty()) {
            let latest = self.resets.entry((id, key.to_owned())).or_default();
            *latest = i128::from(now).max(*latest);
        }
    }

    /// A ban by an operator, for as many microseconds; 0 ends it.
    pub(crate) fn ban(&mut self, id: usize, penalty: Penalty, key: &str, length: u64, now: u64) {
        let now = i128::from(now);
        let bans = self.punished(id, penalty, key, now).0.bans;
        if length == 0 {
            self.punished.remove(&(id, key.to_owned()));
            return;
        }
        let latest = Some((now, now + i128::from(length)));
        self.punished.insert((id, key.to_owned()), Punished { denials: Vec::new(), bans, latest });
    }

    /// The denials and bans as of `now`, and whether the clock stepped back behind them.
    fn punished(&self, id: usize, penalty: Penalty, key: &str, now: i128) -> (Punished, bool) {
        let mut punished = self.punished.get(&(id, key.to_owned())).cloned().unwrap_or_default();
        let began = punished.denials.first().copied().or_else(|| punished.latest.map(|(began, _)| began));
        let ahead = began.map_or(0, |began| began - now).max(0);
        if ahead > 0 {
            for denial in &mut punished.denials {
                *denial = now;
            }
            punished.latest = punished.latest.map(|(began, ends)| (began - ahead, (ends - ahead).max(0)));
        }
        if punished.denials.first().is_some_and(|first| first + i128::from(penalty.within) <= now) {
            punished.denials.clear();
        }
        let remembered = if penalty.longest > penalty.first { i128::from(penalty.longest) } else { 0 };
        if punished.latest.is_some_and(|(_, ends)| ends + remembered <= now) {
            (punished.bans, punished.latest) = (0, None);
        }
        let matters = !punished.denials.is_empty() || punished.latest.is_some();
        (punished, ahead > 0 && matters)
    }

    fn view(&self, id: usize, rule: Rule, key: &str, now: i128) -> View {
        let account = self.accounts.get(&(id, key.to_owned())).cloned().unwrap_or_default();
        let Account {
            mut entries,
            width: mut old_width,
            refunded,
            since,
            mut above,
            mut owed,
            mut carried,
            real_from,
            rate,
        } = account;
        let mut moved = false;
        match rule.counting {
            Counting::Log => {
                moved = entries.iter().any(|(at, _)| *at > now);
                for (at, _) in &mut entries {
                    *at = (*at).min(now);
                }
                entries.retain(|(at, _)| at + i128::from(rule.period) > now);
            }
            Counting::Cells(cells) => {
                let width = i128::from(rule.period / cells);
                let began = now - now.rem_euclid(width);
                let latest = entries.iter().map(|(at, _)| *at).max().unwrap_or(began);
                if latest > now {
                    moved = true;
                    for (at, _) in &mut entries {
                        *at -= latest - began;
                    }
                }
                for (at, _) in &mut entries {
                    if old_width != width {
                        *at = (*at + old_width - 1).min(now);
                    }
                    *at = (*at - at.rem_euclid(width)).min(began);
                }
                if old_width != width {
                    // A wider cell takes in several, and counts no more units than fit into its bytes.
                    let mut counted = BTreeMap::<i128, i128>::new();
                    for (at, units) in &mut entries {
                        let of_cell = counted.entry(*at).or_default();
                        *units = (*units).min(MOST_OF_A_CELL - *of_cell);
                        *of_cell += *units;
                    }
                }
                old_width = width;
                entries.retain(|(at, _)| at + width * i128::from(cells) >= began);
            }
            Counting::Anchored | Counting::Aligned(_) | Counting::Calendar(_) => {
                if let Some((at, _)) = entries.first_mut()
                    && *at > now
                {
                    *at = now;
                    moved = true;
                }
                let stored = Account { entries, owed, carried, ..Account::default() };
                Account { entries, owed, carried, .. } = window_at(rule, stored, now);
            }
            _ => {
                if let Some(entry) = entries.first_mut().filter(|_| rate != steps(rule)) {
                    *entry = at_another_rate(*entry, real_from, rate, steps(rule));
                }
                (entries, above, moved) = bucket(rule, &entries, above, owed, now);
            }
        }
        let (real_from, rate) = (real_from.min(now), steps(rule));
        let width = old_width;
        let account = Account { entries, width, refunded, since, above, owed, carried, real_from, rate };
        let view = View { account, moved };
        let something = view.account.entries.iter().any(|(_, units)| *units > 0);
        View { moved: moved && something, ..view }
    }
}

impl Punished {
    fn rest(&self, now: i128) -> i128 {
        self.latest.map_or(0, |(_, ends)| (ends - now).max(0))
    }

    fn strike(&mut self, penalty: Penalty, now: i128) {
        self.denials.push(now);
        if self.denials.len() as u64 >= penalty.after {
            let length = (i128::from(penalty.first) << self.bans.min(60)).min(i128::from(penalty.longest));
            *self = Self { denials: Vec::new(), bans: self.bans + 1, latest: Some((now, now + length)) };
        }
    }
}

type Units = (i128, i128);

/// The entry of a bucket that drained at the rate `old` before `real_from`, without time passing: as many units have drained
/// at the rate `new`, the whole ones and then the rest.
fn at_another_rate((since, units): Units, real_from: i128, old: Units, new: Units) -> Units {
    if real_from <= since {
        return (since, units);
    }
    let drained = Fraction { numerator: (real_from - since) * old.0, denominator: old.1 };
    let rest = drained.numerator - drained.whole() * drained.denominator;
    let time = Fraction { numerator: rest * new.1, denominator: drained.denominator * new.0 };
    (real_from - time.whole(), units - drained.whole())
}

/// The entry of a bucket as of `now`, the units above it, and whether a denial writes them.
fn bucket(rule: Rule, entries: &[Units], above: Units, owed: i128, now: i128) -> (Vec<Units>, Units, bool) {
    let whole = i128::from(capacity(rule));
    let (mut above, of) = above;
    let mut entry = entries.first().copied();
    let (since, units) = entry.unwrap_or_default();
    // A debt is paid off first, and what is above the room of this policy is not owed.
    let owed = (units - of - paid(rule, since, now).whole()).clamp(0, owed.min(i128::from(rule.debt)));
    let room = Rule { debt: u64::try_from(owed).unwrap(), ..rule };
    if let Some((_, units)) = &mut entry {
        // Under a larger capacity all units count together.
        if whole > of {
            (*units, above) = (*units + above, 0);
        }
    }
    let burst = i128::from(rule.burst);
    let initial = match rule.counting {
        Counting::Tokens { initial, .. } => i128::from(initial).min(burst),
        _ => burst,
    };
    let paid_after = |since, units| first(|wait| paid(rule, since, since + wait).leaves(units, 0));
    if let Some((since, units)) = entry
        && initial < burst
        && since <= now
        && now - since >= paid_after(since, units + above) + paid_after(since, burst)
    {
        (entry, above) = (None, 0);
    }
    let (mut since, mut units, mut moved) = match entry {
        None => (now, burst - initial, initial < burst),
        Some((since, units)) if since > now => (now, units, true),
        Some((since, units)) => (since, units, false),
    };
    if entry.is_some() && paid(rule, since, now).leaves(units, 0) {
        above = (above + units - paid(rule, since, now).whole()).max(0);
        (since, units) = (now, 0);
    }
    // It advances in the shortest spans in which whole units are replenished.
    let (step_units, step) = steps(rule);
    let spans = (now - since) / step;
    (since, units) = (since + spans * step, units - spans * step_units);
    if !fits(with_room(room), since, units, now) {
        above += units - paid(rule, since, now).whole() - whole - owed;
        (since, units, moved) = (now, whole + owed, true);
    }
    (vec![(since, units)], (above, whole), moved)
}

/// The units that a bucket drained since `since`, as a fraction.
fn paid(rule: Rule, since: i128, now: i128) -> Fraction {
    let elapsed = (now - since).max(0);
    match rule.counting {
        Counting::Tokens { step: Some(_), .. } => {
            let (units, step) = steps(rule);
            Fraction { numerator: elapsed / step * units, denominator: 1 }
        }
        _ => Fraction { numerator: elapsed * i128::from(rule.limit), denominator: i128::from(rule.period) },
    }
}

/// Whole microseconds in which `units` drain, as if evenly.
fn drain_time(rule: Rule, units: i128) -> i128 {
    let (limit, period) = (i128::from(rule.limit), i128::from(rule.period));
    (units * period + limit - 1) / limit
}

/// Units, and the whole microseconds in which they are replenished.
fn steps(rule: Rule) -> (i128, i128) {
    if let Counting::Tokens { step: Some(step), .. } = rule.counting {
        let units = i128::from(step) * i128::from(rule.limit) / i128::from(rule.period);
        return (units, i128::from(step));
    }
    let (mut a, mut b) = (rule.limit, rule.period);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    (i128::from(rule.limit / a), i128::from(rule.period / a))
}

/// The rule that debits are counted by.
fn with_room(rule: Rule) -> Rule {
    let Rule { mut counting, mut limit, burst, debt, .. } = rule;
    match &mut counting {
        Counting::Tokens { initial, .. } => *initial += debt,
        Counting::Log | Counting::Cells(_) => limit += debt,
        _ => {}
    }
    Rule { counting, limit, burst: burst + debt, debt: 0, ..rule }
}

/// Whether `units` owed since `since` fit into the bucket, including the wait.
fn fits(rule: Rule, since: i128, units: i128, now: i128) -> bool {
    paid(rule, since, now + wait(rule)).leaves(units, i128::from(rule.burst))
}

fn wait(rule: Rule) -> i128 {
    match rule.counting {
        Counting::Queue { wait } => i128::from(wait),
        _ => 0,
    }
}

pub(crate) fn capacity(rule: Rule) -> u64 {
    match rule.counting {
        Counting::Queue { wait } => {
            let waiting = u128::from(wait) * u128::from(rule.limit) / u128::from(rule.period);
            rule.burst + u64::try_from(waiting).unwrap()
        }
        Counting::Gcra | Counting::Meter | Counting::Tokens { .. } => rule.burst,
        _ => rule.limit,
    }
}

/// The account of a window at a later moment: window after window, each of which pays for what is owed.
fn window_at(rule: Rule, mut account: Account, now: i128) -> Account {
    let Some(&(_, used)) = account.entries.first() else {
        return Account { entries: vec![(now, 0)], ..Account::default() };
    };
    let limit = i128::from(rule.limit);
    account.owed = account.owed.min(rule.debt.into()).min(used - limit).max(0);
    let (written, _) = account.entries[0];
    loop {
        let (at, _) = account.entries[0];
        if is_in_window(rule, at, now) {
            return account;
        }
        if account.owed == 0 {
            return Account { entries: vec![(now, 0)], ..Account::default() };
        }
        let period = i128::from(rule.period);
        let next = match rule.counting {
            Counting::Aligned(offset) => at - (at - i128::from(offset)).rem_euclid(period) + period,
            Counting::Calendar(calendar) => calendar.next(at),
            _ => at + period,
        };
        account.entries = vec![(next, account.owed)];
        account.carried = (account.owed, written);
        account.owed = (account.owed - limit).max(0);
    }
}

/// Whether a window whose first unit was charged `at` is the one of `now`.
fn is_in_window(rule: Rule, at: i128, now: i128) -> bool {
    let period = i128::from(rule.period);
    match rule.counting {
        Counting::Aligned(offset) => at >= now - (now - i128::from(offset)).rem_euclid(period),
        Counting::Calendar(calendar) => at >= calendar.start(now),
        _ => at + period > now,
    }
}

impl View {
    fn admits(&self, rule: Rule, cost: u64, now: i128) -> bool {
        if cost == 0 {
            return true;
        }
        let cost = i128::from(cost);
        match rule.counting {
            Counting::Anchored
            | Counting::Aligned(_)
            | Counting::Calendar(_)
            | Counting::Log
            | Counting::Cells(_) => self.used(rule, now).whole() + cost <= i128::from(rule.limit),
            _ => {
                let (since, units) = self.account.entries[0];
                let drained = paid(rule, since, now).leaves(units, 0);
                fits(
                    rule,
                    since,
                    if drained { cost } else { units + cost },
                    if drained { since } else { now },
                )
            }
        }
    }

    /// The units that a debit can charge.
    fn room(&self, rule: Rule, now: i128) -> u64 {
        match rule.counting {
            Counting::Anchored | Counting::Aligned(_) | Counting::Calendar(_) => {
                let owed = u64::try_from(self.account.owed).unwrap();
                self.remaining(rule, now) + rule.debt - owed
            }
            _ => self.remaining(with_room(rule), now),
        }
    }

    /// The used units of a window.
    fn used(&self, rule: Rule, now: i128) -> Fraction {
        let period = i128::from(rule.period);
        let alive = |at: i128| at + period > now;
        match rule.counting {
            Counting::Aligned(_) | Counting::Calendar(_) | Counting::Anchored => Fraction {
                numerator: window_at(rule, self.account.clone(), now).entries[0].1,
                denominator: 1,
            },
            Counting::Log => Fraction {
                numerator: self
                    .account
                    .entries
                    .iter()
                    .filter(|(at, _)| alive(*at))
                    .map(|(_, units)| units)
                    .sum(),
                denominator: 1,
            },
            Counting::Cells(cells) => {
                let width = period / i128::from(cells);
                let began = now - now.rem_euclid(width);
                let weigh = |(at, units): &(i128, i128)| match (began - at) / width {
                    age if age < i128::from(cells) => units * width,
                    age if age == i128::from(cells) => units * (width - (now - began)),
                    _ => 0,
                };
                Fraction { numerator: self.account.entries.iter().map(weigh).sum(), denominator: width }
            }
            _ => unreachable!("buckets do not count used units"),
        }
    }

    fn remaining(&self, rule: Rule, now: i128) -> u64 {
        // The largest cost that is admitted.
        let (mut low, mut high) = (0, capacity(rule) + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.admits(rule, middle, now) { low = middle } else { high = middle }
        }
        low
    }

    fn is_fully_replenished(&self, rule: Rule, now: i128) -> bool {
        match rule.counting {
            Counting::Anchored
            | Counting::Aligned(_)
            | Counting::Calendar(_)
            | Counting::Log
            | Counting::Cells(_) => self.used(rule, now).numerator == 0,
            _ => {
                let (since, units) = self.account.entries[0];
                paid(rule, since, now).leaves(units, 0)
            }
        }
    }

    /// The delay of an admitted request: until the owed units and its own fit into the burst.
    fn delay(&self, rule: Rule, cost: u64, now: i128) -> i128 {
        match rule.counting {
            Counting::Queue { .. } if cost > 0 => {
                let (since, units) = self.account.entries[0];
                first(|wait| {
                    paid(rule, since, now + wait).leaves(units + i128::from(cost), i128::from(rule.burst))
                })
            }
            _ => 0,
        }
    }

    fn charge(&mut self, rule: Rule, cost: u64, now: i128) {
        let (entries, cost) = (&mut self.account.entries, i128::from(cost));
        match rule.counting {
            Counting::Log => entries.push((now, cost)),
            Counting::Cells(cells) => {
                entries.push((now - now.rem_euclid(i128::from(rule.period / cells)), cost));
            }
            Counting::Anchored | Counting::Aligned(_) | Counting::Calendar(_) => {
                // Unit by unit, what does not fit into the limit is owed.
                let fits = (i128::from(rule.limit) - entries[0].1).clamp(0, cost);
                entries[0].1 += cost;
                self.account.owed += cost - fits;
            }
            _ => entries[0].1 += cost,
        }
    }

    /// The account to remember. A bucket's units that do not fit into it are owed.
    fn written(&self, rule: Rule, now: i128) -> Account {
        let mut account = self.account.clone();
        account.owed = match (rule.counting, account.entries.first()) {
            (Counting::Anchored | Counting::Aligned(_) | Counting::Calendar(_), _) => account.owed,
            (Counting::Log | Counting::Cells(_), _) | (_, None) => 0,
            (_, Some(&(since, units))) if rule.debt > 0 => {
                (units - paid(rule, since, now + wait(rule)).whole() - i128::from(rule.burst)).max(0)
            }
            _ => 0,
        };
        account
    }

    /// The receipt of the latest charge.
    fn receipt(&self, rule: Rule, now: i128) -> Receipt {
        let mark = match rule.counting {
            Counting::Anchored | Counting::Aligned(_) | Counting::Calendar(_) => self.account.entries[0].0,
            Counting::Log => 0,
            Counting::Cells(cells) => {
                let width = i128::from(rule.period / cells);
                now - now.rem_euclid(width) + width - 1
            }
            // When all charges so far, including this one, will have drained.
            _ => {
                let (since, units) = self.account.entries[0];
                since + drain_time(rule, units) + self.account.refunded
            }
        };
        Receipt { made: now, mark }
    }

    /// Refunds the part of a charge that still counts. Returns `false` if no part does. Nothing is written then.
    fn refund_of(&mut self, raw: &Account, rule: Rule, units: u64, now: i128, charge: Receipt) -> bool {
        let mut units = i128::from(units);
        if matches!(
            rule.counting,
            Counting::Anchored
                | Counting::Aligned(_)
                | Counting::Calendar(_)
                | Counting::Log
                | Counting::Cells(_)
        ) {
            // The state as stored, regardless of the current quota.
            self.account = raw.clone();
        }
        let Account { entries, refunded, since: start, width: written, real_from, owed, carried, .. } =
            &mut self.account;
        match rule.counting {
            Counting::Anchored | Counting::Aligned(_) | Counting::Calendar(_) => {
                let (began, used) = entries[0];
                let is_carried = carried.0 > 0 && carried.1 == charge.mark;
                let most = if began == charge.mark {
                    used - carried.0
                } else if is_carried {
                    carried.0
                } else {
                    return false;
                };
                let given = units.min(most);
                entries[0].1 -= given;
                carried.0 -= if is_carried { given } else { 0 };
                *owed = (*owed - given).max(0);
                entries.retain(|(_, charged)| *charged > 0);
            }
            Counting::Log | Counting::Cells(_) => {
                let (width, time, lasts) = match rule.counting {
                    Counting::Cells(cells) => {
                        let width = i128::from(rule.period / cells);
                        (width, charge.mark - charge.mark.rem_euclid(width), i128::from(rule.period) + width)
                    }
                    _ => (*written, charge.made, i128::from(rule.period)),
                };
                let stepped_back = entries.iter().any(|(at, _)| *at > now);
                if width != *written || stepped_back || time + lasts <= now {
                    return false;
                }
                for (_, charged) in entries.iter_mut().filter(|(at, _)| *at == time) {
                    let given = units.min(*charged);
                    *charged -= given;
                    units -= given;
                }
                // Cells keep the time of their last write, because the clock may step back.
                if rule.counting == Counting::Log || entries.iter().all(|(_, charged)| *charged == 0) {
                    entries.retain(|(_, charged)| *charged > 0);
                }
            }
            _ => {
                let (since, owed) = entries[0];
                let stepped = matches!(rule.counting, Counting::Tokens { step: Some(_), .. });
                let time = drain_time(rule, units);
                let behind = charge.mark - *refunded - if stepped { since } else { now };
                let (_, step) = steps(rule);
                let age = now - charge.made;
                let alone = time - if stepped { (age + step - 1) / step * step } else { age };
                let left = behind.max(alone);
                let dead = left <= 0
                    || charge.made > now
                    || charge.made <= *start
                    || paid(rule, charge.made, now).leaves(i128::from(capacity(rule) + rule.debt), 0);
                if dead {
                    return false;
                }
                if left >= time {
                    entries[0].1 = (owed - units).max(0);
                    *refunded += time;
                } else {
                    if stepped {
                        entries[0].1 =
                            (owed - left * i128::from(rule.limit) / i128::from(rule.period)).max(0);
                    } else {
                        *real_from = since.max(*real_from);
                        // It advances in the same spans as before.
                        let (step_units, step) = steps(rule);
                        let spans = (now - since + left) / step;
                        entries[0] = (since - left + spans * step, (owed - spans * step_units).max(0));
                    }
                    *refunded += left;
                }
                self.settle(rule, now);
            }
        }
        true
    }

    /// Removes an empty bucket, unless its state is still needed.
    fn settle(&mut self, rule: Rule, now: i128) {
        let Account { entries, refunded, since: start, above: (above, _), .. } = &mut self.account;
        if *refunded > 1 << 49 {
            (*refunded, *start) = (0, now);
        }
        let (since, owed) = entries[0];
        if paid(rule, since, now).leaves(owed, 0) {
            entries[0] = (now, 0);
            let starts_full =
                !matches!(rule.counting, Counting::Tokens { initial, .. } if initial < rule.burst);
            if starts_full && *refunded == 0 && *start == 0 && *above == 0 {
                entries.clear();
            }
        }
    }

    /// Refunds the latest units.
    fn refund(&mut self, rule: Rule, units: u64, now: i128) {
        let mut units = i128::from(units);
        let Account { entries, refunded, owed, carried, .. } = &mut self.account;
        match rule.counting {
            Counting::Anchored | Counting::Aligned(_) | Counting::Calendar(_) => {
                entries[0].1 = (entries[0].1 - units).max(0);
                (*owed, carried.0) = ((*owed - units).max(0), carried.0.min(entries[0].1));
                entries.retain(|(_, charged)| *charged > 0);
            }
            Counting::Log | Counting::Cells(_) => {
                entries.sort_by_key(|(at, _)| *at);
                for (_, charged) in entries.iter_mut().rev() {
                    let given = units.min(*charged);
                    *charged -= given;
                    units -= given;
                }
                entries.retain(|(_, charged)| *charged > 0);
                if let Counting::Cells(cells) = rule.counting
                    && !entries.is_empty()
                {
                    // Cells keep the time of their last write, because the clock may step back.
                    entries.push((now - now.rem_euclid(i128::from(rule.period / cells)), 0));
                }
            }
            _ => {
                let units = units.min(entries[0].1);
                entries[0].1 -= units;
                *refunded += drain_time(rule, units);
                self.settle(rule, now);
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Fraction {
    numerator: i128,
    denominator: i128,
}

impl Fraction {
    /// Rounded down.
    fn whole(self) -> i128 {
        self.numerator / self.denominator
    }

    /// As something paid: whether at most `rest` of `owed` are left.
    fn leaves(self, owed: i128, rest: i128) -> bool {
        (owed - rest) * self.denominator <= self.numerator
    }
}

/// The shortest wait after which `holds` holds, found by bisection: once true it stays true.
fn first(holds: impl Fn(i128) -> bool) -> i128 {
    if holds(0) {
        return 0;
    }
    let (mut low, mut high) = (0, 1);
    while !holds(high) {
        low = high;
        high *= 2;
    }
    while high - low > 1 {
        let middle = (low + high) / 2;
        if holds(middle) { high = middle } else { low = middle }
    }
    high
}

fn micros(wait: i128) -> Duration {
    Duration::from_micros(u64::try_from(wait).unwrap())
}
