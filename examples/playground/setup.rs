//! The setup: what is chosen on the page, read from the query of its address.

use std::{fmt, str::FromStr, time::Duration};

use tower_ratelimit::{
    Error, FailureMode, Policy, Quota,
    algorithm::{Concurrency, FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
};

/// A setup that cannot be run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Invalid {
    /// The parameter to change.
    pub(crate) field: &'static str,
    pub(crate) message: String,
}

impl Invalid {
    pub(crate) fn new(field: &'static str, message: impl Into<String>) -> Self {
        Self { field, message: message.into() }
    }
}

/// An enum whose variants are the options of a parameter: the text in the query, and the label on the page.
macro_rules! options {
    ($(#[$doc:meta])* $name:ident { $($variant:ident $id:literal $label:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name { $($variant),+ }

        impl $name {
            pub(crate) const ALL: &[Self] = &[$(Self::$variant),+];

            pub(crate) const fn id(self) -> &'static str {
                match self { $(Self::$variant => $id),+ }
            }

            pub(crate) const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label),+ }
            }

            fn find(field: &'static str, id: &str) -> Result<Self, Invalid> {
                Self::ALL.iter().copied().find(|option| option.id() == id).ok_or_else(|| {
                    let ids: Vec<_> = Self::ALL.iter().map(|option| format!("`{}`", option.id())).collect();
                    Invalid::new(field, format!("`{field}` must be one of {}, not `{id}`", ids.join(", ")))
                })
            }

            /// The options as HTML, with this one selected.
            fn html(self) -> String {
                let html = |option: &Self| {
                    let selected = if *option == self { " selected" } else { "" };
                    format!("<option value={:?}{selected}>{}</option>", option.id(), option.label())
                };
                Self::ALL.iter().map(html).collect()
            }
        }
    };
}

options! {
    Algorithm {
        Gcra "gcra" "GCRA",
        TokenBucket "token-bucket" "Token bucket",
        TokenBucketInSteps "token-bucket-steps" "Token bucket, refilled once per period",
        LeakyMeter "leaky-meter" "Leaky bucket, as a meter",
        LeakyQueue "leaky-queue" "Leaky bucket, as a queue",
        FixedWindow "fixed-window" "Fixed window",
        AlignedWindow "aligned-window" "Fixed window of the calendar",
        SlidingWindow "sliding-window" "Sliding window",
        SlidingSegments "sliding-segments" "Sliding window, 10 segments",
        SlidingLog "sliding-log" "Sliding log",
        Concurrency "concurrency" "Concurrency",
    }
}

options! {
    Period {
        Second "second" "second",
        TenSeconds "10s" "10 seconds",
        Minute "minute" "minute",
        Hour "hour" "hour",
        Day "day" "day",
        Week "week" "week",
        ThirtyDays "30d" "30 days",
        Month "month" "calendar month",
    }
}

options! {
    Traffic {
        Steady "steady" "Steady",
        Bursts "bursts" "Bursts",
        Edge "edge" "At the edge of a window",
        Attack "attack" "One key attacks",
        Instances "instances" "Two instances",
        Outage "outage" "The store fails",
    }
}

options! {
    Failure {
        Local "local" "Count locally",
        LocalHalf "local-2" "Count locally, half the limit",
        Open "open" "Admit",
        Closed "closed" "Reject with 503",
    }
}

options! {
    /// Where the instances count.
    Kept {
        Shared "shared" "One, in memory",
        Separate "separate" "One per instance",
        Redis "redis" "Redis",
    }
}

options! {
    /// How long a run takes.
    Time {
        Instant "instant" "Show the result",
        Short "5s" "Simulate in 5 s",
        Medium "15s" "Simulate in 15 s",
        Long "60s" "Simulate in 60 s",
        Real "real" "Real time",
    }
}

impl Time {
    /// The time for which the page shows the simulation.
    pub(crate) const fn length(self) -> Duration {
        Duration::from_secs(match self {
            Self::Instant | Self::Real => 0,
            Self::Short => 5,
            Self::Medium => 15,
            Self::Long => 60,
        })
    }
}

impl Period {
    /// The nominal length.
    pub(crate) const fn length(self) -> Duration {
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::TenSeconds => 10,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::ThirtyDays | Self::Month => 30 * 86_400,
        })
    }
}

impl Failure {
    const fn mode(self) -> FailureMode {
        match self {
            Self::Local => FailureMode::Local { instances: 0 },
            Self::LocalHalf => FailureMode::Local { instances: 2 },
            Self::Open => FailureMode::Open,
            Self::Closed => FailureMode::Closed,
        }
    }
}

/// Everything that is chosen on the page. `Display` writes the query that `FromStr` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) algorithm: Algorithm,
    /// The algorithm on the right side of the page.
    pub(crate) compare: Option<Algorithm>,
    pub(crate) limit: u64,
    pub(crate) period: Period,
    pub(crate) burst: Option<u64>,
    pub(crate) traffic: Traffic,
    /// The requests per period, in percent of the limit.
    pub(crate) load: u64,
    pub(crate) failure: Failure,
    pub(crate) store: Kept,
    pub(crate) time: Time,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Gcra,
            compare: None,
            limit: 10,
            period: Period::Minute,
            burst: None,
            traffic: Traffic::Steady,
            load: 150,
            failure: Failure::Local,
            store: Kept::Shared,
            time: Time::Instant,
        }
    }
}

impl FromStr for Setup {
    type Err = Invalid;

    /// Parameters that are left out have their defaults.
    fn from_str(query: &str) -> Result<Self, Invalid> {
        let mut setup = Self::default();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name {
                "algorithm" => setup.algorithm = Algorithm::find("algorithm", value)?,
                "compare" if value.is_empty() => setup.compare = None,
                "compare" => setup.compare = Some(Algorithm::find("compare", value)?),
                "limit" => setup.limit = number("limit", value, 1_000)?,
                "period" => setup.period = Period::find("period", value)?,
                "burst" if value.is_empty() => setup.burst = None,
                "burst" => setup.burst = Some(number("burst", value, 1_000)?),
                "traffic" => setup.traffic = Traffic::find("traffic", value)?,
                "load" => setup.load = number("load", value, 1_000)?,
                "failure" => setup.failure = Failure::find("failure", value)?,
                "store" => setup.store = Kept::find("store", value)?,
                "time" => setup.time = Time::find("time", value)?,
                other => return Err(Invalid::new("setup", format!("unknown parameter `{other}`"))),
            }
        }
        if setup.time == Time::Real && setup.period.length() > Period::Minute.length() {
            return Err(Invalid::new(
                "time",
                "four periods in real time take too long: simulate them, or choose a period of at most a minute",
            ));
        }
        Ok(setup)
    }
}

fn number(field: &'static str, text: &str, most: u64) -> Result<u64, Invalid> {
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| {
        Invalid::new(field, format!("`{field}` must be a whole number from 1 to {most}, not `{text}`"))
    })
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, load, .. } = self;
        let [algorithm, period, traffic] = [self.algorithm.id(), self.period.id(), self.traffic.id()];
        let [failure, store, time] = [self.failure.id(), self.store.id(), self.time.id()];
        write!(f, "algorithm={algorithm}&compare={}", self.compare.map_or("", Algorithm::id))?;
        write!(f, "&limit={limit}&period={period}&burst=")?;
        if let Some(burst) = self.burst {
            write!(f, "{burst}")?;
        }
        write!(f, "&traffic={traffic}&load={load}&failure={failure}&store={store}&time={time}")
    }
}

/// A quota, the algorithm that counts it, and the failure mode: one side of the page.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    pub(crate) algorithm: Algorithm,
    pub(crate) limit: u64,
    pub(crate) period: Period,
    pub(crate) burst: Option<u64>,
    pub(crate) failure: Failure,
    /// How the quota differs from the setup's.
    pub(crate) notes: Vec<&'static str>,
}

impl Setup {
    /// The limits of the sides. The second algorithm counts as much of the quota as it can.
    pub(crate) fn limits(&self) -> Result<Vec<Limit>, Invalid> {
        let Self { algorithm, limit, period, burst, failure, .. } = *self;
        let first = Limit { algorithm, limit, period, burst, failure, notes: Vec::new() };
        first.policy().map_err(|error| Invalid::new("algorithm", error.to_string()))?;
        let Some(algorithm) = self.compare else { return Ok(vec![first]) };
        let mut second = Limit { algorithm, ..first.clone() };
        if burst.is_some() && second.policy().is_err() {
            second = Limit { burst: None, notes: vec!["This algorithm has no burst."], ..second };
        }
        if period == Period::Month && second.policy().is_err() {
            second.period = Period::ThirtyDays;
            second.notes.push("This algorithm does not count calendar months, so the period is 30 days.");
        }
        second.policy().map_err(|error| Invalid::new("compare", error.to_string()))?;
        Ok(vec![first, second])
    }
}

impl Limit {
    pub(crate) fn quota(&self) -> Result<Quota, Error> {
        let quota = match self.period {
            Period::Month => Quota::per_month(self.limit),
            period => Quota::try_new(self.limit, period.length())?,
        };
        self.burst.map_or(Ok(quota), |burst| quota.try_burst(burst))
    }

    /// The policy of the layer.
    pub(crate) fn policy(&self) -> Result<Policy, Error> {
        let policy = Policy::try_new("api", self.quota()?)?;
        let period = self.period.length();
        let policy = match self.algorithm {
            Algorithm::Gcra => policy.try_algorithm(Gcra::new()),
            Algorithm::TokenBucket => policy.try_algorithm(TokenBucket::new()),
            Algorithm::TokenBucketInSteps => policy.try_algorithm(TokenBucket::new().refill_every(period)),
            Algorithm::LeakyMeter => policy.try_algorithm(LeakyBucket::meter()),
            Algorithm::LeakyQueue => policy.try_algorithm(LeakyBucket::queue(period)),
            Algorithm::FixedWindow => policy.try_algorithm(FixedWindow::anchored()),
            Algorithm::AlignedWindow => policy.try_algorithm(FixedWindow::aligned()),
            Algorithm::SlidingWindow => policy.try_algorithm(SlidingWindow::new()),
            Algorithm::SlidingSegments => policy.try_algorithm(SlidingWindow::new().segments(10)),
            Algorithm::SlidingLog => policy.try_algorithm(SlidingLog::new()),
            Algorithm::Concurrency => policy.try_algorithm(Concurrency::new()),
        }?;
        Ok(policy.failure_mode(self.failure.mode()))
    }
}

/// The page with the options of its form, and the defaults of a setup.
pub(crate) fn fill_in(page: &str, has_redis: bool) -> String {
    let Setup { algorithm, limit, period, traffic, load, failure, store, time, .. } = Setup::default();
    let redis = format!("<option value={:?}", Kept::Redis.id());
    let redis_or_not = if has_redis { redis.clone() } else { format!("{redis} disabled") };
    [
        ("{algorithms}", algorithm.html()),
        // The first option is `Nothing`.
        ("{others}", algorithm.html().replace(" selected", "")),
        ("{limit}", limit.to_string()),
        ("{periods}", period.html()),
        ("{traffics}", traffic.html()),
        ("{load}", load.to_string()),
        ("{failures}", failure.html()),
        ("{stores}", store.html().replace(&redis, &redis_or_not)),
        ("{times}", time.html()),
    ]
    .into_iter()
    .fold(page.to_owned(), |page, (place, text)| page.replace(place, &text))
}
