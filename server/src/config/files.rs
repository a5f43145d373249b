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
use tracing::{error, info};

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
    for entry in fs::read_dir(directory).map_err(|error| failed(directory, &error))? {
        let path = entry.map_err(|error| failed(directory, &error))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // A mounted directory of Kubernetes has hidden ones, to which the links in it lead.
        let is_yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
        if name.starts_with('.') || !is_yaml {
            continue;
        }
        let mut text = String::new();
        let read = fs::File::open(&path).and_then(|file| match file.metadata()?.is_file() {
            true => file.take(MAX_BYTES + 1).read_to_string(&mut text),
            false => Err(io::Error::other("not a regular file")),
        });
        if read.map_err(|error| failed(&path, &error))? as u64 > MAX_BYTES {
            return Err(format!("{}: larger than 4 MiB", path.display()));
        }
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
    current: ArcSwap<Config>,
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
        let config = Config::build(&files, &settings)?;
        for note in config.notes() {
            tracing::warn!("{note}");
        }
        let followed = Arc::new(Self { current: ArcSwap::from_pointee(config), error: ArcSwap::default() });
        tokio::spawn(followed.clone().follow(directory, settings, policies, files));
        Ok(followed)
    }

    pub(crate) fn current(&self) -> Arc<Config> {
        self.current.load_full()
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
        mut files: Files,
    ) {
        let mut latest = Ok(files.clone());
        loop {
            sleep(INTERVAL).await;
            let directory = directory.clone();
            let loaded =
                spawn_blocking(move || load(&directory)).await.unwrap_or_else(|error| Err(error.to_string()));
            // A file may be half written: two reads must agree.
            let is_settled = loaded == latest;
            latest = loaded;
            if !is_settled {
                continue;
            }
            let active = policies.as_ref().map_or_else(Vec::new, LivePolicies::current);
            if latest.as_ref() == Ok(&files) && active == settings.policies && self.error.load().is_none() {
                continue;
            }
            let next = Settings { policies: active, ..settings.clone() };
            let built = latest.clone().and_then(|files| Ok((Config::build(&files, &next)?, files)));
            match built {
                Ok((config, accepted)) => {
                    (files, settings) = (accepted, next);
                    self.apply(config);
                }
                Err(problem) => self.reject(problem),
            }
        }
    }

    fn apply(&self, config: Config) {
        info!(limits = config.limits().len(), "the configuration has changed");
        for note in config.notes() {
            tracing::warn!("{note}");
        }
        self.current.store(Arc::new(config));
        self.error.store(Arc::default());
        gauge!("ratelimit_server_config_is_invalid").set(0.0);
    }

    /// Logs an error once, and keeps it.
    fn reject(&self, problem: String) {
        if self.error.load().as_ref().as_ref() != Some(&problem) {
            error!("the configuration stays as it is: {problem}");
            self.error.store(Arc::new(Some(problem)));
            gauge!("ratelimit_server_config_is_invalid").set(1.0);
        }
    }
}
