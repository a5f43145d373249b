//! The formats of access logs. The parser of each is a pure function of the line.

mod access;
mod alb;
mod alb_fields;
mod caddy;
mod detect;
mod json_path;
mod jsonl;
mod line;

use clap::ValueEnum;

use self::access::Timing;
pub(crate) use self::{
    detect::detect,
    jsonl::{ChargeLine, Event, Op},
    line::Line,
};

/// The format of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// JSON lines such as `{"t": 1767225600000000, "key": "a"}`, with the time in microseconds.
    Jsonl,
    /// The common log of Apache.
    Common,
    /// The combined log of nginx and Apache.
    Combined,
    /// Common or combined, and then nginx's `$request_time`.
    NginxTimed,
    /// Common or combined, and then Apache's `%D`, the duration in microseconds.
    ApacheMicros,
    /// Common or combined, and then Apache's `%T`, the duration in seconds.
    ApacheSeconds,
    /// Caddy's JSON.
    Caddy,
    /// The access logs of Application Load Balancers.
    Alb,
}

impl Format {
    /// The name as an option.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether lines are in the order of the requests' ends, so that they must be sorted by arrival.
    pub(crate) const fn is_sorted_by_end(self) -> bool {
        !matches!(self, Self::Jsonl)
    }

    /// The request of a line; of a line of [`Jsonl`](Self::Jsonl), what it has in common with access logs.
    pub(crate) fn parse<'a>(self, text: &'a str) -> Result<Line<'a>, String> {
        match self {
            Self::Jsonl => jsonl::parse(text).map(|event| Line::of_event(text, &event)),
            Self::Common | Self::Combined => access::parse(text, Timing::None),
            Self::NginxTimed => access::parse(text, Timing::NginxSeconds),
            Self::ApacheMicros => access::parse(text, Timing::ApacheMicros),
            Self::ApacheSeconds => access::parse(text, Timing::ApacheSeconds),
            Self::Caddy => caddy::parse(text),
            Self::Alb => alb::parse(text),
        }
    }

    /// The event of a line of [`Jsonl`](Self::Jsonl).
    pub(crate) fn event(text: &str) -> Result<Event<'_>, String> {
        jsonl::parse(text)
    }
}
