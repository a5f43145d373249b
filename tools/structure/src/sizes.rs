//! The sizes of the published crates.

use std::{
    collections::BTreeMap,
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use crate::{imports, lines, modules::Crate, rooms};

/// A Markdown table with a row for each published crate of the workspace in `root`.
pub(crate) fn table(root: &Path) -> Result<String, Box<dyn Error>> {
    let mut table = "| crate | files | lines of code | rooms | floors | largest room | largest file |\n\
                     |---|---|---|---|---|---|---|\n"
        .to_owned();
    for (name, source) in published(root)? {
        table.push_str(&row(&name, &Crate::read(&source)?)?);
    }
    Ok(table)
}

/// The names of the published crates, in `root` and in the folders directly in it, and where their source is.
pub(crate) fn published(root: &Path) -> Result<Vec<(String, PathBuf)>, Box<dyn Error>> {
    let mut folders = vec![root.to_owned()];
    for entry in fs::read_dir(root)? {
        folders.push(entry?.path());
    }
    folders[1..].sort();
    let mut crates = Vec::new();
    for folder in folders {
        let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else { continue };
        let name = manifest.lines().find_map(|line| line.strip_prefix("name = "));
        if let Some(name) = name
            && !manifest.lines().any(|line| line == "publish = false")
        {
            crates.push((name.trim_matches('"').to_owned(), folder.join("src")));
        }
    }
    Ok(crates)
}

fn row(name: &str, source: &Crate) -> Result<String, Box<dyn Error>> {
    let mut files = BTreeMap::new();
    let mut in_rooms: BTreeMap<_, usize> = BTreeMap::new();
    for file in &source.files {
        let lines = lines::of_code(&file.text)?;
        files.insert(file.path.as_str(), lines);
        *in_rooms.entry(rooms::room(&file.path)).or_default() += lines;
    }
    let graph = imports::graph(source);
    let floors = rooms::floors(source, &graph);
    Ok(format!(
        "| {name} | {} | {} | {} | {} | {} | {} |\n",
        files.len(),
        files.values().sum::<usize>(),
        floors.len(),
        floors.values().max().unwrap_or(&0),
        largest(&in_rooms),
        largest(&files),
    ))
}

fn largest(lines: &BTreeMap<&str, usize>) -> String {
    let largest = lines.iter().max_by_key(|(_, lines)| **lines);
    largest.map(|(name, lines)| format!("{name}: {lines}")).unwrap_or_default()
}
