//! Encodes jobs as the call of a script.

use std::{borrow::Cow, mem, sync::Arc, time::Duration};

use redis::{Cmd, ErrorKind, RedisResult, RedisWrite as _, ServerErrorKind, Value};

use super::decode::records_of;
use crate::{
    algorithm::counter::{Calendar, Windows, usual},
    decision::{Charge, OneOrMany},
    key::Key,
    policy::{MAX_BAN, Policy},
    store::{
        Action, Counts, PenaltyCharge, ServerClock, Spec, StateChange,
        redis::{
            job::{Job, KeyNames},
            script::{SHARED, Script},
        },
    },
};

/// The most units of a refund: more than any key can be charged, and exact in Lua.
const MAX_REFUND: u64 = 1 << 50;
/// The most units of a change of permits: more than a permit can have.
const MAX_PERMIT_UNITS: u64 = 1_000_000;
/// How many of the last rules are searched for the next charge's.
const RULE_LOOKBACK: usize = 8;

/// A command, ready to send.
pub(crate) struct Call {
    pub(crate) command: Cmd,
    /// The script that the command calls, whose text is sent if the server does not have it.
    pub(crate) script: Option<Arc<Script>>,
    /// Whether the call may be sent again if it was almost certainly not sent.
    pub(crate) may_repeat: bool,
    /// How long the callers wait.
    pub(crate) deadline: Duration,
    /// Whether the call has windows of a calendar at the server's time.
    has_calendar: bool,
}

impl Call {
    /// A command that is sent as it is.
    pub(crate) const fn of(command: Cmd, deadline: Duration) -> Self {
        Self { command, script: None, may_repeat: true, deadline, has_calendar: false }
    }

    /// `clock`, if the call has windows of a calendar: its reply says what the server's time is.
    pub(crate) fn clock_to_set<'a>(&self, clock: &'a ServerClock) -> Option<&'a ServerClock> {
        self.has_calendar.then_some(clock)
    }

    /// The call with the text of its script, if `reply` reports that the server does not have it. The server
    /// has it afterwards.
    pub(crate) fn evaluation_after(&self, reply: &RedisResult<Value>) -> Option<Cmd> {
        let no_script = ErrorKind::Server(ServerErrorKind::NoScript);
        if reply.as_ref().is_err_and(|error| error.kind() == no_script) { self.evaluation() } else { None }
    }

    /// The call with the text of its script.
    pub(crate) fn evaluation(&self) -> Option<Cmd> {
        let mut evaluation = redis::cmd("EVAL");
        evaluation.arg(self.script.as_ref()?.text());
        for argument in self.command.args_iter().skip(2) {
            match argument {
                redis::Arg::Simple(bytes) => evaluation.arg(bytes),
                // The command has no cursor, and the library may add more kinds.
                _ => &mut evaluation,
            };
        }
        Some(evaluation)
    }
}

/// The cost of a charge of `job`. A refund or a renewal may exceed the capacity, if that was lowered since.
fn cost(job: &Job, charge: &Charge) -> u64 {
    match job.action.spec().change {
        None => charge.bounded_cost(),
        // The charge against the penalty has the cost.
        Some(StateChange::Ban) => 0,
        Some(_) if charge.needs_permit() => charge.cost().min(MAX_PERMIT_UNITS),
        Some(_) => charge.cost().min(MAX_REFUND),
    }
}

/// What must remain beside a charge of `job`.
fn headroom(job: &Job, charge: &Charge) -> u64 {
    if job.action.leaves_headroom() { charge.bounded_headroom() } else { 0 }
}

/// Whether two jobs differ only in their keys, so that they can share a run.
fn differ_only_in_keys(one: &Job, other: &Job) -> bool {
    let is_alike = |(one, other): (&Charge, &Charge)| {
        one.policy().counts_as(other.policy())
            && one.cost() == other.cost()
            && one.headroom() == other.headroom()
            && one.never_denies() == other.never_denies()
            && !one.needs_permit()
    };
    one.action == other.action
        && one.lease.is_none()
        && other.lease.is_none()
        && !matches!(one.action, Action::Refund | Action::Ban)
        && one.charges.len() == other.charges.len()
        && one.counts == other.counts
        && one.charges.iter().zip(&*other.charges).all(is_alike)
}

/// Encodes the script call for `jobs`, which must be able to share a batch. `None` without jobs.
///
/// `clock` is the server's, by which the windows of calendars are computed.
pub(crate) fn encode(jobs: &[&Job], clock: &ServerClock) -> Option<Call> {
    let mut keys = Keys::of(jobs);
    if jobs.iter().any(|job| job.action == Action::Refund || job.lease.is_some()) {
        keys.add_resets(jobs);
    }
    encode_with(jobs, &keys, clock)
}

/// The same for a job whose slot migrates: without the marks of resets. Redis would reject the call until the whole
/// slot has migrated, because no mark is on the node of the other keys.
#[cfg(feature = "cluster")]
#[cold]
pub(crate) fn encode_in_migration(job: &Job, clock: &ServerClock) -> Option<Call> {
    encode_with(&[job], &Keys::of(&[job]), clock)
}

#[inline]
fn encode_with(jobs: &[&Job], keys: &Keys<'_>, clock: &ServerClock) -> Option<Call> {
    let first = jobs.first()?;
    let (numbers, texts) = Numbers::of(jobs, keys, clock);
    let script = first.script.clone();
    let count = keys.distinct.len();
    let mut command = Cmd::with_capacity(4 + count + texts.len(), 96 + 48 * count + numbers.bytes.len());
    command.arg("EVALSHA").arg(script.hash()).arg(count);
    write_names(&mut command, keys);
    let has_calendar = numbers.has_calendar;
    command.arg(numbers.bytes).arg(texts);
    let may_repeat = jobs.iter().all(|job| job.may_be_repeated());
    Some(Call { command, script: Some(script), may_repeat, deadline: first.deadline, has_calendar })
}

/// The name of a key, behind what all names under its policy start with.
struct Name<'a> {
    policy: &'a Policy,
    text: Vec<u8>,
    start: usize,
}

impl<'a> Name<'a> {
    fn start(names: &KeyNames, policy: &'a Policy) -> Self {
        let mut text = Vec::with_capacity(128);
        names.start(policy).iter().for_each(|part| text.extend_from_slice(part.as_bytes()));
        Self { policy, start: text.len(), text }
    }
}

/// Writes the names of `keys`. A batch is of one store, so names under one policy start alike.
fn write_names(command: &mut Cmd, keys: &Keys<'_>) {
    let Some(&(job, policy, _)) = keys.distinct.first() else { return };
    // Most calls are under one policy, so only names under others are in a vector.
    let (mut name, mut others) = (Name::start(&job.names, policy), Vec::<Name<'_>>::new());
    for (job, policy, key) in &*keys.distinct {
        if !policy.is(name.policy) {
            let mut latest = others.iter_mut().rev().take(RULE_LOOKBACK);
            match latest.find(|other| policy.is(other.policy)) {
                Some(other) => mem::swap(&mut name, other),
                None => others.push(mem::replace(&mut name, Name::start(&job.names, policy))),
            }
        }
        name.text.truncate(name.start);
        job.names.end(policy, key).iter().for_each(|part| name.text.extend_from_slice(part));
        command.write_arg(&name.text);
    }
}

/// Whether the script makes the decision of this job with its usual ones, if the keys are distinct.
fn is_usual(job: &Job) -> bool {
    let is_usual = |charge: &Charge| !charge.policy().usual().is_empty() && !charge.never_denies();
    job.action == Action::Charge
        && job.lease.is_none()
        && job.counts == Counts::Own
        && (job.charges.iter().all(is_usual) || has_usual_guarantees(job))
}

/// The same for a job with guarantees.
#[cold]
fn has_usual_guarantees(job: &Job) -> bool {
    job.charges.iter().enumerate().all(|(place, charge)| {
        let is_of_next = || {
            let next = job.charges.get(place + 1);
            next.is_some_and(|pool| charge.is_guarantee_in(pool) && charge.cost() >= pool.cost())
        };
        !charge.policy().usual().is_empty() && (!charge.never_denies() || is_of_next())
    })
}

/// Whether the script reads the mark of a reset for this charge: it refunds or returns units that were charged before,
/// perhaps before a reset.
fn reads_reset(job: &Job, charge: &Charge) -> bool {
    match &job.lease {
        Some(lease) => lease.returned().units > 0,
        None => job.action == Action::Refund && charge.cost() > 0 && charge.receipt().is_some(),
    }
}

/// The keys of a call.
struct Keys<'a> {
    /// Each key once, and then the marks of resets.
    distinct: OneOrMany<(&'a Job, &'a Policy, &'a Key)>,
    /// How many of them are of charges.
    charged: usize,
    /// For each charge, the number of its key, counted from 1; `None` if the keys are distinct and in the
    /// order of the charges.
    places: Option<Vec<usize>>,
}

impl<'a> Keys<'a> {
    fn of(jobs: &[&'a Job]) -> Self {
        let count: usize = jobs.iter().map(|job| job.width()).sum();
        if let (1, Some((job, charge))) = (count, each_charge(jobs).next()) {
            return Self { distinct: (job, charge.policy(), charge.key()).into(), charged: 1, places: None };
        }
        // The number of a key at the place of its hash, or at the next free one; 0 is free. A `HashMap` is
        // slower. Clients can make keys collide, but a call has at most 512 keys, so comparing them costs
        // little.
        let size = (2 * count).next_power_of_two();
        let mut known = vec![0_usize; size];
        let mut distinct: Vec<(&Job, &Policy, &Key)> = Vec::with_capacity(count);
        let mut places = Vec::with_capacity(count);
        for (job, charge) in each_charge(jobs) {
            let (policy, key) = (charge.policy(), charge.key());
            let tag = policy.tag();
            let mut hash = key.quick_hash(tag) as usize;
            let place = loop {
                let at = hash & (size - 1);
                match distinct.get(known[at].wrapping_sub(1)) {
                    Some((_, other, same)) if other.tag() == tag && *same == key => break known[at],
                    Some(_) => hash = hash.wrapping_add(1),
                    None => {
                        distinct.push((job, policy, key));
                        known[at] = distinct.len();
                        break distinct.len();
                    }
                }
            };
            places.push(place);
        }
        let (charged, is_repeated) = (distinct.len(), distinct.len() < places.len());
        Self { distinct: OneOrMany::Many(distinct), charged, places: is_repeated.then_some(places) }
    }

    fn has_resets(&self) -> bool {
        self.distinct.len() > self.charged
    }

    /// Adds the marks of resets, in the order of the charges that need them.
    #[cold]
    fn add_resets(&mut self, jobs: &[&'a Job]) {
        let of_charges = self.distinct.iter().copied();
        let marks = each_charge(jobs).filter(|(job, charge)| reads_reset(job, charge));
        let marks = marks.map(|(job, charge)| (job, charge.policy().resets(), charge.key()));
        self.distinct = of_charges.chain(marks).collect::<Vec<_>>().into();
    }
}

/// If a key has this many decisions of one charge in a call, the rest of the script makes them faster than `lua/usual.lua`. With
/// 4, 16 and 64, it takes 54,700, 23,300 and 14,700 instructions for each in place of 31,600, 20,400 and 17,600.
const HOT_KEY: usize = 28;

/// How a decision uses its keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// No other decision of the call uses them.
    Alone,
    /// Other decisions use one of them too.
    Shared,
    /// The same, and `lua/usual.lua` makes none of these decisions, because it does not make one of them: it comes first, and
    /// decisions on a key are made in their order.
    Left,
}

/// How each of `jobs`, whose charges have keys at these `places`, uses its keys.
#[cold]
fn uses(jobs: &[&Job], keys: &Keys<'_>, places: &[usize]) -> Vec<Use> {
    let mut rest = places;
    let mut split = |job: &&Job| {
        let (own, others) = rest.split_at(job.width());
        rest = others;
        own
    };
    let of_jobs: Vec<&[usize]> = jobs.iter().map(&mut split).collect();
    let (mut count, mut is_left) = (vec![0; keys.charged + 1], vec![false; keys.charged + 1]);
    places.iter().for_each(|place| count[*place] += 1);
    let mut hot = vec![0; keys.charged + 1];
    of_jobs.iter().filter(|own| own.len() == 1).for_each(|own| hot[own[0]] += 1);
    let use_of =
        |own: &&[usize]| if own.iter().all(|place| count[*place] == 1) { Use::Alone } else { Use::Shared };
    let mut uses: Vec<Use> = of_jobs.iter().map(use_of).collect();
    // A decision that is left for one of its keys leaves the decisions on its other keys too.
    let mut is_changed = true;
    while is_changed {
        is_changed = false;
        for ((job, own), its_use) in jobs.iter().zip(&of_jobs).zip(&mut uses) {
            let is_hot = own.len() == 1 && hot[own[0]] >= HOT_KEY;
            let is_left_too = || own.iter().any(|place| is_left[*place]);
            if *its_use == Use::Shared && (is_hot || !is_usual(job) || is_left_too()) {
                own.iter().for_each(|place| is_left[*place] = true);
                (*its_use, is_changed) = (Use::Left, true);
            }
        }
    }
    uses
}

/// The keys of a run's charges.
enum RunKeys<'a> {
    /// One after the other, after as many other keys. No other charge of the call has them.
    Following(usize),
    /// These, counted from 1.
    Shared(&'a [usize]),
}

/// A run of decisions that `lua/usual.lua` does not make: its jobs, its keys, and the number of records before.
type OtherRun<'a, 'j> = (&'a [&'j Job], RunKeys<'a>, usize);

/// The numbers of a call, nearly all as doubles. Lua has no other numbers, and reads these without parsing
/// digits.
struct Numbers {
    bytes: Vec<u8>,
    /// Whether windows of a calendar at the server's time are among them.
    has_calendar: bool,
}

impl Numbers {
    /// Appends `number`, which is below 2^53, so it is exact.
    fn push(&mut self, number: u64) {
        self.bytes.extend((number as f64).to_le_bytes());
    }

    /// Appends `-number`, which marks a value other than a plain number.
    fn push_negated(&mut self, number: u64) {
        self.bytes.extend((-(number as f64)).to_le_bytes());
    }

    /// Appends a number in two bytes: a batch is small.
    fn push_short(&mut self, number: usize) {
        self.bytes.extend((number as u16).to_le_bytes());
    }

    fn extend(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|number| self.push(*number));
    }

    /// The numbers of a call, and its texts: the algorithms of the rules, then the holders.
    fn of<'a>(jobs: &[&'a Job], keys: &Keys<'_>, clock: &ServerClock) -> (Self, Vec<Cow<'a, str>>) {
        let mut numbers = Self { bytes: Vec::with_capacity(128), has_calendar: false };
        numbers.push(jobs.first().and_then(|job| job.time).unwrap_or(0));
        // The place of the other decisions.
        let place = numbers.bytes.len();
        numbers.push_short(0);
        // The other runs: each with its first key and its first record.
        let mut others = Vec::new();
        let uses = keys.places.as_ref().map(|places| uses(jobs, keys, places));
        let use_of = |at: usize| uses.as_ref().map_or(Use::Alone, |uses| uses[at]);
        let (mut from, mut charge, mut record) = (0, 0, 0);
        while let Some(job) = jobs.get(from) {
            let is_next =
                |at: &usize| use_of(*at) == use_of(from) && differ_only_in_keys(jobs[*at - 1], jobs[*at]);
            let run = &jobs[from..(from + 1..jobs.len()).find(|at| !is_next(at)).unwrap_or(jobs.len())];
            let (width, charges) = (job.width(), run.len() * job.width());
            let of_run = match (&keys.places, use_of(from)) {
                (None, _) => RunKeys::Following(charge),
                // Keys are numbered in the order of their first use.
                (Some(places), Use::Alone) => RunKeys::Following(places[charge] - 1),
                (Some(places), _) => RunKeys::Shared(&places[charge..charge + charges]),
            };
            if is_usual(job) && use_of(from) != Use::Left {
                numbers.push_short(run.len());
                let before = match of_run {
                    RunKeys::Following(before) => {
                        numbers.push_short(width);
                        before
                    }
                    RunKeys::Shared(_) => {
                        numbers.push_short(SHARED + width);
                        0
                    }
                };
                let place = numbers.bytes.len();
                numbers.push_short(before);
                numbers.push_short(record);
                for charge in &*job.charges {
                    numbers.push_usual(job, charge, 0, clock);
                }
                for PenaltyCharge { place, charge } in &*job.penalties {
                    numbers.push_usual(job, charge, *place + 1, clock);
                }
                if let RunKeys::Shared(places) = of_run {
                    numbers.set_place(place);
                    places.iter().for_each(|place| numbers.push_short(*place));
                }
            } else {
                others.push((run, of_run, record));
            }
            from += run.len();
            charge += charges;
            record += run.len() * records_of(job);
        }
        numbers.set_place(place);
        let texts = if others.is_empty() { Vec::new() } else { numbers.push_others(&others, keys, clock) };
        (numbers, texts)
    }

    /// Writes at `at` the place of what follows, counted from 1, as Lua counts.
    fn set_place(&mut self, at: usize) {
        let place = (self.bytes.len() as u16 + 1).to_le_bytes();
        self.bytes[at..at + 2].copy_from_slice(&place);
    }

    /// Appends a charge for `lua/usual.lua`. A penalty is of the charge `main`, counted from 1; others have 0.
    fn push_usual(&mut self, job: &Job, charge: &Charge, main: usize, clock: &ServerClock) {
        self.push(if main > 0 { charge.cost() } else { cost(job, charge) });
        let headroom = if main > 0 { 0 } else { charge.bounded_headroom() };
        // A headroom of two bytes stands in place of the position, which is read anyway.
        let is_short = headroom <= u16::MAX.into();
        self.push_short(if is_short { main + headroom as usize } else { 0 });
        let kind = self.bytes.len();
        self.bytes.extend_from_slice(charge.policy().usual());
        if let Some((calendar, _)) = charge.policy().calendar() {
            self.push_windows(job, calendar, clock);
        }
        if !is_short {
            self.bytes[kind] += usual::WITH_HEADROOM as u8;
            self.push(headroom);
        }
    }

    /// Appends the windows of a calendar for `lua/usual.lua`.
    // A function apart, because most policies have no calendar.
    #[cold]
    fn push_windows(&mut self, job: &Job, calendar: &Calendar, clock: &ServerClock) {
        let now = job.time.unwrap_or_else(|| clock.micros());
        let Windows { before, starts, ends, after } = calendar.windows(now);
        self.extend(&[ends, starts, before, after]);
        self.has_calendar |= job.time.is_none();
    }

    /// Appends what `lua/decide.lua` reads: the rules, then the runs. Returns the texts.
    fn push_others<'a>(
        &mut self,
        others: &[OtherRun<'_, 'a>],
        keys: &Keys<'_>,
        clock: &ServerClock,
    ) -> Vec<Cow<'a, str>> {
        let firsts: Vec<&Job> = others.iter().filter_map(|(run, ..)| run.first().copied()).collect();
        let (rules, rule_of) = rules_of(&firsts);
        let mut rule_of = rule_of.into_iter();
        let mut next_rule = || rule_of.next().unwrap_or_default();
        let mut texts: Vec<Cow<'_, str>> = Vec::with_capacity(rules.len());
        let numbers = self;
        numbers.extend(&[rules.len() as u64, (keys.distinct.len() - keys.charged) as u64]);
        for policy in rules {
            texts.push(policy.algorithm_name().into());
            // All jobs of a call have one clock.
            let time = firsts.first().and_then(|job| job.time);
            let starts = policy.calendar().map(|(calendar, further)| {
                numbers.has_calendar |= time.is_none();
                calendar.starts(time.unwrap_or_else(|| clock.micros()), *further)
            });
            let starts = starts.unwrap_or_default();
            numbers.push((policy.arguments().len() + starts.len()) as u64);
            numbers.extend(policy.arguments());
            numbers.extend(&starts);
        }
        let mut reset = keys.charged as u64;
        for (job, (run, of_run, record)) in firsts.iter().zip(others) {
            let charges = job.width();
            let (key, places) = match of_run {
                RunKeys::Following(before) => (*before, &[][..]),
                RunKeys::Shared(places) => (0, *places),
            };
            let is_shared = u64::from(!places.is_empty());
            // A job that leases units charges its cost too.
            let action = if job.lease.is_some() { Action::Charge } else { job.action };
            let Spec { change, charges: is_charge, least, .. } = action.spec();
            numbers.extend(&[change.map_or(0, |change| change as u64), is_charge.into()]);
            match least {
                Some(least) => numbers.push(least),
                None => numbers.push_negated(1),
            }
            let is_lease = job.lease.is_some().into();
            numbers.extend(&[is_lease, run.len() as u64, charges as u64, is_shared]);
            // First a 0: where `lua/include/call.lua` adds a run that usual.lua has left, it has a 1.
            numbers.extend(&[0, key as u64, *record as u64]);
            for charge in &*job.charges {
                numbers.extend(&[next_rule(), cost(job, charge)]);
                if charge.needs_permit() {
                    texts.push(format!("{:032x}", charge.holder()).into());
                    // ARGV[1] is the numbers.
                    numbers.push(texts.len() as u64 + 1);
                } else if keys.has_resets() && reads_reset(job, charge) {
                    reset += 1;
                    numbers.push_negated(reset);
                } else {
                    numbers.push(0);
                }
                match (job.action, charge.receipt(), charge.stamp()) {
                    (_, _, Some(expires)) => {
                        numbers.push_negated(2);
                        numbers.push(expires);
                    }
                    (Action::Refund, Some(receipt), None) => numbers.extend(&[receipt.made, receipt.mark]),
                    // The mark of a shadow stands in place of the time, and a headroom in place of the mark.
                    _ if job.action.spec().denies && charge.never_denies() => {
                        numbers.push_negated(1);
                        numbers.push(headroom(job, charge));
                    }
                    // An operator's refund has no receipt.
                    _ => numbers.extend(&[0, headroom(job, charge)]),
                }
            }
            for PenaltyCharge { place, charge } in &*job.penalties {
                numbers.extend(&[next_rule(), charge.cost().min(MAX_BAN), 0]);
                numbers.push_negated(match job.counts {
                    Counts::Own => 3,
                    Counts::Later => 4,
                    Counts::Earlier => 5,
                });
                numbers.push(*place as u64 + 1);
            }
            if let Some(lease) = &job.lease {
                let returned = lease.returned();
                numbers.extend(&[lease.wanted, returned.name, returned.units, returned.spent, returned.made]);
            }
            places.iter().for_each(|place| numbers.push(*place as u64));
        }
        texts
    }
}

/// The policies of `jobs`, and for each charge the number of its policy, counted from 1.
fn rules_of<'a>(jobs: &[&'a Job]) -> (Vec<&'a Policy>, Vec<u64>) {
    let mut rules: Vec<&Policy> = Vec::with_capacity(RULE_LOOKBACK);
    let mut rule_of = Vec::with_capacity(jobs.len());
    for (_, charge) in each_charge(jobs) {
        let from = rules.len().saturating_sub(RULE_LOOKBACK);
        let known = rules[from..].iter().position(|known| known.counts_as(charge.policy()));
        let rule = known.map_or(rules.len(), |known| from + known);
        if known.is_none() {
            rules.push(charge.policy());
        }
        rule_of.push(rule as u64 + 1);
    }
    (rules, rule_of)
}

fn each_charge<'a>(jobs: &[&'a Job]) -> impl Iterator<Item = (&'a Job, &'a Charge)> {
    jobs.iter().flat_map(|&job| job.all_charges().map(move |charge| (job, charge)))
}

#[cfg(test)]
mod tests {
    use std::array;

    use redis::Arg;

    use super::*;
    use crate::{base::Quota, decision::Charges};

    #[test]
    fn keys_under_changing_policies_have_their_own_names() {
        let policies: [Policy; 2 * RULE_LOOKBACK] =
            array::from_fn(|number| Policy::new(&format!("p{number}"), Quota::per_day(9)));
        let key = |number: usize| Key::new(format!("key {number}"));
        // Each policy follows each one, itself included.
        let pairs = (0..policies.len()).flat_map(|one| (0..policies.len()).flat_map(move |next| [one, next]));
        let charges: Vec<Charge> = pairs
            .enumerate()
            .map(|(number, policy)| Charge::new(&policies[policy], &key(number), 1))
            .collect();
        let job = Job { charges: Charges::Many(charges), ..Job::for_tests(1, Duration::ZERO) };
        let call = encode(&[&job], &ServerClock::default()).unwrap();
        let mut arguments = call.command.args_iter().skip(3);
        for charge in &*job.charges {
            let name = job.names.name(charge.policy(), charge.key());
            assert!(matches!(arguments.next(), Some(Arg::Simple(text)) if text == name.as_bytes()), "{name}");
        }
    }
}
