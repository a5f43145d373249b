//! The example, as a user runs it.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

#[test]
fn the_example_shows_a_denial_and_ends() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_example-tonic")).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for expected in ["hello you, 5\n", "code: ResourceExhausted\n", "retry in: ", "quota: calls, burst 4"] {
        assert!(said.contains(expected), "{said}");
    }
}
