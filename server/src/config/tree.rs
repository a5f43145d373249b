//! [`Config`]: finds the limit of a descriptor.

use std::{collections::HashMap, sync::Arc};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tower_ratelimit::{Key, Policy};

use super::limit::{Hits, Limit};

/// What the files say.
#[derive(Debug, Default)]
pub(crate) struct Config {
    pub(crate) domains: HashMap<String, Level>,
    /// In the order of the files.
    pub(crate) limits: Vec<Arc<Limit>>,
    /// The policies of all limits, each name once.
    pub(crate) policies: Vec<Policy>,
    /// What is probably a mistake.
    pub(crate) warnings: Vec<String>,
}

/// Descriptors beside each other, by their key and value as one text: envoyproxy/ratelimit matches them so.
#[derive(Debug, Default)]
pub(crate) struct Level {
    pub(super) nodes: HashMap<String, Node>,
    /// The ones that end with `*`, in the order of the files.
    pub(super) wildcards: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) limit: Option<Arc<Limit>>,
    pub(super) level: Level,
    /// Each value that matches has separate counts.
    pub(super) is_open: bool,
    /// Metrics have the value.
    pub(super) shows_value: bool,
}

/// The limit of a descriptor.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    pub(crate) limit: &'a Arc<Limit>,
    /// The values that the configuration leaves open.
    open: Vec<&'a str>,
    /// The descriptor in metrics, if it is not the limit's path.
    detailed: Option<String>,
}

impl Level {
    fn find(&self, entry: &Entry) -> Option<(&String, &Node)> {
        let text = format!("{}_{}", entry.key, entry.value);
        let is_start =
            |wildcard: &&String| wildcard.strip_suffix('*').is_some_and(|start| text.starts_with(start));
        let wildcard = || self.nodes.get_key_value(self.wildcards.iter().find(is_start)?);
        self.nodes.get_key_value(&text).or_else(wildcard).or_else(|| self.nodes.get_key_value(&entry.key))
    }
}

impl Config {
    /// The limit of a descriptor with `entries`: the one of its last entry, if each entry matches a level.
    pub(crate) fn find<'a>(&'a self, domain: &str, entries: &'a [Entry]) -> Option<Found<'a>> {
        let mut level = self.domains.get(domain)?;
        let (mut limit, mut open, mut path) = (None, Vec::new(), Vec::with_capacity(entries.len()));
        for entry in entries {
            let (name, node) = level.find(entry)?;
            path.push((name, node, entry));
            open.extend(node.is_open.then_some(entry.value.as_str()));
            (level, limit) = (&node.level, node.limit.as_ref());
        }
        let limit = limit?;
        let shows = |node: &Node| node.shows_value || limit.is_detailed && node.is_open;
        let detailed = path.iter().any(|(_, node, _)| shows(node)).then(|| {
            let step = |(name, node, entry): &(&String, &Node, &Entry)| match shows(node) {
                true => format!(".{}_{}", entry.key, entry.value),
                false => format!(".{name}"),
            };
            domain.to_owned() + &path.iter().map(step).collect::<String>()
        });
        Some(Found { limit, open, detailed })
    }
}

impl Found<'_> {
    /// Whose counts the limit has.
    pub(crate) fn key(&self) -> Key {
        match self.open[..] {
            [] => Key::new("all"),
            [value] => Key::new(value),
            _ => Key::join(&self.open.iter().map(|value| Key::new(*value)).collect::<Vec<_>>()),
        }
    }

    /// Separate metrics, if the configuration has asked for them.
    pub(crate) fn hits(&self) -> Option<Hits> {
        self.detailed.as_deref().map(Hits::of)
    }
}
