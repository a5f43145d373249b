//! The table of `tests/README.md` is complete, and what it names exists.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

const FEATURES: usize = 9;
const PAIRS: usize = 20;
const MEETINGS: usize = 13;

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// The text of the files of each module and table. `sim` is all of the simulation.
fn sources(folder: &Path, texts: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, texts);
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "txt") {
            let name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
            let in_simulation = path.parent() == Some(&*tests().join("sim"));
            let module = if in_simulation {
                "sim".to_owned()
            } else if name(&path) == "mod" {
                name(folder)
            } else {
                name(&path)
            };
            texts.entry(module).or_default().push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

/// The names in backticks, as module and name.
fn named(text: &str) -> Vec<(&str, &str)> {
    text.split('`').skip(1).step_by(2).filter_map(|name| name.split_once("::")).collect()
}

#[test]
fn every_cell_names_a_test_that_exists_or_a_reason() {
    let mut texts = BTreeMap::new();
    sources(&tests(), &mut texts);
    let table = fs::read_to_string(tests().join("README.md")).unwrap();
    let mut parts = table.split("\n## ");
    let _introduction = parts.next();
    let mut meetings = 0;
    for part in parts {
        let (meeting, rows) = part.split_once('\n').unwrap();
        let rows = rows.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
        let rows: Vec<_> = rows.filter_map(|row| row.split_once(" | ")).collect();
        let expected = if meeting == "Pairs of features" { PAIRS } else { FEATURES };
        assert_eq!(rows.len(), expected, "{meeting}");
        for (feature, cell) in rows {
            assert!(!cell.trim().is_empty(), "{meeting}, {feature}");
            for (module, name) in named(cell) {
                let sought = if module == "sim" { format!("Event::{name}") } else { format!("fn {name}(") };
                let is_row = |line: &str| line.split(" | ").next().is_some_and(|cell| cell.trim() == name);
                let exists =
                    texts.get(module).is_some_and(|text| text.contains(&sought) || text.lines().any(is_row));
                assert!(exists, "{meeting}, {feature}: there is no {module}::{name}");
            }
        }
        meetings += 1;
    }
    assert_eq!(meetings, MEETINGS);
}
