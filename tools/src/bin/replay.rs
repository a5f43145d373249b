//! Shows which past requests a policy would have denied, before you turn it on.
//!
//! Run with
//!
//! ```text
//! cargo run --release -p tools --bin replay -- --algorithm gcra --limit 5 --period 1s --format combined access.log
//! ```
//!
//! It reads a file or stdin: `jsonl`, one request a line such as `{"t": 1767225600000000, "key": "a"}` with
//! the time in microseconds, or `combined`, the access log of nginx and Apache, where the key is the client's
//! address. The requests' timestamps drive the clock, so a year of them takes seconds. A summary goes to
//! stderr; with `--verdicts`, the verdict on each request goes to stdout, one JSON object for each line read.
//!
//! A JSON line may have a `cost`, and an `op`: `take` (the default), `peek`, `take-up-to`, `refund`, `reset`,
//! or `set-quota` with `limit`, `period_us` and `burst`, which changes the quota of the policy from then on.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

use std::{
    collections::{BTreeMap, HashMap},
    error::Error,
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal, Write},
    path::PathBuf,
    time::Duration,
};

use chrono::DateTime;
use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use serde_json::{Value, json};
use tower_ratelimit::{
    Decision, Key, Limiter, MemoryStore, Policy, Quota, RedisStore,
    algorithm::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    decision::Verdict,
    store::ManualClock,
};

/// Shows which past requests a policy would have denied.
#[derive(Parser)]
struct Options {
    /// The algorithm.
    #[arg(long, value_enum, default_value = "gcra")]
    algorithm: Algorithm,
    /// Units per period.
    #[arg(long)]
    limit: u64,
    /// Such as 1s, 10min or 1day.
    #[arg(long, value_parser = humantime::parse_duration)]
    period: Duration,
    /// Units in one burst, if different from the limit.
    #[arg(long)]
    burst: Option<u64>,
    /// Cells of a sliding window.
    #[arg(long)]
    segments: Option<u32>,
    /// The longest wait in the queue of a leaky bucket; defaults to 1s.
    #[arg(long, value_parser = humantime::parse_duration)]
    max_wait: Option<Duration>,
    /// Units that a leaky bucket's queue does not delay.
    #[arg(long)]
    delay_after: Option<u64>,
    /// The interval at which a token bucket is refilled.
    #[arg(long, value_parser = humantime::parse_duration)]
    refill_every: Option<Duration>,
    /// Tokens that a new bucket holds.
    #[arg(long)]
    initial: Option<u64>,
    /// Align fixed windows to the clock.
    #[arg(long)]
    aligned: bool,
    /// `memory`, or a Redis URL.
    #[arg(long, default_value = "memory")]
    store: String,
    /// The format of the input.
    #[arg(long, value_enum, default_value = "jsonl")]
    format: Format,
    /// Print the verdict on each request.
    #[arg(long)]
    verdicts: bool,
    /// The file to read; defaults to stdin.
    file: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Algorithm {
    Gcra,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
    LeakyBucket,
    LeakyBucketQueue,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Jsonl,
    Combined,
}

#[derive(Deserialize)]
struct Request {
    t: u64,
    #[serde(default)]
    key: String,
    #[serde(default = "one")]
    cost: u64,
    #[serde(default)]
    op: Op,
    limit: Option<u64>,
    period_us: Option<u64>,
    burst: Option<u64>,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum Op {
    #[default]
    Take,
    Peek,
    TakeUpTo,
    Refund,
    Reset,
    SetQuota,
}

const fn one() -> u64 {
    1
}

impl Op {
    const fn name(self) -> &'static str {
        match self {
            Self::Take => "take",
            Self::Peek => "peek",
            Self::TakeUpTo => "take-up-to",
            Self::Refund => "refund",
            Self::Reset => "reset",
            Self::SetQuota => "set-quota",
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    if let Err(error) = replay(Options::parse()).await {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

/// Rejects options that the algorithm does not use.
fn check(options: &Options) -> Result<(), String> {
    use Algorithm::{FixedWindow, LeakyBucketQueue, SlidingWindow, TokenBucket};
    let given = [
        ("--segments", options.segments.is_some(), matches!(options.algorithm, SlidingWindow)),
        ("--max-wait", options.max_wait.is_some(), matches!(options.algorithm, LeakyBucketQueue)),
        ("--delay-after", options.delay_after.is_some(), matches!(options.algorithm, LeakyBucketQueue)),
        ("--refill-every", options.refill_every.is_some(), matches!(options.algorithm, TokenBucket)),
        ("--initial", options.initial.is_some(), matches!(options.algorithm, TokenBucket)),
        ("--aligned", options.aligned, matches!(options.algorithm, FixedWindow)),
    ];
    match given.into_iter().find(|(_, given, used)| *given && !used) {
        Some((option, ..)) => Err(format!("{option} is of no use to this algorithm")),
        None => Ok(()),
    }
}

async fn replay(options: Options) -> Result<(), Box<dyn Error>> {
    check(&options)?;
    let mut quota = quota(options.limit, options.period, options.burst)?;
    let mut policy = policy(&options, quota)?;
    let clock = ManualClock::new();
    let limiter = if options.store == "memory" {
        // Enough capacity for all keys of a log, so that none is evicted.
        Limiter::new(MemoryStore::with_clock(clock.clone()).capacity(50_000_000))
    } else {
        let prefix = format!("replay-{}", std::process::id());
        let settings = RedisStore::builder().deadline(Duration::from_millis(500)).prefix(prefix);
        Limiter::new(settings.manual_clock(clock.clone()).connect(&options.store).await?)
    };

    let (mut input, progress) = open(options.file.as_ref())?;
    let mut output = io::BufWriter::new(io::stdout().lock());
    let mut summary = Summary::default();
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line)? > 0 {
        progress.inc(line.len() as u64);
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        line.clear();
        let request = match parse(options.format, &text) {
            Ok(request) => request,
            Err(problem) => {
                summary.bad_line(&progress, &text, &problem);
                if options.verdicts {
                    writeln!(output, "{}", json!({ "error": problem }))?;
                }
                continue;
            }
        };

        clock.set(Duration::from_micros(request.t));
        let key = Key::new(&request.key);
        let check = match request.op {
            Op::Take => limiter.check(&policy, &key, request.cost),
            Op::Peek => limiter.peek(&policy, &key, request.cost),
            Op::TakeUpTo => limiter.check_up_to(&policy, &key, request.cost),
            Op::Refund => limiter.operator().refund_latest(&policy, &key, request.cost),
            Op::Reset => {
                limiter.operator().reset(&policy, &key).await?;
                limiter.peek(&policy, &key, 0)
            }
            Op::SetQuota => {
                let period = request.period_us.map_or_else(|| quota.period(), Duration::from_micros);
                let changed =
                    self::quota(request.limit.unwrap_or_else(|| quota.limit()), period, request.burst)
                        .and_then(|changed| Ok((changed, self::policy(&options, changed)?)));
                match changed {
                    Ok(changed) => (quota, policy) = changed,
                    Err(problem) => {
                        summary.bad_line(&progress, &text, &problem.to_string());
                        if options.verdicts {
                            writeln!(output, "{}", json!({ "error": problem.to_string() }))?;
                        }
                        continue;
                    }
                }
                limiter.peek(&policy, &key, 0)
            }
        };
        let decision = check.await?;
        if let Some(failure) = decision.failure() {
            return Err(failure.clone().into());
        }
        summary.count(&request, &decision);
        if options.verdicts {
            writeln!(output, "{}", verdict(&request, &decision))?;
        }
    }
    output.flush()?;
    progress.finish_and_clear();
    if options.store != "memory" {
        for key in summary.denied_of.keys() {
            limiter.operator().reset(&policy, &Key::new(key)).await?;
        }
    }
    eprint!("{}", summary.report(&policy));
    Ok(())
}

fn quota(limit: u64, period: Duration, burst: Option<u64>) -> Result<Quota, tower_ratelimit::Error> {
    let quota = Quota::try_new(limit, period)?;
    burst.map_or(Ok(quota), |burst| quota.try_burst(burst))
}

fn policy(options: &Options, quota: Quota) -> Result<Policy, tower_ratelimit::Error> {
    let policy = Policy::try_new("replay", quota)?;
    match options.algorithm {
        Algorithm::Gcra => Ok(policy),
        Algorithm::FixedWindow if options.aligned => policy.try_algorithm(FixedWindow::aligned()),
        Algorithm::FixedWindow => policy.try_algorithm(FixedWindow::anchored()),
        Algorithm::SlidingLog => policy.try_algorithm(SlidingLog::new()),
        Algorithm::SlidingWindow => {
            policy.try_algorithm(SlidingWindow::new().segments(options.segments.unwrap_or(1)))
        }
        Algorithm::TokenBucket => {
            let mut bucket = TokenBucket::new();
            if let Some(step) = options.refill_every {
                bucket = bucket.refill_every(step);
            }
            if let Some(tokens) = options.initial {
                bucket = bucket.starting_at(tokens);
            }
            policy.try_algorithm(bucket)
        }
        Algorithm::LeakyBucket => policy.try_algorithm(LeakyBucket::meter()),
        Algorithm::LeakyBucketQueue => {
            let queue = LeakyBucket::queue(options.max_wait.unwrap_or(Duration::from_secs(1)));
            policy.try_algorithm(queue.delay_after(options.delay_after.unwrap_or(1)))
        }
    }
}

fn open(file: Option<&PathBuf>) -> Result<(Box<dyn BufRead>, ProgressBar), Box<dyn Error>> {
    let Some(path) = file else {
        return Ok((Box::new(BufReader::new(io::stdin())), ProgressBar::hidden()));
    };
    let file = File::open(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let size = file.metadata()?.len();
    let progress = if io::stderr().is_terminal() && size > 1 << 20 {
        let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {eta} left")?;
        ProgressBar::new(size).with_style(style)
    } else {
        ProgressBar::hidden()
    };
    Ok((Box::new(BufReader::new(file)), progress))
}

fn parse(format: Format, line: &str) -> Result<Request, String> {
    match format {
        Format::Jsonl => match serde_json::from_str::<Request>(line) {
            Ok(request) if request.t >= 1 << 53 => Err("a time after the year 2255".into()),
            parsed => parsed.map_err(|error| error.to_string()),
        },
        Format::Combined => {
            // 203.0.113.7 - - [10/Oct/2026:13:55:36 +0000] "GET / HTTP/1.1" 200 ...
            let key = line.split(' ').next().filter(|address| !address.is_empty()).ok_or("no address")?;
            let time = line
                .split_once('[')
                .and_then(|(_, rest)| rest.split_once(']'))
                .ok_or("no time in brackets")?
                .0;
            let time =
                DateTime::parse_from_str(time, "%d/%b/%Y:%H:%M:%S %z").map_err(|error| error.to_string())?;
            let t = u64::try_from(time.timestamp_micros()).map_err(|_| "a time before 1970")?;
            let key = key.to_owned();
            Ok(Request { t, key, cost: 1, op: Op::Take, limit: None, period_us: None, burst: None })
        }
    }
}

fn verdict(request: &Request, decision: &Decision) -> Value {
    let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    let outcome = decision.binding();
    json!({
        "t": request.t,
        "key": request.key,
        "op": request.op.name(),
        "allowed": !decision.verdict().is_denied(),
        "granted": outcome.map(|outcome| outcome.granted()),
        "limit": outcome.map(|outcome| outcome.policy().capacity()),
        "remaining": outcome.map(|outcome| outcome.remaining()),
        "retry_after_us": match decision.verdict() {
            Verdict::Deny { retry_after: Some(wait), .. } => json!(micros(wait)),
            Verdict::Deny { retry_after: None, .. } => json!("never"),
            _ => Value::Null,
        },
        "reset_after_us": outcome.map(|outcome| micros(outcome.reset_after())),
        "delay_us": match decision.verdict() {
            Verdict::Delay(delay) => micros(delay),
            _ => 0,
        },
    })
}

#[derive(Default)]
struct Summary {
    bad_lines: u64,
    requests: u64,
    denied: u64,
    /// The number of denied requests of every key.
    denied_of: HashMap<String, u64>,
    /// Requests and denials in each second.
    seconds: BTreeMap<u64, (u64, u64)>,
}

impl Summary {
    /// Counts an invalid line and prints the first one. Invalid lines do not stop the program.
    fn bad_line(&mut self, progress: &ProgressBar, line: &str, problem: &str) {
        self.bad_lines += 1;
        if self.bad_lines == 1 {
            let shown: String = line.chars().take(120).collect();
            progress.suspend(|| {
                eprintln!("a line that does not parse ({problem}), the first of its kind: {shown}")
            });
        }
    }

    fn count(&mut self, request: &Request, decision: &Decision) {
        if !matches!(request.op, Op::Take | Op::TakeUpTo) {
            return;
        }
        let denied = u64::from(decision.verdict().is_denied());
        self.requests += 1;
        self.denied += denied;
        *self.denied_of.entry(request.key.clone()).or_default() += denied;
        let second = self.seconds.entry(request.t / 1_000_000).or_default();
        second.0 += 1;
        second.1 += denied;
    }

    fn report(&self, policy: &Policy) -> String {
        let percent = |part: u64, whole: u64| part as f64 * 100.0 / whole.max(1) as f64;
        let mut report = format!(
            "{}\n{} requests of {} keys, {} denied ({:.1} %)\n",
            policy.quota(),
            self.requests,
            self.denied_of.len(),
            self.denied,
            percent(self.denied, self.requests),
        );
        if self.bad_lines > 0 {
            report += &format!("{} lines did not parse\n", self.bad_lines);
        }
        let mut worst: Vec<_> = self.denied_of.iter().filter(|(_, denied)| **denied > 0).collect();
        worst.sort_by_key(|(key, denied)| (std::cmp::Reverse(**denied), key.as_str()));
        if !worst.is_empty() {
            report += "most denied:\n";
        }
        for (key, denied) in worst.into_iter().take(10) {
            report += &format!("{denied:>10}  {key}\n");
        }
        report + &self.histogram()
    }

    /// Splits the time into twenty spans, each with a bar of requests and the part of it that was denied.
    fn histogram(&self) -> String {
        const SPANS: u64 = 20;
        const WIDTH: u64 = 50;
        let (Some((first, _)), Some((last, _))) =
            (self.seconds.first_key_value(), self.seconds.last_key_value())
        else {
            return String::new();
        };
        let span = (last - first + 1).div_ceil(SPANS);
        let mut spans: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (second, (requests, denied)) in &self.seconds {
            let bar = spans.entry((second - first) / span).or_default();
            bar.0 += requests;
            bar.1 += denied;
        }
        let most = spans.values().map(|(requests, _)| *requests).max().unwrap_or(1);
        let mut lines = format!(
            "requests over time, {} each; # denied, = admitted:\n",
            humantime::format_duration(Duration::from_secs(span))
        );
        for i in 0..=spans.keys().max().copied().unwrap_or(0) {
            let (requests, denied) = spans.get(&i).copied().unwrap_or_default();
            // A count above zero is at least one character.
            let width = |n: u64| (n * WIDTH).div_ceil(most);
            let denied_width = width(denied);
            let bar = "#".repeat(denied_width as usize)
                + &"=".repeat(width(requests).saturating_sub(denied_width) as usize);
            lines += &format!(
                "{:>12} {bar} {requests}\n",
                humantime::format_duration(Duration::from_secs(i * span)).to_string()
            );
        }
        lines
    }
}
