//! Prices from a TOML or a JSON file.

use std::{path::PathBuf, sync::Arc};

use tokio::task::{JoinHandle, spawn_blocking};
use tower_ratelimit::Error;

use super::prices::Prices;
use crate::live::{Entry, Origin, Place, TextFile, line_of};

/// A file of prices.
pub(super) struct PriceFile {
    file: TextFile,
    format: Format,
}

/// How the file is written, by the end of its name.
#[derive(Clone, Copy)]
enum Format {
    Toml,
    Json,
}

impl PriceFile {
    /// Reads the file at `path` for the first time. Blocks.
    pub(super) fn open(path: PathBuf) -> Result<(Self, Vec<u8>), Error> {
        let is_json = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("json"));
        let (file, content) = TextFile::open(path, "prices")?;
        Ok((Self { file, format: if is_json { Format::Json } else { Format::Toml } }, content))
    }

    /// The name of the file in errors and logs.
    pub(super) fn name(&self) -> String {
        self.file.name()
    }

    /// Reads the prices that `content` has.
    pub(super) fn parse(&self, content: &[u8]) -> Result<Prices, Error> {
        self.format.parse(self.file.place(), content)
    }
}

impl Origin for PriceFile {
    type Content = Vec<u8>;
    type Update = Prices;

    async fn read(&mut self) -> Result<Vec<u8>, Error> {
        self.file.read().await
    }

    fn parse(&self, content: Arc<Vec<u8>>) -> JoinHandle<Result<Prices, Error>> {
        let (format, place) = (self.format, self.file.place().clone());
        spawn_blocking(move || format.parse(&place, &content))
    }
}

impl Format {
    fn parse(self, file: &Place, content: &[u8]) -> Result<Prices, Error> {
        let text = file.text(content)?;
        match self {
            Self::Toml => {
                let table = toml::Deserializer::parse(text).map_err(|error| no_toml(file, text, &error))?;
                serde_path_to_error::deserialize(table).map_err(|error| {
                    let (entry, error) = (Entry::of(error.path()), error.inner());
                    let line = line_of(text, error.span());
                    file.invalid(format_args!("{line}: {entry}{}", error.message().trim_end()))
                })
            }
            Self::Json => {
                let mut table = serde_json::Deserializer::from_str(text);
                let prices = serde_path_to_error::deserialize(&mut table).map_err(|error| {
                    let (entry, error) = (Entry::of(error.path()), error.inner());
                    file.invalid(format_args!(": {entry}{error}"))
                })?;
                table.end().map_err(|error| file.invalid(format_args!(": {error}")))?;
                Ok(prices)
            }
        }
    }
}

/// The error of a text that is not TOML.
fn no_toml(file: &Place, text: &str, error: &toml::de::Error) -> Error {
    let line = line_of(text, Some(error.span().unwrap_or_default()));
    file.invalid(format_args!("{line}: no valid TOML: {}", error.message().trim_end()))
}
