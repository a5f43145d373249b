//! Who may import whom, and which foreign crates belong where.

use syn::visit::{self, Visit};

use crate::{
    imports::Graph,
    modules::{Crate, is_test},
};

/// From the ground up. A file may import from its own row and the rows below it (which stand above it here).
/// The longest prefix of a file's path counts.
const ROWS: &[&[&str]] = &[
    &["base/"],
    &["metrics/"],
    &["algorithm/"],
    &["key/"],
    &["policy/"],
    &["decision/"],
    &[
        "store/action.rs",
        "store/clock.rs",
        "store/identity.rs",
        "store/list.rs",
        "store/outage/counts.rs",
        "store/reported.rs",
        "store/store.rs",
        "store/watchers.rs",
    ],
    &[
        "store/memory/",
        "store/outage/",
        "store/redis/codes.rs",
        "store/redis/connect/address.rs",
        "store/redis/connect/stream.rs",
        "store/redis/connect/tls.rs",
        "store/redis/connect/tls_stream.rs",
        "store/redis/error.rs",
        "store/redis/safe_text.rs",
        "store/redis/script.rs",
    ],
    &["store/redis/deny_cache.rs"],
    &["store/redis/job/"],
    &["store/redis/wire/"],
    &["store/redis/credentials/"],
    &["store/redis/transport/"],
    &["store/redis/lease/"],
    &["store/redis/", "store/mod.rs"],
    &["limiter/"],
    &["response/"],
    &["keyed/", "layer/"],
    &["lib.rs"],
];

/// Foreign crates, and the files that may name them.
const FOREIGN: &[(&[&str], &[&str])] = &[
    (&["redis", "bb8", "bb8_redis", "rustls"], &["store/redis/", "lib.rs"]),
    (&["tower", "tower_layer", "tower_service"], &["layer/", "keyed/"]),
    (&["http", "http_body", "http_body_util"], &["key/", "policy/source.rs", "response/", "layer/"]),
    (&["metrics"], &["metrics/"]),
    (&["matchit"], &["layer/"]),
    (&["axum"], &["key/", "response/", "layer/"]),
    (&["tonic", "tonic_types"], &["key/", "response/", "layer/"]),
];

fn row(path: &str) -> Option<usize> {
    let fits = |prefix: &&str| path.starts_with(*prefix);
    let rows = ROWS.iter().enumerate().filter_map(|(row, prefixes)| {
        prefixes
            .iter()
            .filter(|prefix| fits(prefix))
            .map(|prefix| prefix.len())
            .max()
            .map(|length| (length, row))
    });
    rows.max().map(|(_, row)| row)
}

/// The imports that go up, each in a sentence.
pub(crate) fn check(graph: &Graph) -> Vec<String> {
    let mut problems = Vec::new();
    for ((from, to), names) in &graph.imports {
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        match (row(from), row(to)) {
            (None, _) => problems.push(format!("{from} is in no row of tools/structure/src/layers.rs")),
            (Some(low), Some(high)) if high > low => {
                problems.push(format!(
                    "{from} imports {} of {to}, which is in a layer above it",
                    names.join(", ")
                ));
            }
            _ => {}
        }
    }
    problems.dedup();
    problems
}

/// The places where a foreign crate is named that does not belong there.
pub(crate) fn foreign(source: &Crate) -> Vec<String> {
    let mut problems = Vec::new();
    for file in &source.files {
        for (names, homes) in FOREIGN {
            if homes.iter().any(|home| file.path.starts_with(home)) {
                continue;
            }
            let mut named = Named { names, found: None };
            named.visit_file(&file.syntax);
            if let Some((name, line)) = named.found {
                problems
                    .push(format!("{}:{line} names the crate {name}, which belongs to {homes:?}", file.path));
            }
        }
    }
    problems
}

struct Named<'a> {
    names: &'a [&'a str],
    found: Option<(String, usize)>,
}

impl Named<'_> {
    fn note(&mut self, ident: &proc_macro2::Ident) {
        let name = ident.to_string();
        if self.names.contains(&name.as_str()) {
            self.found.get_or_insert_with(|| (name, ident.span().start().line));
        }
    }
}

impl<'a> Visit<'a> for Named<'_> {
    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_use_path(&mut self, path: &'a syn::UsePath) {
        // Only the first name of a `use` can be a crate's.
        self.note(&path.ident);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.segments.len() > 1
            && let Some(first) = path.segments.first()
        {
            self.note(&first.ident);
        }
        visit::visit_path(self, path);
    }
}
