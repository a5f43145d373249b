//! The versions that the counts depend on.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
    process::Command,
};

use crate::Failure;

/// The versions by program, or `None` if valgrind is not installed.
pub(crate) fn installed() -> Result<Option<BTreeMap<String, String>>, Failure> {
    let valgrind = match output("valgrind", "--version") {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let redis = output("redis-server", "--version").map_err(|error| format!("redis-server: {error}"))?;
    let rustc = output("rustc", "--version").map_err(|error| format!("rustc: {error}"))?;
    // Copying and allocating is a third of what a client does.
    let libc = output("ldd", "--version").unwrap_or_default();
    let redis = redis.split_whitespace().find_map(|word| word.strip_prefix("v="));
    let versions = [
        ("libc", libc.lines().next().and_then(|line| line.split_whitespace().last())),
        ("redis-server", redis),
        ("rustc", rustc.split_whitespace().nth(1)),
        ("valgrind", valgrind.trim().strip_prefix("valgrind-")),
    ];
    let text =
        |(name, version): (&str, Option<&str>)| (name.to_owned(), version.unwrap_or("unknown").to_owned());
    Ok(Some(versions.map(text).into()))
}

fn output(program: &str, argument: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&Command::new(program).arg(argument).output()?.stdout).into_owned())
}
