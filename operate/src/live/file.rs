//! Policies from a file in TOML, JSON or YAML.

use std::{
    collections::{BTreeMap, btree_map::Entry as Slot},
    path::PathBuf,
    sync::Arc,
};

use serde::{Deserialize, de::Unexpected};
use serde_path_to_error::{Path, Segment};
use tokio::task::{JoinHandle, spawn_blocking};
use tower_ratelimit::{Error, policy::Enforcement};

use super::{
    error_place::{Entry, without_name},
    follow::Origin,
    format::{Format, Problem},
    parsed::Parsed,
    text_file::{Place, TextFile},
};
use crate::config::{PolicyConfig, Table, TextOrTable};

/// A file of policies.
pub(super) struct PolicyFile(TextFile);

#[derive(Deserialize)]
#[serde(rename = "a file of policies", deny_unknown_fields)]
struct Tables {
    enforcement: Option<Enforcement>,
    policies: Option<Vec<PolicyConfig>>,
}

impl Table for Tables {
    const EXPECTED: &'static str = "a table with `policies`";

    fn of_text<E: serde::de::Error>(text: &str) -> Result<Self, E> {
        Err(E::invalid_type(Unexpected::Str(text), &Self::EXPECTED))
    }
}

impl PolicyFile {
    /// Reads the file at `path` for the first time. Blocks.
    pub(super) fn open(path: PathBuf) -> Result<(Self, Vec<u8>), Error> {
        let (file, content) = TextFile::open(path, "policies")?;
        Ok((Self(file), content))
    }

    /// The name of the file in errors and logs.
    pub(super) fn name(&self) -> String {
        self.0.name()
    }

    /// Reads the policies that `content` has.
    pub(super) fn parse(&self, content: &[u8]) -> Result<Parsed, Error> {
        parse(self.0.place(), content)
    }
}

/// The error of an entry, with its place.
fn explain(file: &Place, text: &str, format: Format, line: &str, path: &Path, message: &str) -> Error {
    let mut entry = Entry::of(path);
    let policy = match (entry.0.first(), entry.0.get(1)) {
        (Some(Segment::Map { key }), Some(Segment::Seq { index })) if key == "policies" => Some(*index),
        _ => None,
    };
    let Some(index) = policy else { return file.invalid(format_args!("{line}: {entry}{message}")) };
    entry.0.drain(..2);
    let Some(name) = name_of(text, format, index) else {
        let number = index + 1;
        return file.invalid(format_args!("{line}: policy {number} of the file: {entry}{message}"));
    };
    let message = without_name(message, &name);
    file.invalid(format_args!("{line}: policy `{name}`: {entry}{message}"))
}

impl Origin for PolicyFile {
    type Content = Vec<u8>;
    type Update = Parsed;

    async fn read(&mut self) -> Result<Vec<u8>, Error> {
        self.0.read().await
    }

    fn parse(&self, content: Arc<Vec<u8>>) -> JoinHandle<Result<Parsed, Error>> {
        let place = self.0.place().clone();
        spawn_blocking(move || parse(&place, &content))
    }
}

fn parse(file: &Place, content: &[u8]) -> Result<Parsed, Error> {
    let text = file.text(content)?;
    let format = Format::of(file)?;
    let read = format.read(text).map_err(|problem| match &problem {
        Problem::Entry { line, path, message } => explain(file, text, format, line, path, message),
        _ => problem.of(file, format),
    })?;
    let TextOrTable(Tables { enforcement, policies: read }) = read;
    // Probably a file that is not written yet, or an example in comments.
    if enforcement.is_none() && read.is_none() {
        return Err(file
            .invalid(format_args!(": the file has no entries: write {} for each policy", format.policy())));
    }
    let mut policies = BTreeMap::new();
    for PolicyConfig(policy) in read.unwrap_or_default() {
        match policies.entry(policy.name().to_owned()) {
            Slot::Vacant(slot) => drop(slot.insert(policy)),
            Slot::Occupied(slot) => {
                let name = slot.key();
                return Err(file.invalid(format_args!(
                    ": there are two policies `{name}`: give each its own name, or remove one"
                )));
            }
        }
    }
    Ok(Parsed { policies, position: enforcement.unwrap_or_default().into(), is_empty: false })
}

/// The name of a policy in a file with an error.
fn name_of(text: &str, format: Format, index: usize) -> Option<String> {
    let file: serde_json::Value = format.read(text).ok()?;
    let policy = file.get("policies")?.as_array()?.get(index)?;
    policy.get("name")?.as_str().map(ToOwned::to_owned)
}
