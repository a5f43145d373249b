//! Reads lines, of files that may be compressed, in bounded memory.

use std::{
    borrow::Cow,
    collections::VecDeque,
    error::Error,
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal as _, Read},
    path::Path,
};

use flate2::bufread::MultiGzDecoder;
use indicatif::{ProgressBar, ProgressStyle};

/// A longer line is cut, and so it is malformed.
const MAX_LINE: u64 = 1 << 20;
/// The lines from which the format is detected.
const SAMPLE: usize = 64;
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The lines of the input.
pub(crate) struct Input {
    reader: Box<dyn BufRead>,
    /// Lines that were read to detect the format.
    ahead: VecDeque<String>,
    line: Vec<u8>,
    /// The number of the last line.
    number: u64,
    pub(crate) progress: ProgressBar,
}

impl Input {
    /// Opens the file, or stdin.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, Box<dyn Error>> {
        let Some(path) = path else { return Ok(Self::new(io::stdin(), ProgressBar::hidden())?) };
        let in_file = |error: io::Error| format!("cannot read {}: {error}", path.display());
        let file = File::open(path).map_err(in_file)?;
        let size = file.metadata().map_err(in_file)?.len();
        let progress = if io::stderr().is_terminal() && size > 1 << 20 {
            let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {eta} left")?;
            ProgressBar::new(size).with_style(style)
        } else {
            ProgressBar::hidden()
        };
        Ok(Self::new(progress.wrap_read(file), progress).map_err(in_file)?)
    }

    fn new(source: impl Read + 'static, progress: ProgressBar) -> io::Result<Self> {
        let mut reader = BufReader::with_capacity(1 << 16, source);
        let reader: Box<dyn BufRead> = if reader.fill_buf()?.starts_with(&GZIP) {
            Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(reader)))
        } else {
            Box::new(reader)
        };
        Ok(Self { reader, ahead: VecDeque::new(), line: Vec::new(), number: 0, progress })
    }

    /// The first lines, which are read again afterwards.
    pub(crate) fn sample(&mut self) -> io::Result<Vec<String>> {
        while self.ahead.len() < SAMPLE && self.read()? {
            self.ahead.push_back(String::from_utf8_lossy(&self.line).into_owned());
        }
        Ok(self.ahead.iter().cloned().collect())
    }

    /// The next line and its number.
    pub(crate) fn next(&mut self) -> io::Result<Option<(u64, Cow<'_, str>)>> {
        if let Some(line) = self.ahead.pop_front() {
            self.number += 1;
            return Ok(Some((self.number, Cow::Owned(line))));
        }
        if !self.read()? {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some((self.number, String::from_utf8_lossy(&self.line))))
    }

    /// Reads a line without its end. `false` at the end of the input.
    fn read(&mut self) -> io::Result<bool> {
        self.line.clear();
        if (&mut self.reader).take(MAX_LINE).read_until(b'\n', &mut self.line)? == 0 {
            return Ok(false);
        }
        if !self.line.ends_with(b"\n") && self.line.len() as u64 == MAX_LINE {
            self.reader.skip_until(b'\n')?;
        }
        self.line.truncate(self.line.trim_ascii_end().len());
        Ok(true)
    }
}
