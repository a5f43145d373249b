//! The directory, and the task that follows it.

use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use metrics::gauge;
use tokio::{task::spawn_blocking, time::sleep};
use tower_ratelimit_operate::live::LivePolicies;
use tracing::{error, info, warn};

use super::{build::Settings, tree::Config};

/// The time between two reads of the directory.
const INTERVAL: Duration = Duration::from_millis(500);
/// A larger file is not a configuration.
const MAX_BYTES: u64 = 4 << 20;

type Files = Vec<(String, String)>;

/// Reads the files of `directory`, in the order of their names.
fn load(directory: &Path) -> Result<Files, String> {
    let failed = |path: &Path, error: &io::Error| format!("{}: {error}", path.display());
    let mut files = Vec::new();
    let found = fs::read_dir(directory);
    for entry in
        found.map_err(|error| format!("{}: {error}: give the directory of the files", directory.display()))?
    {
        let path = entry.map_err(|error| failed(directory, &error))?.path();
        // A mounted directory of Kubernetes has hidden files, to which the links in it lead.
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if is_hidden || !path.extension().is_some_and(|end| end == "yaml" || end == "yml") {
            continue;
        }
        let mut text = String::new();
        // Opening a pipe would wait for its other end.
        let read = fs::metadata(&path).and_then(|found| match found.is_file() && found.len() <= MAX_BYTES {
            true => fs::File::open(&path)?.take(MAX_BYTES).read_to_string(&mut text),
            false => Err(io::Error::other("not a file of at most 4 MiB")),
        });
        read.map_err(|error| failed(&path, &error))?;
        files.push((path.display().to_string(), text));
    }
    files.sort();
    match files.is_empty() {
        true => Err(format!("{}: no file ends with .yaml or .yml", directory.display())),
        false => Ok(files),
    }
}

/// Reads `directory` once.
pub(crate) fn read(directory: &Path, settings: &Settings) -> Result<Config, String> {
    Config::build(&load(directory)?, settings)
}

/// A directory that is followed. An invalid change leaves the configuration as it is.
pub(crate) struct Followed {
    pub(crate) current: ArcSwap<Config>,
    error: ArcSwap<Option<String>>,
}

impl Followed {
    /// Reads `directory`, and follows it and `policies` until the process ends.
    pub(crate) fn begin(
        directory: PathBuf,
        settings: Settings,
        policies: Option<LivePolicies>,
    ) -> Result<Arc<Self>, String> {
        let files = load(&directory)?;
        let followed = Arc::new(Self { current: ArcSwap::default(), error: ArcSwap::default() });
        followed.apply(Ok(Config::build(&files, &settings)?));
        tokio::spawn(followed.clone().follow(directory, settings, policies, files));
        Ok(followed)
    }

    /// Why the configuration stays as it is.
    pub(crate) fn error(&self) -> Option<String> {
        self.error.load().as_ref().clone()
    }

    async fn follow(
        self: Arc<Self>,
        directory: PathBuf,
        mut settings: Settings,
        policies: Option<LivePolicies>,
        files: Files,
    ) {
        let mut latest = Ok(files);
        let mut applied = latest.clone();
        loop {
            sleep(INTERVAL).await;
            let directory = directory.clone();
            let loaded = spawn_blocking(move || load(&directory)).await;
            let loaded = loaded.unwrap_or_else(|error| Err(error.to_string()));
            // A file may be half written: two reads must agree.
            let is_settled = loaded == latest;
            latest = loaded;
            let active = policies.as_ref().map_or_else(Vec::new, LivePolicies::current);
            if !is_settled || latest == applied && active == settings.policies {
                continue;
            }
            (applied, settings.policies) = (latest.clone(), active);
            let (files, settings) = (latest.clone(), settings.clone());
            let built = spawn_blocking(move || Config::build(&files?, &settings)).await;
            self.apply(built.unwrap_or_else(|error| Err(error.to_string())));
        }
    }

    fn apply(&self, built: Result<Config, String>) {
        // Its alert fires for this source too.
        let change = f64::from(built.is_err()) - f64::from(self.error().is_some());
        gauge!("ratelimit_failed_policy_sources").increment(change);
        let error = match built {
            Ok(config) => {
                info!(limits = config.limits.len(), "the configuration applies");
                config.warnings.iter().for_each(|warning| warn!("{warning}"));
                self.current.store(Arc::new(config));
                None
            }
            Err(problem) => {
                error!("the configuration stays as it is: {problem}");
                Some(problem)
            }
        };
        self.error.store(Arc::new(error));
    }
}
