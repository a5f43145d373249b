//! Programs of the workspace that tests run as users do.

use std::{collections::HashMap, path::PathBuf, process::Command, sync::Mutex};

/// The path of the program `name`: an example of the crate, or a program of another package. Builds it before its first
/// use, with the features and the profile of the tests, so that `cargo test --workspace` has compiled it already.
pub(crate) fn program(name: &str) -> PathBuf {
    static BUILT: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    // A test that failed to build one leaves the others usable.
    let mut built = BUILT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    built.get_or_insert_default().entry(name.to_owned()).or_insert_with(|| build(name)).clone()
}

fn build(name: &str) -> PathBuf {
    // Test binaries are in <target>/<profile>/deps.
    let tests = std::env::current_exe().unwrap();
    let profile = tests.ancestors().nth(2).unwrap();
    let is_example = name == "quickstart";
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--workspace", "--all-features"]);
    cargo.args([if is_example { "--example" } else { "--bin" }, name]);
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    profile.join(if is_example { "examples" } else { "" }).join(name)
}
