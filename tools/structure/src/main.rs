//! Checks the structure of the published crates:
//!
//! * no import cycle between files,
//! * the table in docs/architecture.md lists the foreign crates whose types are public,
//!
//! and of the core in `src/`:
//!
//! * no file imports a layer above its own,
//! * a foreign crate is named only where it belongs,
//! * no type has `impl` blocks in more than two files.
//!
//! ```text
//! cargo run -p structure            # prints what is wrong, and fails
//! cargo run -p structure -- --graph # prints every import as `file -> file: names`
//! cargo run -p structure -- lines   # prints the size of each published crate as a table
//! ```
//!
//! A file imports another if it names an item that the other defines. Re-exports are followed:
//! `crate::key::Header` is an import of `key/header.rs`, not of `key/mod.rs`, and a `mod.rs` does not import
//! what it re-exports. Unit tests do not count.
//!
//! The table counts lines of code without comments, documentation, blank lines and unit tests. A room is a
//! folder or file directly in `src/`; the floors are the layers that the rooms need for every import to go
//! down, with `lib.rs` on top.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that talks to a person")]

mod impls;
mod imports;
mod layers;
mod lines;
mod modules;
mod public;
mod rooms;
mod sizes;

use std::{env, error::Error, fs, path::Path, process::ExitCode};

use modules::Crate;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if env::args().any(|argument| argument == "lines") {
        print!("{}", sizes::table(&root)?);
        return Ok(ExitCode::SUCCESS);
    }
    let source = Crate::read(&root.join("src"))?;
    let graph = imports::graph(&source);
    if env::args().any(|argument| argument == "--graph") {
        for ((from, to), names) in &graph.imports {
            println!("{from} -> {to}: {}", names.iter().cloned().collect::<Vec<_>>().join(", "));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut problems = graph.cycles();
    problems.extend(layers::check(&graph));
    problems.extend(layers::foreign(&source));
    problems.extend(impls::check(&source));
    let table = fs::read_to_string(root.join("docs/architecture.md"))?;
    for (i, (name, folder)) in sizes::published(&root)?.into_iter().enumerate() {
        let source = Crate::read(&folder)?;
        let manifest = fs::read_to_string(folder.with_file_name("Cargo.toml"))?;
        problems.extend(public::check(&name, &source, &manifest, &table));
        if i > 0 {
            let cycles = imports::graph(&source).cycles();
            problems.extend(cycles.into_iter().map(|cycle| format!("{name}: {cycle}")));
        }
    }
    for problem in &problems {
        eprintln!("{problem}");
    }
    if problems.is_empty() {
        println!("structure: {} files, {} imports, no cycle", source.files.len(), graph.imports.len());
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate of `files` in a separate folder.
    fn crate_of(name: &str, files: &[(&str, &str)]) -> Crate {
        let root = env::temp_dir().join(format!("structure-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let source = Crate::read(&root).unwrap();
        fs::remove_dir_all(root).unwrap();
        source
    }

    #[test]
    fn a_room_stands_above_the_rooms_it_imports_from() {
        let source = crate_of(
            "rooms",
            &[
                ("lib.rs", "mod error; mod key; mod quota; mod policy;"),
                ("error.rs", "pub struct Error;"),
                ("key/mod.rs", "mod header; pub use self::header::Header;"),
                ("key/header.rs", "use crate::error::Error; pub struct Header(Error);"),
                // Not a cycle between files, but one between rooms.
                ("quota/mod.rs", "pub mod a; pub mod b;"),
                ("quota/a.rs", "pub struct A(crate::policy::Policy);"),
                ("quota/b.rs", "pub struct B(crate::key::Header);"),
                ("policy.rs", "pub struct Policy(crate::quota::b::B);"),
            ],
        );
        let graph = imports::graph(&source);
        assert!(graph.cycles().is_empty());
        let floors: Vec<_> = rooms::floors(&source, &graph).into_iter().collect();
        assert_eq!(floors, [("error.rs", 1), ("key", 2), ("lib.rs", 4), ("policy.rs", 3), ("quota", 3)]);
    }

    #[test]
    fn the_table_has_a_row_for_each_published_crate() {
        let root = env::temp_dir().join(format!("structure-{}-sizes", std::process::id()));
        let files = [
            ("Cargo.toml", "[package]\nname = \"core\"\n"),
            ("src/lib.rs", "mod a;\n\nfn f() {}\n"),
            ("src/a/mod.rs", "//! A\n"),
            ("src/a/b.rs", "fn f() {\n\n    g();\n}\n"),
            ("extra/Cargo.toml", "[package]\nname = \"extra\"\n"),
            ("extra/src/lib.rs", "fn f() {}\n"),
            ("tests/Cargo.toml", "[package]\nname = \"tests\"\npublish = false\n"),
            ("tests/src/lib.rs", "fn f() {}\n"),
        ];
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let table = sizes::table(&root).unwrap();
        fs::remove_dir_all(root).unwrap();
        let rows: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| core | 3 | 5 | 2 | 2 | a: 3 | a/b.rs: 3 |",
                "| extra | 1 | 1 | 1 | 1 | lib.rs: 1 | lib.rs: 1 |"
            ]
        );
    }

    #[test]
    fn a_foreign_crate_that_a_public_item_names_must_be_in_the_table() {
        let table = "| crate | `core` | `other` |\n|---|---|---|\n| `http-body` 1 | bodies | |\n| `bytes` 1 | | bodies |\n";
        let manifest = "[dependencies]\nhttp-body = \"1\"\nbytes.workspace = true\n\n[dev-dependencies]\ntower = \"1\"\n";
        let rows = [
            ("a function", "pub fn f(_: &[bytes::Bytes]) {}", true),
            ("an import", "use bytes::Bytes; pub fn f() -> impl Iterator<Item = Bytes> {}", true),
            ("an import of the crate", "use bytes as b; pub const N: Option<b::Bytes> = None;", true),
            ("an import of another module", "use crate::all::Bytes; pub enum E { A(Bytes) }", true),
            ("a re-export", "pub use bytes;", true),
            ("a field", "pub struct S { pub b: bytes::Bytes }", true),
            ("a bound", "pub trait T: bytes::Buf {}", true),
            ("a method", "pub struct S; impl S { pub fn f(&self, _: bytes::Bytes) {} }", true),
            ("an associated type", "pub struct S; impl Iterator for S { type Item = bytes::Bytes; }", true),
            ("a trait that is implemented", "pub struct S; impl bytes::Buf for S {}", true),
            ("a trait that is derived", "use bytes::Buf; #[derive(Buf)] pub struct S;", true),
            ("an item in a macro", "pin_project! { pub struct S { pub b: bytes::Bytes } }", true),
            (
                "an implementation in a macro",
                "macro_rules! m { ($t:ty) => { impl bytes::Buf for $t {} } }",
                true,
            ),
            ("a body", "pub fn f() { bytes::f(); }", false),
            ("a private field", "pub struct S(bytes::Bytes);", false),
            ("a private item", "pub(crate) fn f(_: bytes::Bytes) {}", false),
            ("a private method", "pub struct S; impl S { fn f(&self, _: bytes::Bytes) {} }", false),
            ("a private type", "struct S; impl bytes::Buf for S {}", false),
            ("a private trait", "trait T {} impl T for bytes::Bytes {}", false),
            ("a hidden item", "#[doc(hidden)] pub fn f(_: bytes::Bytes) {}", false),
            ("a unit test", "#[cfg(test)] mod tests { pub fn f(_: bytes::Bytes) {} }", false),
        ];
        for (name, code, is_found) in rows {
            let all = "pub(crate) use bytes::Bytes; pub fn f(_: http_body::Frame) {}";
            let source = crate_of("public", &[("all.rs", all), ("lib.rs", &format!("mod all; {code}"))]);
            let problems = public::check("core", &source, manifest, table);
            let expected = "core: lib.rs:1 is public and names the crate bytes";
            assert_eq!(problems.len(), usize::from(is_found), "{name}: {problems:?}");
            assert!(problems.iter().all(|problem| problem.starts_with(expected)), "{name}: {problems:?}");
        }
        let source = crate_of("public", &[("lib.rs", "pub fn f() {}")]);
        let expected = "core: docs/architecture.md lists the crate http_body, and no public item names it";
        assert_eq!(public::check("core", &source, manifest, table), [expected]);
    }

    #[test]
    fn a_cycle_through_a_reexport_is_found() {
        let source = crate_of(
            "cycle",
            &[
                ("lib.rs", "mod key; mod error;"),
                ("error.rs", "pub struct Error;"),
                ("key/mod.rs", "mod a; mod b; pub use self::{a::A, b::B};"),
                ("key/a.rs", "use super::B; use crate::error::Error; pub struct A(B, Error);"),
                ("key/b.rs", "pub struct B; impl B { fn a() -> Option<crate::key::A> { None } }"),
            ],
        );
        let cycles = imports::graph(&source).cycles();
        assert_eq!(cycles.len(), 1, "{cycles:?}");
        assert!(
            cycles[0].contains("key/a.rs -> key/b.rs: B") && cycles[0].contains("key/b.rs -> key/a.rs: A")
        );
    }

    #[test]
    fn an_import_of_a_layer_above_is_found_and_one_in_a_unit_test_is_not() {
        let files = |low: &'static str| {
            [("lib.rs", "mod key; mod layer;"), ("layer/mod.rs", "pub struct Layer;"), ("key/mod.rs", low)]
        };
        let rows = [
            ("a use", "use crate::layer::Layer;", 1),
            ("a path", "fn layer(_: crate::layer::Layer) {}", 1),
            ("a unit test", "#[cfg(test)] mod tests { use crate::layer::Layer; }", 0),
        ];
        for (i, (name, low, problems)) in rows.into_iter().enumerate() {
            let source = crate_of(&format!("layers-{i}"), &files(low));
            let found = layers::check(&imports::graph(&source));
            assert_eq!(found.len(), problems, "{name}: {found:?}");
        }
    }

    #[test]
    fn a_foreign_crate_outside_its_folders_is_found() {
        let source = crate_of(
            "foreign",
            &[
                ("lib.rs", "mod key; mod limiter;"),
                ("key/mod.rs", "use http::Uri;"),
                ("limiter/mod.rs", "fn f(_: http::Uri) {}"),
            ],
        );
        let found = layers::foreign(&source);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("limiter/mod.rs:1 names the crate http"), "{found:?}");
    }

    #[test]
    fn a_type_with_impl_blocks_in_three_files_is_found() {
        let rows = [
            ("inherent", "impl crate::quota::Quota {}", 1),
            ("of a foreign trait", "use crate::quota::Quota; impl Clone for Quota {}", 1),
            (
                "in an inner module",
                "use crate::quota::Quota; mod a { use super::Quota; impl Clone for Quota {} }",
                1,
            ),
            ("a trait of the file", "use crate::quota::Quota; trait Has {} impl Has for &Quota {}", 0),
            ("another type of that name", "struct Quota; impl Quota {}", 0),
            ("a unit test", "#[cfg(test)] mod tests { use crate::quota::Quota; impl Quota {} }", 0),
        ];
        for (i, (name, third, problems)) in rows.into_iter().enumerate() {
            let files = [
                ("lib.rs", "mod quota; mod second; mod third;"),
                ("quota.rs", "pub struct Quota; impl Quota {}"),
                ("second.rs", "use crate::quota::Quota; impl Drop for Quota {}"),
                ("third.rs", third),
            ];
            let found = impls::check(&crate_of(&format!("impls-{i}"), &files));
            assert_eq!(found.len(), problems, "{name}: {found:?}");
        }
    }
}
