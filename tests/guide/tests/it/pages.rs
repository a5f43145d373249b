//! The pages themselves.

use std::{
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn guides() -> Vec<(String, String)> {
    let files = fs::read_dir(root().join("src/guide")).unwrap().map(|entry| entry.unwrap().path());
    let pages = files.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages
        .map(|path| {
            (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap())
        })
        .collect()
}

fn sources(directory: &Path) -> String {
    let mut all = String::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.push_str(&sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
    all
}

#[test]
fn each_guide_is_published_and_its_programs_run() {
    let published = fs::read_to_string(root().join("src/guide/mod.rs")).unwrap();
    for (name, _) in guides() {
        assert!(published.contains(&format!("pub mod {name} {{}}")), "{name} is not in src/guide/mod.rs");
        assert!(
            published.contains(&format!("//! | [`{name}`] |")),
            "{name} is not in the table of src/guide/mod.rs"
        );
        assert!(tests_guide::NAMES.contains(&&*name), "{name} is not in tests/guide/src/lib.rs");
    }
}

#[test]
fn guides_link_only_to_guides_that_exist() {
    let guides = guides();
    for (name, text) in &guides {
        for link in text.split("](crate::guide::").skip(1) {
            let target: String = link.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            assert!(guides.iter().any(|(other, _)| *other == target), "{name} links to {target}");
        }
    }
}

#[test]
fn links_lead_to_a_heading_that_exists() {
    let guides = guides();
    for (name, text) in &guides {
        let own = text.split("](#").skip(1).map(|link| (name.clone(), link));
        let others = text.split("](crate::guide::").skip(1).filter_map(|link| {
            let (page, rest) = link.split_once(['#', ')'])?;
            link[page.len()..].starts_with('#').then(|| (page.to_owned(), rest))
        });
        for (page, link) in own.chain(others) {
            let anchor = link.split(')').next().unwrap();
            let (_, target) = guides.iter().find(|(other, _)| *other == page).unwrap();
            let headings = target.lines().filter(|line| line.starts_with('#')).map(anchor_of);
            assert!(headings.into_iter().any(|heading| heading == anchor), "{name} links to {page}#{anchor}");
        }
    }
}

/// The anchor that rustdoc gives a heading.
fn anchor_of(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    });
    kept.collect()
}

/// The lines of the log in the guide to troubleshooting are those in the code.
#[test]
fn log_lines_are_quoted_as_the_code_has_them() {
    let (_, page) = guides().into_iter().find(|(name, _)| name == "troubleshooting").unwrap();
    let code = ["src", "operate/src", "gateway/src", "extra/src"]
        .map(|folder| sources(&root().join(folder)))
        .concat();
    // A string that goes on in the next line.
    let code: String = code.split("\\\n").map(|line| line.trim_start()).collect();
    let table = page.split("## By log line").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut rows = 0;
    for row in table
        .lines()
        .filter(|row| row.starts_with("| info") || row.starts_with("| warn") || row.starts_with("| error"))
    {
        let line = row.split('`').nth(1).unwrap();
        assert!(code.contains(line), "no code logs {line:?}");
        rows += 1;
    }
    assert!(rows >= 15);
}

/// Each bound on what a hostile request may cost names what checks it.
#[test]
fn the_bounds_of_hostile_requests_name_tests_that_exist() {
    let page = fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let table = page.split("## What a hostile request may cost").nth(1).unwrap();
    let table = table.split("\n## ").next().unwrap();
    let code: String = ["tests", "src", "benches"].map(|folder| sources(&root().join(folder))).concat();
    let rows: Vec<_> = table.lines().filter(|row| row.starts_with("| ") && row.contains('`')).collect();
    for row in &rows {
        let checks = row.trim_end_matches('|').rsplit('|').next().unwrap();
        let names: Vec<_> = checks.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{row}");
        for name in names {
            assert!(code.contains(&format!("fn {name}(")), "there is no test {name}");
        }
    }
    assert!(rows.len() >= 10);
}
