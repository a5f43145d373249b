//! What can happen to a call, and to the network and the server for some time.

use std::time::Duration;

use super::random::Random;

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Fine,
    /// The connection is cut before the call arrives.
    CutBefore,
    /// The connection is cut after the call was carried out, and before the reply.
    CutAfter,
    /// The call arrives late.
    LateCall(Duration),
    LateReply(Duration),
    LostCall,
    LostReply,
    /// The reply is none of the script.
    Nonsense(u64),
    /// The connection was closed while it was idle, and yet the call was carried out.
    ClosedButSent,
}

impl Fate {
    /// Draws what happens to a call: `per_mille` of a thousand calls have a fault.
    pub(super) fn draw(random: &mut Random, per_mille: u64) -> Self {
        if !random.chance(per_mille) {
            return Self::Fine;
        }
        let delay = |random: &mut Random| {
            let (first, last) = if random.chance(500) { (2, 30) } else { (30, 1_500) };
            Duration::from_millis(random.between(first, last))
        };
        match random.below(20) {
            0..=2 => Self::CutBefore,
            3..=5 => Self::CutAfter,
            6..=7 => Self::LateCall(delay(random)),
            8..=12 => Self::LateReply(delay(random)),
            13..=14 => Self::LostCall,
            15..=16 => Self::LostReply,
            17..=18 => Self::Nonsense(random.next()),
            _ => Self::ClosedButSent,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Fine => "no fault",
            Self::CutBefore => "cut before the call arrived",
            Self::CutAfter => "cut before the reply",
            Self::LateCall(_) => "late call",
            Self::LateReply(_) => "late reply",
            Self::LostCall => "lost call",
            Self::LostReply => "lost reply",
            Self::Nonsense(_) => "nonsense reply",
            Self::ClosedButSent => "closed, but sent",
        }
    }
}

/// How attempts to connect end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connects {
    Succeed,
    Fail,
    /// They fail after the time that the crate's own connections allow.
    Hang,
}

/// The network for some time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    /// The number of calls with a fault, of a thousand.
    pub(super) per_mille: u64,
    /// The longest time of one direction, in milliseconds.
    pub(super) latency: u64,
    pub(super) connects: Connects,
    /// Nothing arrives.
    pub(super) loses_all: bool,
}

impl Weather {
    pub(super) const CALM: Self =
        Self { per_mille: 0, latency: 1, connects: Connects::Succeed, loses_all: false };
}

/// What happens to the server, the network or an instance at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Weather(Weather),
    /// Every connection is cut.
    CutAll,
    /// One connection of each instance is cut.
    CutOne,
    /// A device on the way forgets all connections: nothing arrives over them any more, and none is closed.
    ForgetAll,
    Freeze,
    Thaw,
    Kill,
    Restart {
        keeps_data: bool,
    },
    FlushScripts,
    /// Every command is answered with this error.
    Fail(Option<&'static str>),
    /// Every write of a script is answered with this error.
    FailWrites(Option<&'static str>),
    StepClock {
        by: Duration,
        back: bool,
    },
    /// The instance of this number ends without a notice, and another one starts.
    Crash(usize),
    /// The instance of this number changes its quotas, or changes them back.
    Change(usize),
}

impl Event {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Weather(Weather { loses_all: true, .. }) => "network lost",
            Self::Weather(Weather { connects: Connects::Fail, .. }) => "connecting fails",
            Self::Weather(Weather { connects: Connects::Hang, .. }) => "connecting hangs",
            Self::Weather(_) => "other latency and fault rate",
            Self::CutAll => "all connections cut",
            Self::CutOne => "a connection cut while idle",
            Self::ForgetAll => "all connections forgotten",
            Self::Freeze => "server frozen",
            Self::Thaw => "server thawed",
            Self::Kill => "server killed",
            Self::Restart { keeps_data: true } => "server restarted with its data",
            Self::Restart { keeps_data: false } => "server restarted without data",
            Self::FlushScripts => "scripts flushed",
            Self::Fail(None) | Self::FailWrites(None) => "errors end",
            Self::Fail(Some(_)) => "BUSY or LOADING",
            Self::FailWrites(Some(_)) => "OOM or READONLY",
            Self::StepClock { back: true, .. } => "clock of the server set back",
            Self::StepClock { back: false, .. } => "clock of the server set forward",
            Self::Crash(_) => "instance crashed",
            Self::Change(_) => "quotas changed",
        }
    }
}

const BUSY: &str = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.";
const LOADING: &str = "LOADING Redis is loading the dataset in memory";
const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";
const READONLY: &str = "READONLY You can't write against a read only replica.";

/// The events of a schedule: each with the pause before it. Every event of some time is followed by its end.
pub(super) fn events(random: &mut Random, instances: usize, loses_data: bool) -> Vec<(Duration, Event)> {
    let mut events = Vec::new();
    let rates = [0, 0, 10, 50, 200];
    let weather = |random: &mut Random| Weather {
        per_mille: *random.pick(&rates),
        latency: *random.pick(&[0, 1, 1, 2, 8]),
        ..Weather::CALM
    };
    events.push((Duration::ZERO, Event::Weather(weather(random))));
    if random.chance(250) {
        // Outages one after the other, with time to charge what was admitted.
        for _ in 0..random.between(2, 5) {
            let pause = Duration::from_millis(random.between(100, 700));
            let lasts = Duration::from_millis(random.between(200, 700));
            let (first, then) = match random.chance(500) {
                true => (Event::Freeze, Event::Thaw),
                false => (Event::Kill, Event::Restart { keeps_data: true }),
            };
            events.extend([(pause, first), (lasts, then)]);
        }
    }
    for _ in 0..random.between(1, 7) {
        let pause = Duration::from_millis(random.between(20, 900));
        let lasts = Duration::from_millis(*random.pick(&[5, 30, 70, 200, 600, 1_300]) + random.below(20));
        let restart = Event::Restart { keeps_data: !loses_data || random.chance(500) };
        let (first, then) = match random.below(15) {
            0 => (Event::CutAll, None),
            1 => (Event::CutOne, None),
            13 => (Event::ForgetAll, None),
            2..=3 => (Event::Freeze, Some(Event::Thaw)),
            4..=5 => (Event::Kill, Some(restart)),
            6 => (Event::FlushScripts, None),
            7 => (Event::Fail(Some(*random.pick(&[BUSY, LOADING]))), Some(Event::Fail(None))),
            8 => (Event::FailWrites(Some(*random.pick(&[OOM, READONLY]))), Some(Event::FailWrites(None))),
            9 => {
                let by = Duration::from_millis(random.between(1, 60_000) * random.between(1, 10));
                (Event::StepClock { by, back: random.chance(500) }, None)
            }
            10 => (Event::Crash(random.below(instances as u64) as usize), None),
            11 => {
                let lost = Weather { loses_all: true, connects: Connects::Hang, ..Weather::CALM };
                (Event::Weather(lost), Some(Event::Weather(weather(random))))
            }
            12 => {
                let connects = *random.pick(&[Connects::Fail, Connects::Hang]);
                let failing = Weather { connects, ..weather(random) };
                (Event::Weather(failing), Some(Event::Weather(weather(random))))
            }
            _ => (Event::Weather(weather(random)), None),
        };
        events.push((pause, first));
        if let Some(then) = then {
            events.push((lasts, then));
        }
        if random.chance(200) {
            events.push((Duration::ZERO, Event::CutAll));
        }
        if random.chance(400) {
            let pause = Duration::from_millis(random.below(300));
            events.push((pause, Event::Change(random.below(instances as u64) as usize)));
        }
    }
    events
}
