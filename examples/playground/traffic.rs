//! The requests of a run: who sends them, and when.

use std::{ops::Range, time::Duration};

use super::setup::{Invalid, Period, Setup, Traffic};

/// The periods of a run.
const PERIODS: u64 = 4;
/// The bars of a chart.
pub(crate) const FRAMES: u64 = 60;
/// The frames in which the store fails.
const OUTAGE: Range<u64> = 20..35;
/// Simulated runs start on this day, a Monday: 2026-06-01, midnight UTC.
pub(crate) const START: Duration = Duration::from_secs(1_780_272_000);
const DAYS_OF_MONTHS: [u64; PERIODS as usize] = [30, 31, 31, 30];
const MAX_REQUESTS: usize = 20_000;

/// A client of an instance of the service.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) label: &'static str,
    pub(crate) api_key: &'static str,
    pub(crate) instance: usize,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Since the start, in whole milliseconds, as exact as Tokio's timer.
    pub(crate) at: Duration,
    /// Its place in [`Traffic::clients`].
    pub(crate) client: usize,
}

impl Traffic {
    pub(crate) const fn clients(self) -> &'static [Client] {
        match self {
            Self::Attack => &[
                Client { label: "mallory, who attacks", api_key: "mallory", instance: 0 },
                Client { label: "alice", api_key: "alice", instance: 0 },
                Client { label: "bob", api_key: "bob", instance: 0 },
            ],
            Self::Instances => &[
                Client { label: "alice, at instance 1", api_key: "alice", instance: 0 },
                Client { label: "alice, at instance 2", api_key: "alice", instance: 1 },
            ],
            _ => &[Client { label: "alice", api_key: "alice", instance: 0 }],
        }
    }

    pub(crate) fn instances(self) -> usize {
        self.clients().iter().map(|client| client.instance + 1).max().unwrap_or(1)
    }

    /// The frames in which the store fails.
    pub(crate) const fn outage(self) -> Range<u64> {
        match self {
            Self::Outage => OUTAGE,
            _ => 0..0,
        }
    }
}

impl Period {
    /// When period `number` of a run starts.
    pub(crate) fn edge(self, number: u64) -> Duration {
        match self {
            Self::Month => {
                let days: u64 = DAYS_OF_MONTHS.iter().take(number as usize).sum();
                Duration::from_secs(days * 86_400)
            }
            period => period.length() * number as u32,
        }
    }

    pub(crate) fn edges(self) -> Vec<Duration> {
        (0..=PERIODS).map(|number| self.edge(number)).collect()
    }

    /// The length of a run.
    pub(crate) fn span(self) -> Duration {
        self.edge(PERIODS)
    }

    /// When the frame `number` starts, in whole milliseconds.
    pub(crate) fn frame(self, number: u64) -> Duration {
        Duration::from_millis(self.span().as_millis() as u64 * number / FRAMES)
    }
}

impl Setup {
    /// The requests in their order.
    pub(crate) fn arrivals(&self) -> Result<Vec<Arrival>, Invalid> {
        let count = (self.limit * self.load / 100).max(1);
        let length = self.period.length();
        let mut arrivals = Vec::new();
        let mut send = |client: usize, from: Duration, time: Duration, count: u64| {
            let at = |request: u64| {
                Duration::from_millis(
                    (from.as_millis() + time.as_millis() * u128::from(request) / u128::from(count)) as u64,
                )
            };
            arrivals.extend((0..count).map(|request| Arrival { at: at(request), client }));
        };
        // The first request starts the first window.
        if self.traffic == Traffic::Edge {
            send(0, Duration::ZERO, length, 1);
        }
        for (number, edges) in self.period.edges().windows(2).enumerate() {
            let [edge, end] = *edges else { continue };
            let time = end - edge;
            match self.traffic {
                Traffic::Steady | Traffic::Outage => send(0, edge, time, count),
                Traffic::Bursts => {
                    send(0, edge + time / 8, time / 30, count.div_ceil(2));
                    send(0, edge + time * 5 / 8, time / 30, count.div_ceil(2));
                }
                // The second window starts in the middle of these requests, and so does the fourth.
                Traffic::Edge if number % 2 == 1 => {
                    let around = length * 2 / 15;
                    send(0, edge - around, around, count);
                    send(0, edge, around, count);
                }
                Traffic::Edge => {}
                Traffic::Attack => {
                    send(0, edge, time, 4 * count);
                    let usual = self.limit.div_ceil(2);
                    send(1, edge + time / 9, time, usual);
                    send(2, edge + time / 7, time, usual);
                }
                Traffic::Instances => {
                    send(0, edge, time, count);
                    send(1, edge + time / 40, time, count);
                }
            }
        }
        if arrivals.len() > MAX_REQUESTS {
            let message = format!(
                "this traffic has {} requests, and a run at most {MAX_REQUESTS}: choose a lower load or limit",
                arrivals.len()
            );
            return Err(Invalid::new("load", message));
        }
        arrivals.sort_by_key(|arrival| arrival.at);
        arrivals.retain(|arrival| arrival.at < self.period.span());
        Ok(arrivals)
    }
}
