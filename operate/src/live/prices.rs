//! [`LivePrices`]: the handle on prices that change while the service runs.

use std::{fmt, mem, path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::{JoinHandle, spawn_blocking},
};
use tower_ratelimit::Error;
use tower_ratelimit_gateway::prices::{PriceSource, Prices};

use super::{
    follow::{Follower, Origin, Target, runtime},
    format::Format,
    health::Health,
    text_file::{Place, TextFile},
};

/// [`Prices`] that change while the service runs, from a file. Cloning gives another handle on them.
///
/// A change is all or nothing: if an entry is invalid, or the file cannot be read, all prices stay as they
/// are, and [`last_error`](Self::last_error) and a warning in the log state the line, the entry and what to
/// write. The metric `ratelimit_failed_policy_sources` counts such files too. A change is logged at info with
/// its version. A call that has begun keeps the prices that it began with.
///
/// The file is read until the last handle and the last
/// [`UsageMeter`](tower_ratelimit_gateway::prices::UsageMeter) with one is dropped, or the runtime is shut down.
///
/// # Example
///
/// ```
/// use std::{fs, time::Duration};
/// use tower_ratelimit_gateway::prices::{Price, UsageMeter};
/// use tower_ratelimit_operate::live::LivePrices;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("live-prices-{}.toml", std::process::id()));
/// fs::write(&path, "
///     version = '2025-06'
///     models.o3 = { input = 2, output = 8 }
/// ")?;
/// let mut live = LivePrices::file(&path)?.poll_every(Duration::from_millis(50));
/// assert_eq!(live.current().price("o3"), Some(Price::new("2", "8")));
/// // Its calls have the latest prices.
/// let meter = UsageMeter::new(&live);
/// # drop(meter);
///
/// fs::write(&path, "
///     version = '2025-07'
///     models.o3 = { input = 1.5, output = 6 }
/// ")?;
/// live.changed().await;
/// assert_eq!(live.current().version(), "2025-07");
/// # fs::remove_file(&path)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LivePrices {
    active: Arc<Active>,
    prices: watch::Receiver<Prices>,
}

/// The active prices, which the task that follows the file replaces. The handles are the receivers.
struct Active {
    health: Health,
    prices: watch::Sender<Prices>,
}

impl Target for Active {
    type Update = Prices;

    fn health(&self) -> &Health {
        &self.health
    }

    fn is_used(&self) -> bool {
        self.prices.receiver_count() > 0
    }

    fn apply(&self, update: Prices) -> Result<(), Error> {
        let (mut old, _new) = (None, update.version().to_owned());
        self.prices.send_if_modified(|prices| {
            let is_changed = *prices != update;
            if is_changed {
                old = Some(mem::replace(prices, update));
            }
            is_changed
        });
        // The lock of the channel is free here, because a subscriber may ask for the prices.
        if let Some(_old) = old {
            log!(info, origin = %self.health.origin(), old = %_old.version(), new = %_new, "prices changed");
        }
        Ok(())
    }
}

impl LivePrices {
    /// Reads prices from the [file](tower_ratelimit_gateway::prices#files) at `path`, and reads it again every 500 ms, or at the
    /// interval of [`poll_every`](Self::poll_every). The end of its name decides the format, as for
    /// [`LivePolicies::file`](super::LivePolicies::file): JSON, YAML or TOML.
    ///
    /// Changes are found and half-written files are detected as for
    /// [`LivePolicies::file`](super::LivePolicies::file). This call blocks while it reads the file
    /// twice, for 50 ms or more.
    ///
    /// # Errors
    ///
    /// * [`InvalidConfig`](tower_ratelimit::ErrorKind::InvalidConfig): the file cannot be read, is larger
    ///   than 1 MiB, has more than 64 lists and tables in each other, changes all the time, or is
    ///   invalid. The message names the line and the entry.
    /// * [`MissingSetup`](tower_ratelimit::ErrorKind::MissingSetup): no Tokio runtime runs here.
    pub fn file(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let runtime = runtime("prices")?;
        let (file, content) = PriceFile::open(path.into())?;
        let health = Health::new(file.name(), "prices", "the prices stay as they are");
        let (prices, receiver) = watch::channel(file.parse(&content)?);
        let active = Arc::new(Active { health, prices });
        runtime.spawn(Follower::new(file, Some(content)).run(active.clone()));
        Ok(Self { active, prices: receiver })
    }

    /// The prices as they are now. They do not change: use one table from the estimate of a call to its
    /// settlement.
    #[must_use]
    pub fn current(&self) -> Prices {
        self.prices.borrow().clone()
    }

    /// Why the prices stay as they are: the file is invalid or cannot be read, or the runtime that read it
    /// was shut down. `None` once that is over.
    #[must_use]
    pub fn last_error(&self) -> Option<Error> {
        self.active.health.error()
    }

    /// Waits for a change that this handle has not waited for yet. A new handle has seen what its original
    /// has.
    ///
    /// The future can be dropped at any time. It never completes once the runtime that made the prices is
    /// shut down.
    pub async fn changed(&mut self) {
        // The sender lives as long as this handle.
        let _ = self.prices.changed().await;
    }

    /// Sets the time between two reads, for all handles. Defaults to 500 ms; at least 10 ms. Each pause is up
    /// to a tenth shorter or longer. Takes effect after the current pause.
    #[must_use]
    pub fn poll_every(self, interval: Duration) -> Self {
        self.active.health.set_interval(interval);
        self
    }
}

impl fmt::Debug for LivePrices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LivePrices")
            .field("prices", &self.current())
            .field("last_error", &self.last_error())
            .finish()
    }
}

impl From<LivePrices> for PriceSource {
    fn from(live: LivePrices) -> Self {
        Self::watched(live.prices)
    }
}

impl From<&LivePrices> for PriceSource {
    fn from(live: &LivePrices) -> Self {
        live.clone().into()
    }
}

/// A file of prices.
struct PriceFile(TextFile);

impl PriceFile {
    /// Reads the file at `path` for the first time. Blocks.
    fn open(path: PathBuf) -> Result<(Self, Vec<u8>), Error> {
        let (file, content) = TextFile::open(path, "prices")?;
        Ok((Self(file), content))
    }

    /// The name of the file in errors and logs.
    fn name(&self) -> String {
        self.0.name()
    }

    /// Reads the prices that `content` has.
    fn parse(&self, content: &[u8]) -> Result<Prices, Error> {
        parse(self.0.place(), content)
    }
}

impl Origin for PriceFile {
    type Content = Vec<u8>;
    type Update = Prices;

    async fn read(&mut self) -> Result<Vec<u8>, Error> {
        self.0.read().await
    }

    fn parse(&self, content: Arc<Vec<u8>>) -> JoinHandle<Result<Prices, Error>> {
        let place = self.0.place().clone();
        spawn_blocking(move || parse(&place, &content))
    }
}

fn parse(file: &Place, content: &[u8]) -> Result<Prices, Error> {
    let format = Format::of(file)?;
    format.read(file.text(content)?).map_err(|problem| problem.of(file, format))
}
