//! [`TwinTestError`]: a failed test, as a report with which its reader can find the cause.

use std::{error::Error as StdError, fmt};

use tower_ratelimit::Error;

/// Why a [`TwinTest`](super::TwinTest) failed. Shown as a report of several lines.
#[derive(Clone)]
pub struct TwinTestError(Problem);

#[derive(Clone)]
pub(super) enum Problem {
    /// The test could not run.
    Setup(Error),
    Found(Box<Report>),
}

/// A finding, with the steps that led to it.
#[derive(Clone)]
pub(super) struct Report {
    pub(super) algorithm: String,
    pub(super) seed: u64,
    pub(super) step: usize,
    pub(super) finding: Finding,
    /// The steps before it, with their numbers.
    pub(super) before: Vec<String>,
}

/// A disagreement, or a broken rule.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    /// `None` for a disagreement.
    pub(super) broken: Option<&'static str>,
    /// The request and its time.
    pub(super) requested: String,
    pub(super) redis: String,
    pub(super) memory: String,
}

impl TwinTestError {
    pub(super) const fn setup(error: Error) -> Self {
        Self(Problem::Setup(error))
    }

    pub(super) fn found(report: Report) -> Self {
        Self(Problem::Found(Box::new(report)))
    }

    /// The seed of the steps; `None` if the test could not run.
    #[must_use]
    pub const fn seed(&self) -> Option<u64> {
        match &self.0 {
            Problem::Setup(_) => None,
            Problem::Found(report) => Some(report.seed),
        }
    }

    /// The step that failed, counted from 1; `None` if the test could not run.
    #[must_use]
    pub const fn step(&self) -> Option<usize> {
        match &self.0 {
            Problem::Setup(_) => None,
            Problem::Found(report) => Some(report.step),
        }
    }
}

impl fmt::Display for TwinTestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { algorithm, seed, step, finding, before } = match &self.0 {
            Problem::Setup(error) => return write!(f, "the twins were not compared: {error}"),
            Problem::Found(report) => &**report,
        };
        match finding.broken {
            None => write!(f, "the twins of the algorithm {algorithm} disagree")?,
            Some(rule) => write!(f, "the algorithm {algorithm} breaks the rule \"{rule}\"")?,
        }
        writeln!(f, " at step {step} with the seed {seed}")?;
        writeln!(f, "  {}", finding.requested)?;
        writeln!(f, "    Redis:  {}", finding.redis)?;
        writeln!(f, "    memory: {}", finding.memory)?;
        if !before.is_empty() {
            writeln!(f, "  the steps before it:")?;
            for line in before {
                writeln!(f, "    {line}")?;
            }
        }
        write!(f, "  to repeat it, add `.seed({seed})`")
    }
}

/// The report, so that `unwrap` in a test shows it.
impl fmt::Debug for TwinTestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StdError for TwinTestError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.0 {
            Problem::Setup(error) => Some(error),
            Problem::Found(_) => None,
        }
    }
}
