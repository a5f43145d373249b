//! The tool `replay`, as users run it.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod formats;
mod options;
mod random;
mod report;
mod rules;
mod single;
mod suggest;

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

fn replay(options: &[&str], input: impl AsRef<[u8]>) -> Output {
    let mut process = Command::new(env!("CARGO_BIN_EXE_replay"))
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = process.stdin.take().unwrap();
    let input = input.as_ref().to_vec();
    // A thread writes the input, because the program may print verdicts before it has read everything. A program
    // that rejects its options does not read.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = process.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

/// The verdict lines of a program that succeeds.
fn verdicts(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", errors(output));
    let text = str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What is on stderr.
fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A field of each verdict.
fn each<'a>(verdicts: &'a [Value], field: &str) -> Vec<&'a Value> {
    verdicts.iter().map(|verdict| &verdict[field]).collect()
}
