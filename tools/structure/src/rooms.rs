//! The rooms of a crate, its top-level modules, and the floors that they stand on.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::{algo::tarjan_scc, graphmap::DiGraphMap};

use crate::{imports::Graph, modules::Crate};

/// The room at the top: it declares all others, so it stands above them.
const ROOT: &str = "lib.rs";

/// The room of the file at `path`: its folder or file directly below `src/`.
pub(crate) fn room(path: &str) -> &str {
    path.split('/').next().unwrap_or(path)
}

/// The floor of each room, from 1, such that a room imports only from floors below. Rooms that import each
/// other share a floor.
pub(crate) fn floors<'a>(source: &'a Crate, graph: &'a Graph) -> BTreeMap<&'a str, usize> {
    let rooms: BTreeSet<&str> = source.files.iter().map(|file| room(&file.path)).collect();
    let mut imports = DiGraphMap::<&str, ()>::new();
    for &name in &rooms {
        imports.add_node(name);
        if rooms.contains(ROOT) {
            imports.add_edge(ROOT, name, ());
        }
    }
    for (from, to) in graph.imports.keys() {
        imports.add_edge(room(from), room(to), ());
    }
    let mut floors = BTreeMap::new();
    // A group comes after those that it imports from.
    for group in tarjan_scc(&imports) {
        let below = group.iter().flat_map(|name| imports.neighbors(name)).filter_map(|name| floors.get(name));
        let floor = 1 + below.max().copied().unwrap_or(0);
        floors.extend(group.into_iter().map(|name| (name, floor)));
    }
    floors
}
