//! The examples, as a user runs them.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

#[track_caller]
fn check(program: &str, last: &str) {
    let output = std::process::Command::new(program).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(printed.lines().count(), 5, "{printed}");
    assert!(printed.ends_with(last), "{printed}");
}

#[test]
fn the_reqwest_client_gets_all_answers() {
    check(env!("CARGO_BIN_EXE_example-client-retry"), "order 5: done\n");
}

#[test]
fn the_tonic_client_gets_all_answers() {
    check(env!("CARGO_BIN_EXE_example-client-retry-tonic"), "hello you, call 5\n");
}

#[test]
fn the_webhook_is_posted_once_for_each_share() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_example-webhook")).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "80 % of 10\n100 % of 10\n");
}
