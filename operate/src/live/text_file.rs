//! A file that is polled: read as a whole, and used once two reads agree.

#[cfg(unix)]
use std::os::unix::fs::OpenOptionsExt as _;
use std::{
    fmt::Display,
    fs::OpenOptions,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::{sleep, timeout},
};
use tower_ratelimit::{Error, ErrorKind};

use super::follow::unfinished;

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
pub(crate) struct TextFile {
    place: Place,
    /// The latest content that two reads agreed on.
    settled: Vec<u8>,
    /// A read that was not waited for. No other one begins before it ends, because each blocks a thread.
    late: Option<JoinHandle<Result<Vec<u8>, Error>>>,
}

/// The path of a file, and what the file is for.
#[derive(Clone)]
pub(crate) struct Place {
    path: Arc<Path>,
    /// What the file has, for errors: "policies".
    what: &'static str,
}

impl Place {
    /// The error of an invalid file. `problem` follows the path.
    pub(crate) fn invalid(&self, problem: impl Display) -> Error {
        Error::new(ErrorKind::InvalidConfig, format!("{}{problem}", self.path.display()))
    }

    /// What the name of the file ends with, after the last dot, in lower case.
    pub(super) fn extension(&self) -> String {
        self.path.extension().map(|end| end.to_string_lossy().to_lowercase()).unwrap_or_default()
    }

    /// The text of `content`.
    pub(crate) fn text<'a>(&self, content: &'a [u8]) -> Result<&'a str, Error> {
        str::from_utf8(content)
            .map_err(|error| self.invalid(format_args!(": not UTF-8 after {} bytes", error.valid_up_to())))
    }

    fn changing(&self) -> Error {
        self.invalid(format_args!(
            " changes all the time, and is used once two reads {SETTLE:?} apart agree: replace it less often, and with \
             `mv` instead of writing it in place"
        ))
    }

    /// The content of the file.
    fn load(&self) -> Result<Vec<u8>, Error> {
        let failed = |error: io::Error| {
            let (path, what) = (self.path.display(), self.what);
            let message = format!("{path}: the file of {what} cannot be read: {error}");
            Error::new(ErrorKind::InvalidConfig, message).with_source(error)
        };
        let mut options = OpenOptions::new();
        options.read(true);
        // Opening a pipe would wait for its other end, and what `path` names may change before it is opened.
        #[cfg(unix)]
        options.custom_flags(libc::O_NONBLOCK);
        let file = options.open(&self.path).map_err(failed)?;
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
}

impl TextFile {
    /// Reads the file at `path` for the first time. Blocks. `what` is what the file has.
    pub(crate) fn open(path: PathBuf, what: &'static str) -> Result<(Self, Vec<u8>), Error> {
        let place = Place { path: path.into(), what };
        let settled = settled(|| place.load(), || thread::sleep(SETTLE))?;
        let content = settled.ok_or_else(|| place.changing())?;
        Ok((Self { place, settled: content.clone(), late: None }, content))
    }

    pub(crate) const fn place(&self) -> &Place {
        &self.place
    }

    /// The name of the file in errors and logs.
    pub(crate) fn name(&self) -> String {
        self.place.path.display().to_string()
    }

    /// The content that two reads agree on.
    pub(crate) async fn read(&mut self) -> Result<Vec<u8>, Error> {
        let mut content = self.load().await?;
        for _ in 0..ATTEMPTS {
            if content == self.settled {
                return Ok(content);
            }
            self.settled.clone_from(&content);
            sleep(SETTLE).await;
            content = self.load().await?;
        }
        Err(self.place.changing())
    }

    async fn load(&mut self) -> Result<Vec<u8>, Error> {
        let place = self.place.clone();
        self.finish(move || place.load(), PATIENCE).await
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
            let what = self.place.what;
            let problem =
                format!(": the file of {what} was not read within {patience:?}: check its file system");
            return Err(self.place.invalid(problem));
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
        let place = Place { path: Path::new("limits.toml").into(), what: "policies" };
        let mut file = TextFile { place, settled: Vec::new(), late: None };
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
