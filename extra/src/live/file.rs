//! Policies from a TOML file.

#[cfg(unix)]
use std::os::unix::fs::OpenOptionsExt as _;
use std::{
    collections::{BTreeMap, btree_map::Entry as Slot},
    fmt::Display,
    fs::OpenOptions,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use serde::Deserialize;
use serde_path_to_error::Segment;
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::{sleep, timeout},
};
use tower_ratelimit::{Error, ErrorKind, policy::Enforcement};

use super::{
    error_place::{Entry, without_name},
    follow::{Origin, unfinished},
    parsed::Parsed,
};
use crate::config::PolicyConfig;

/// A larger file is not read: the path is probably wrong.
const MAX_BYTES: u64 = 1 << 20;
/// The time between two reads that must agree, or the file is still being written.
const SETTLE: Duration = Duration::from_millis(50);
/// The number of reads of a file that changes all the time.
const ATTEMPTS: usize = 10;
/// A file system that takes longer is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// A file, read as a whole. Polled and not watched: a mounted directory of Kubernetes and an editor that
/// renames replace the file, and then inotify watches one that is no longer there.
pub(super) struct PolicyFile {
    path: Arc<Path>,
    /// The latest content that two reads agreed on.
    settled: Vec<u8>,
    /// A read that was not waited for. No other one begins before it ends, because each blocks a thread.
    late: Option<JoinHandle<Result<Vec<u8>, Error>>>,
}

#[derive(Deserialize)]
#[serde(rename = "a file of policies", deny_unknown_fields)]
struct Tables {
    enforcement: Option<Enforcement>,
    policies: Option<Vec<PolicyConfig>>,
}

impl PolicyFile {
    /// Reads the file at `path` for the first time. Blocks.
    pub(super) fn open(path: PathBuf) -> Result<(Self, Vec<u8>), Error> {
        let path: Arc<Path> = path.into();
        let settled = settled(|| load(&path), || thread::sleep(SETTLE))?;
        let content = settled.ok_or_else(|| changing(&path))?;
        Ok((Self { path, settled: content.clone(), late: None }, content))
    }

    /// The name of the file in errors and logs.
    pub(super) fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Reads the policies that `content` has.
    pub(super) fn parse(&self, content: &[u8]) -> Result<Parsed, Error> {
        parse(&self.path, content)
    }

    async fn load(&mut self) -> Result<Vec<u8>, Error> {
        let path = self.path.clone();
        self.finish(move || load(&path), PATIENCE).await
    }

    /// Runs `load`, or waits for the one that is under way.
    async fn finish(
        &mut self,
        load: impl FnOnce() -> Result<Vec<u8>, Error> + Send + 'static,
        patience: Duration,
    ) -> Result<Vec<u8>, Error> {
        let read = self.late.take().unwrap_or_else(|| spawn_blocking(load));
        let read = self.late.insert(read);
        let Ok(loaded) = timeout(patience, read).await else {
            let problem =
                format!(": the file of policies was not read within {patience:?}: check its file system");
            return Err(invalid(&self.path, problem));
        };
        self.late = None;
        loaded.unwrap_or_else(|error| Err(unfinished(&error)))
    }
}

/// The content that two reads with a `pause` between them agree on. `None` if it changes all the time.
fn settled(
    mut load: impl FnMut() -> Result<Vec<u8>, Error>,
    pause: impl Fn(),
) -> Result<Option<Vec<u8>>, Error> {
    let mut before = load()?;
    for _ in 0..ATTEMPTS {
        pause();
        let content = load()?;
        if content == before {
            return Ok(Some(content));
        }
        before = content;
    }
    Ok(None)
}

fn changing(path: &Path) -> Error {
    invalid(path, " is being written all the time: replace it with `mv` instead")
}

fn invalid(path: &Path, problem: impl Display) -> Error {
    Error::new(ErrorKind::InvalidConfig, format!("{}{problem}", path.display()))
}

/// The error of the deserializer, with its place.
fn explain(path: &Path, text: &str, error: &serde_path_to_error::Error<toml::de::Error>) -> Error {
    let (place, error) = (error.path(), error.inner());
    let line = error.span().map_or(String::new(), |span| {
        let before = text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n');
        format!(", line {}", before.count() + 1)
    });
    let message = error.message().trim_end();
    let mut entry = Entry::of(place);
    let policy = match (entry.0.first(), entry.0.get(1)) {
        (Some(Segment::Map { key }), Some(Segment::Seq { index })) if key == "policies" => Some(*index),
        _ => None,
    };
    let Some(index) = policy else { return invalid(path, format_args!("{line}: {entry}{message}")) };
    entry.0.drain(..2);
    let Some(name) = name_of(text, index) else {
        let number = index + 1;
        return invalid(path, format_args!("{line}: policy {number} of the file: {entry}{message}"));
    };
    let message = without_name(message, &name);
    invalid(path, format_args!("{line}: policy `{name}`: {entry}{message}"))
}

impl Origin for PolicyFile {
    type Content = Vec<u8>;

    async fn read(&mut self) -> Result<Vec<u8>, Error> {
        let mut content = self.load().await?;
        for _ in 0..ATTEMPTS {
            if content == self.settled {
                return Ok(content);
            }
            self.settled.clone_from(&content);
            sleep(SETTLE).await;
            content = self.load().await?;
        }
        Err(changing(&self.path))
    }

    fn parse(&self, content: Arc<Vec<u8>>) -> JoinHandle<Result<Parsed, Error>> {
        let path = self.path.clone();
        spawn_blocking(move || parse(&path, &content))
    }
}

fn parse(path: &Path, content: &[u8]) -> Result<Parsed, Error> {
    let text = str::from_utf8(content)
        .map_err(|error| invalid(path, format_args!(": not UTF-8 after {} bytes", error.valid_up_to())))?;
    let syntax = |error: toml::de::Error| {
        let line =
            error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        invalid(path, format_args!(", line {line}: no valid TOML: {}", error.message().trim_end()))
    };
    let tables = toml::Deserializer::parse(text).map_err(syntax)?;
    let Tables { enforcement, policies: read } =
        serde_path_to_error::deserialize(tables).map_err(|error| explain(path, text, &error))?;
    // Probably a file that is not written yet, or an example in comments.
    if enforcement.is_none() && read.is_none() {
        return Err(invalid(path, ": the file has no entries: write a table `[[policies]]` for each policy"));
    }
    let mut policies = BTreeMap::new();
    for PolicyConfig(policy) in read.unwrap_or_default() {
        match policies.entry(policy.name().to_owned()) {
            Slot::Vacant(slot) => drop(slot.insert(policy)),
            Slot::Occupied(slot) => {
                let name = slot.key();
                return Err(invalid(
                    path,
                    format_args!(": there are two policies `{name}`: give each its own name, or remove one"),
                ));
            }
        }
    }
    Ok(Parsed { policies, enforcement: enforcement.unwrap_or_default(), is_empty: false })
}

/// The content of the file at `path`.
fn load(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |error: io::Error| {
        let message = format!("{}: the file of policies cannot be read: {error}", path.display());
        Error::new(ErrorKind::InvalidConfig, message).with_source(error)
    };
    let mut options = OpenOptions::new();
    options.read(true);
    // Opening a pipe would wait for its other end, and what `path` names may change before it is opened.
    #[cfg(unix)]
    options.custom_flags(libc::O_NONBLOCK);
    let file = options.open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("not a regular file")));
    }
    let mut content = Vec::new();
    let read = file.take(MAX_BYTES + 1).read_to_end(&mut content);
    if read.map_err(failed)? as u64 > MAX_BYTES {
        return Err(failed(io::Error::other("it is larger than 1 MiB")));
    }
    Ok(content)
}

/// The name of a policy in a file with an error.
fn name_of(text: &str, index: usize) -> Option<String> {
    let file: toml::Table = toml::from_str(text).ok()?;
    let policy = file.get("policies")?.as_array()?.get(index)?;
    policy.get("name")?.as_str().map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn the_first_read_waits_until_the_file_is_written() {
        let first_of = |reads: &[&'static str]| {
            let mut reads = reads.iter();
            settled(|| Ok(reads.next().unwrap().as_bytes().to_vec()), || {}).unwrap()
        };
        assert_eq!(first_of(&["whole", "whole"]).unwrap(), b"whole");
        assert_eq!(first_of(&["", "half", "whole", "whole"]).unwrap(), b"whole");
        let changing: Vec<&'static str> = ["a", "b"].into_iter().cycle().take(ATTEMPTS + 1).collect();
        assert_eq!(first_of(&changing), None);
    }

    #[tokio::test]
    async fn a_read_that_hangs_is_an_error_and_is_not_begun_twice() {
        let mut file = PolicyFile { path: Path::new("limits.toml").into(), settled: Vec::new(), late: None };
        let (finish, end) = mpsc::channel();
        let hangs = move || Ok(end.recv().unwrap_or_default());
        let short = Duration::from_millis(10);
        let error = file.finish(hangs, short).await.unwrap_err().to_string();
        assert_eq!(
            error,
            "limits.toml: the file of policies was not read within 10ms: check its file system"
        );
        assert!(file.finish(|| unreachable!("one is under way"), short).await.is_err());
        finish.send(b"late".to_vec()).unwrap();
        let read = file.finish(|| unreachable!("one is under way"), PATIENCE).await;
        assert_eq!(read.unwrap(), b"late");
        assert_eq!(file.finish(|| Ok(b"next".to_vec()), PATIENCE).await.unwrap(), b"next");
    }
}
