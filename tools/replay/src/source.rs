//! [`Source`]: the steps of the input, in the order in which they are replayed.

use std::{borrow::Cow, io, time::Duration};

use tower_ratelimit::{Key, key::is_hidden};

use crate::{
    formats::{ChargeLine, Event, Format, Line, Op},
    input::Input,
    order::Order,
    request::{Command, QuotaChange, Reason, Request, RuleCharge, Skipped, Step},
    rules::{Rule, Uncharged},
};

/// How much of a malformed line is kept, in characters.
const EXCERPT: usize = 100;

/// The steps of the input.
pub(crate) struct Source<'a> {
    input: Input,
    format: Format,
    rules: &'a [Rule],
    order: Order,
    /// Whether a time was not a whole second.
    pub(crate) has_fractions: bool,
}

impl<'a> Source<'a> {
    pub(crate) fn new(input: Input, format: Format, rules: &'a [Rule], reorder: Duration) -> Self {
        let patience = u64::try_from(reorder.as_micros()).unwrap_or(u64::MAX);
        Self { input, format, rules, order: Order::new(patience), has_fractions: false }
    }

    /// The next step. `None` at the end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Step>> {
        let Self { input, format, rules, order, has_fractions } = self;
        loop {
            if let Some(step) = order.next(false) {
                return Ok(Some(step));
            }
            let Some((number, text)) = input.next()? else { return Ok(order.next(true)) };
            let step = match step(*format, rules, number, &text) {
                Ok(step) => step,
                Err(Uncharged::Unidentified(rule)) => skipped(number, Reason::Unidentified(rule)),
                Err(Uncharged::Invalid(problem)) => {
                    let excerpt = text.chars().take(EXCERPT).map(shown).collect();
                    skipped(number, Reason::Malformed(problem, excerpt))
                }
            };
            let time = match &step {
                Step::Request(request) => Some(request.time),
                Step::Command(command) => Some(command.request.time),
                Step::Skipped(_) => None,
            };
            *has_fractions |= time.is_some_and(|time| time % 1_000_000 != 0);
            // JSON lines are carried out in their order, which a test case means.
            if !format.is_sorted_by_end() {
                return Ok(Some(step));
            }
            order.add(time, number, step);
        }
    }

    /// The number of requests whose line came too late to be sorted.
    pub(crate) const fn late(&self) -> u64 {
        self.order.late
    }
}

impl Drop for Source<'_> {
    fn drop(&mut self) {
        self.input.progress.finish_and_clear();
    }
}

const fn skipped(line: u64, reason: Reason) -> Step {
    Step::Skipped(Skipped { line, reason })
}

fn step(format: Format, rules: &[Rule], number: u64, text: &str) -> Result<Step, Uncharged> {
    if format == Format::Jsonl {
        let event = Format::event(text).map_err(Uncharged::Invalid)?;
        return command(rules, number, text, &event).map(|command| Step::Command(Box::new(command)));
    }
    let line = format.parse(text).map_err(Uncharged::Invalid)?;
    Ok(Step::Request(Request {
        line: number,
        time: line.arrival,
        duration: line.duration,
        bytes: line.bytes,
        charges: charges(rules, &line, None, None)?,
    }))
}

/// The charges of `line` under all rules, or under the policy `name`.
fn charges(
    rules: &[Rule],
    line: &Line<'_>,
    cost: Option<u64>,
    name: Option<&str>,
) -> Result<Vec<RuleCharge>, Uncharged> {
    let rules = rules.iter().enumerate();
    let meant = rules.filter(|(_, rule)| name.is_none_or(|name| rule.policy.name() == name));
    meant.map(|(place, rule)| rule.charge(place, line, cost)).collect()
}

fn command(rules: &[Rule], number: u64, text: &str, event: &Event<'_>) -> Result<Command, Uncharged> {
    let op = Op::of(event.op.as_deref()).map_err(Uncharged::Invalid)?;
    let place = |name: &str| {
        let place = rules.iter().position(|rule| rule.policy.name() == name);
        place.ok_or_else(|| Uncharged::Invalid(format!("no policy `{name}`")))
    };
    let charges = match &event.charges {
        Some(charges) => {
            let charge = |charge: &ChargeLine<'_>| {
                let (rule, cost) = (place(&charge.policy)?, charge.cost.unwrap_or(1));
                Ok(RuleCharge { rule, key: Key::new(&*charge.key), cost })
            };
            charges.iter().map(charge).collect::<Result<_, _>>()?
        }
        None => {
            event.policy.as_deref().map(place).transpose()?;
            let mut line = Line::of_event(text, event);
            // Such a line has the keys of an earlier decision, or is about no key.
            if event.of.is_some() || op == Op::SetQuota {
                line.key.get_or_insert_default();
            }
            charges(rules, &line, event.cost, event.policy.as_deref())?
        }
    };
    let owned = |text: &Option<Cow<'_, str>>| text.as_deref().map(str::to_owned);
    Ok(Command {
        request: Request {
            line: number,
            time: event.t,
            duration: event.duration_us,
            bytes: event.bytes,
            charges,
        },
        op,
        op_name: event.op.as_deref().unwrap_or("charge").to_owned(),
        key: event.charges.is_none().then(|| owned(&event.key).unwrap_or_default()),
        id: owned(&event.id),
        of: owned(&event.of),
        quota: QuotaChange { limit: event.limit, period_us: event.period_us, burst: event.burst },
        ban_us: event.ban_us,
    })
}

/// A character of a line that anyone may have caused, as a terminal can show it.
fn shown(character: char) -> char {
    if is_hidden(character) { '\u{fffd}' } else { character }
}
