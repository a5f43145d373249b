//! The files of the crate that take part in one request.

use std::{
    collections::{BTreeMap, HashMap},
    env,
    path::Path,
};

use crate::{Failure, callgrind, guarded::Guarded, measure::work, redis_server::RedisServer};

const FEW: u32 = 200;
const MANY: u32 = 1_000;

/// Instructions for a request by file: those whose counts differ between a run of [`FEW`] requests and one of [`MANY`] by
/// at least one for each request more. The requests follow each other, under one policy on Redis.
pub(crate) fn files() -> Result<BTreeMap<String, u64>, Failure> {
    if !cfg!(debug_assertions) {
        return Err(
            "optimized programs do not tell which file a function is from: leave out --release".into()
        );
    }
    let server = RedisServer::start()?;
    let profile = |requests| {
        let program = callgrind::command(work("one", 1, requests)?);
        Guarded::start(&program, &[("REDIS_URL", server.url())])?.wait()
    };
    let few = of_the_crate(&instructions(&profile(FEW)?)?)?;
    let many = of_the_crate(&instructions(&profile(MANY)?)?)?;
    // A run may open one connection more, which would count for a request.
    let again = of_the_crate(&instructions(&profile(MANY)?)?)?;
    server.stop()?;
    let of = |counts: &BTreeMap<String, u64>, file: &str| counts.get(file).copied().unwrap_or_default();
    let more = |(file, count): (String, u64)| {
        let more = count.min(of(&again, &file)).saturating_sub(of(&few, &file));
        (file, more / u64::from(MANY - FEW))
    };
    Ok(many.into_iter().map(more).filter(|(_, count)| *count > 0).collect())
}

/// Those in `src`, by their path in it.
fn of_the_crate(counts: &HashMap<&str, u64>) -> Result<BTreeMap<String, u64>, Failure> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src").canonicalize()?;
    let mut files = BTreeMap::new();
    for (file, count) in counts {
        // The compiler writes the files of this package as relative paths, and the files of other packages as absolute
        // ones. `lib.rs` has no functions: only the macro `log!` and instructions without a line count for it.
        if let Ok(file) = Path::new(file).strip_prefix(&source)
            && file != Path::new("lib.rs")
        {
            *files.entry(file.display().to_string()).or_default() += count;
        }
    }
    Ok(files)
}

/// What each file executed, without the functions that it calls. A file has its name only where it is mentioned first, and
/// its number, such as `(12)`, everywhere. A call is followed by a line with the cost of the called function.
fn instructions(profile: &str) -> Result<HashMap<&str, u64>, Failure> {
    let (mut names, mut counts) = (HashMap::new(), HashMap::new());
    let (mut file, mut is_call) = ("", false);
    for line in profile.lines() {
        let (word, value) = line.split_once('=').unwrap_or_default();
        if matches!(word, "fl" | "fi" | "fe" | "cfi" | "cfl") {
            let (number, name) = value.split_once(' ').unwrap_or((value, ""));
            if !name.is_empty() {
                names.insert(number, name);
            }
            if word.starts_with('f') {
                file = names.get(number).copied().unwrap_or_default();
            }
        } else if word == "calls" {
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            if let Some(count) = line.split(' ').nth(1).filter(|_| !is_call) {
                *counts.entry(file).or_default() += count.parse::<u64>()?;
            }
            is_call = false;
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_count_for_the_file_that_they_are_from_and_not_for_a_caller() {
        let profile = "fl=(1) /a.rs\nfn=(1) main\n3 9\ncfi=(2) /b.rs\ncfn=(2) called\ncalls=3 7\n4 60\n+2 1\nfi=(3) /c.rs\n\
                       8 5\nfe=(1)\n* 2\n\nfl=(2)\nfn=(2)\n7 60\n\ntotals: 77\n";
        let counts = instructions(profile).unwrap();
        assert_eq!(counts, HashMap::from([("/a.rs", 12), ("/b.rs", 60), ("/c.rs", 5)]));
    }
}
