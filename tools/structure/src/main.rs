//! Checks the structure of the crate in `src/`:
//!
//! * no import cycle between files,
//! * no file imports a layer above its own,
//! * a foreign crate is named only where it belongs.
//!
//! ```text
//! cargo run -p structure            # prints what is wrong, and fails
//! cargo run -p structure -- --graph # prints every import as `file -> file: names`
//! ```
//!
//! A file imports another if it names an item that the other defines. Re-exports are followed: `crate::key::Header` is
//! an import of `key/header.rs`, not of `key/mod.rs`, and a `mod.rs` does not import what it re-exports. Unit tests do
//! not count.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that talks to a person")]

mod imports;
mod layers;
mod modules;

use std::{env, error::Error, path::Path, process::ExitCode};

use modules::Crate;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src");
    let source = Crate::read(&root)?;
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
    for problem in &problems {
        eprintln!("{problem}");
    }
    if problems.is_empty() {
        println!("structure: {} files, {} imports, no cycle", source.files.len(), graph.imports.len());
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}
