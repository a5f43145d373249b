//! Which file imports which.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::{algo::tarjan_scc, graphmap::DiGraphMap};
use syn::{
    ItemMod, ItemUse, Visibility,
    visit::{self, Visit},
};

use crate::modules::{Crate, Names, Source, is_test, leaves};

pub(crate) struct Graph {
    /// From one file to another, with the names that the first takes from the second.
    pub(crate) imports: BTreeMap<(String, String), BTreeSet<String>>,
}

/// The imports between the files of `source`.
pub(crate) fn graph(source: &Crate) -> Graph {
    let mut imports: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    for (i, file) in source.files.iter().enumerate() {
        for path in paths(file) {
            let Some(target) = Crate::absolute(&file.module, &path).and_then(|path| source.resolve(&path))
            else {
                continue;
            };
            let to = &source.files[target.file];
            // A module's name alone, or `crate` in `pub(crate)`, is not an item of it.
            let is_item = !target.name.is_empty() && to.module.last() != Some(&target.name);
            if target.file != i && is_item {
                imports.entry((file.path.clone(), to.path.clone())).or_default().insert(target.name);
            }
        }
    }
    Graph { imports }
}

impl Graph {
    /// The cycles, each in a sentence.
    pub(crate) fn cycles(&self) -> Vec<String> {
        let mut graph = DiGraphMap::<&str, ()>::new();
        for (from, to) in self.imports.keys() {
            graph.add_edge(from, to, ());
        }
        let cycles = tarjan_scc(&graph).into_iter().filter(|files| files.len() > 1);
        cycles.map(|files| self.describe(&files)).collect()
    }

    fn describe(&self, files: &[&str]) -> String {
        let mut text = format!("cycle of {} files: move what ties them to a file below", files.len());
        for ((from, to), names) in &self.imports {
            if files.contains(&from.as_str()) && files.contains(&to.as_str()) {
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                text.push_str(&format!("\n    {from} -> {to}: {}", names.join(", ")));
            }
        }
        text
    }
}

/// Every path that `file` names outside its unit tests and its re-exports.
fn paths(file: &Source) -> Vec<Names> {
    let mut paths = Paths { found: Vec::new(), aliases: BTreeMap::new() };
    paths.visit_file(&file.syntax);
    paths.found
}

struct Paths {
    found: Vec<Names>,
    /// What the file's own `use` of a module stands for: `use super::wire` and then `wire::decode`.
    aliases: BTreeMap<String, Names>,
}

impl<'a> Visit<'a> for Paths {
    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        if !matches!(item.vis, Visibility::Inherited) {
            return;
        }
        leaves(&item.tree, &mut Vec::new(), &mut |path, name| {
            self.found.push(path.to_vec());
            self.aliases.insert(name.to_owned(), path.to_vec());
        });
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let names: Names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let [first, rest @ ..] = names.as_slice()
            && !rest.is_empty()
            && let Some(alias) = self.aliases.get(first)
        {
            self.found.push([alias.as_slice(), rest].concat());
        }
        self.found.push(names);
        visit::visit_path(self, path);
    }
}
