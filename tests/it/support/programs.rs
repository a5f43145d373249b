//! Programs of the workspace that tests run as users do.

use std::{path::PathBuf, process::Command, sync::LazyLock};

/// The path of the program `name`: an example of the crate, or a program of another package. Builds it once, before its
/// first use, with the features and the profile of the tests, so that `cargo test --workspace` has compiled it already.
pub(crate) fn program(name: &str) -> PathBuf {
    static PROFILE: LazyLock<PathBuf> = LazyLock::new(build);
    let folder = if name == "quickstart" { "examples" } else { "" };
    PROFILE.join(folder).join(name)
}

/// Builds all programs. Returns their folder.
fn build() -> PathBuf {
    // Test binaries are in <target>/<profile>/deps.
    let tests = std::env::current_exe().unwrap();
    let profile = tests.ancestors().nth(2).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--workspace", "--all-features"]);
    cargo.args(["--example", "quickstart", "--bin", "example-tonic", "--bin", "replay", "--bin", "scaling"]);
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    profile.to_owned()
}
