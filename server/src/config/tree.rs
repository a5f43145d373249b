//! [`Config`]: finds the limit of a descriptor.

use std::{collections::HashMap, sync::Arc};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tower_ratelimit::{Key, Policy};

use super::limit::{Counters, Kind, Limit};

/// What the files say.
#[derive(Debug, Default)]
pub(crate) struct Config {
    pub(super) domains: HashMap<String, Level>,
    /// In the order of the files.
    pub(super) limits: Vec<Arc<Limit>>,
    /// What is probably a mistake.
    pub(super) notes: Vec<String>,
}

/// Descriptors beside each other, by their key and value as one text: envoyproxy/ratelimit matches them so.
#[derive(Debug, Default)]
pub(super) struct Level {
    pub(super) nodes: HashMap<String, Node>,
    /// The ones that end with `*`, without it, in the order of the files.
    pub(super) wildcards: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) limit: Option<Arc<Limit>>,
    pub(super) level: Level,
    /// Each value that matches has counts of its own.
    pub(super) is_open: bool,
    /// Metrics have the value.
    pub(super) shows_value: bool,
}

/// The limit of a descriptor.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    pub(crate) limit: &'a Arc<Limit>,
    /// The values that the configuration leaves open.
    pub(crate) open: Vec<&'a str>,
    /// The descriptor in metrics, if it is not the limit's path.
    detailed: Option<String>,
}

impl Level {
    fn find(&self, entry: &Entry) -> Option<(&str, &Node)> {
        let text = format!("{}_{}", entry.key, entry.value);
        let matching = self.nodes.get_key_value(text.as_str()).or_else(|| {
            let wildcard = self.wildcards.iter().find(|start| text.starts_with(start.as_str()))?;
            self.nodes.get_key_value(format!("{wildcard}*").as_str())
        });
        let matching = matching.or_else(|| self.nodes.get_key_value(&entry.key));
        matching.map(|(name, node)| (name.as_str(), node))
    }
}

impl Config {
    /// The limit of a descriptor with `entries`: the one of its last entry, if each entry matches a level.
    pub(crate) fn find<'a>(&'a self, domain: &str, entries: &'a [Entry]) -> Option<Found<'a>> {
        let mut level = self.domains.get(domain)?;
        let (mut open, mut path, mut shows_value) = (Vec::new(), Vec::with_capacity(entries.len()), false);
        let (last, above) = entries.split_last()?;
        for entry in above {
            let (name, node) = level.find(entry)?;
            path.push((name, node, entry));
            level = &node.level;
        }
        let (name, node) = level.find(last)?;
        path.push((name, node, last));
        let limit = node.limit.as_ref()?;
        for (_, node, entry) in &path {
            shows_value |= node.shows_value;
            if node.is_open {
                open.push(entry.value.as_str());
            }
        }
        let detailed = (limit.is_detailed || shows_value).then(|| {
            let mut text = domain.to_owned();
            for (name, node, entry) in &path {
                match limit.is_detailed && node.is_open || node.shows_value {
                    true => text.push_str(&format!(".{}_{}", entry.key, entry.value)),
                    false => text.push_str(&format!(".{name}")),
                }
            }
            text
        });
        Some(Found { limit, open, detailed })
    }

    pub(crate) fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    pub(crate) fn limits(&self) -> &[Arc<Limit>] {
        &self.limits
    }

    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The policies of all limits. Limits may share one.
    pub(crate) fn policies(&self) -> Vec<Policy> {
        let mut policies: Vec<Policy> = Vec::new();
        for limit in &self.limits {
            if let Kind::Counted(policy) = &limit.kind
                && !policies.iter().any(|known| known.name() == policy.name())
            {
                policies.push(policy.clone());
            }
        }
        policies
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

    pub(crate) fn counters(&self) -> Counters {
        self.detailed.as_ref().map_or_else(|| self.limit.counters.clone(), |path| Counters::of(path))
    }
}
