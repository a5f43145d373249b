//! Prices from a file.

use std::{path::PathBuf, sync::Arc};

use tokio::task::{JoinHandle, spawn_blocking};
use tower_ratelimit::Error;

use super::prices::Prices;
use crate::live::{Format, Origin, Place, TextFile};

/// A file of prices.
pub(super) struct PriceFile(TextFile);

impl PriceFile {
    /// Reads the file at `path` for the first time. Blocks.
    pub(super) fn open(path: PathBuf) -> Result<(Self, Vec<u8>), Error> {
        let (file, content) = TextFile::open(path, "prices")?;
        Ok((Self(file), content))
    }

    /// The name of the file in errors and logs.
    pub(super) fn name(&self) -> String {
        self.0.name()
    }

    /// Reads the prices that `content` has.
    pub(super) fn parse(&self, content: &[u8]) -> Result<Prices, Error> {
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
