//! Counts the instructions for a decision with callgrind, and prints each figure beside the recorded one and its budget.
//!
//! ```text
//! make bench-instructions                       # every contender
//! make bench-instructions CONTENDERS="one two"  # these two
//! make bench-instructions RECORD=yes            # writes the figures to figures.toml as well
//! make request-path                             # prints the files of `src` that one request executes, unoptimized
//! ```
//!
//! It fails if a figure is more than 2 % above the recorded one in `figures.toml`. A budget that is not met yet is not a
//! failure. Counts depend on the versions of Redis, rustc, valgrind and libc: with other versions than the recorded ones,
//! it prints both and does not fail. The load of the machine changes them by 1 %, and `leased, Redis` by up to 4 %, because
//! leases depend on time. Each round of a contender needs 30 seconds; each figure is the median of three. Without
//! valgrind, everything is skipped.
//!
//! | contender | |
//! |---|---|
//! | `one`, `two`, `three` | one to three policies, on Redis |
//! | `penalty` | one policy with a penalty, on Redis |
//! | `leased` | one policy with leases of 1,000 units, on Redis; no key is hot |
//! | `alone` | one policy, on Redis, one request at a time; the keys are full again at their next request |
//! | `alone-stored` | the same, with a quota for a day: Redis has a state of each key |
//! | `memory` | one policy in process, allowed and denied |
//!
//! 64 tasks send requests for 10,000 keys to Redis, one request after another; in process and for `alone`, a single task
//! does. A figure is the difference of a run of 38,400 decisions and a run of 6,400, divided by 32,000, so the start does
//! not count.
//!
//! | figure | counts |
//! |---|---|
//! | `one, client` | the whole process of the service; the loop that sends the requests is about 3,300 of it |
//! | `one, allocations` | calls of `malloc` and its relatives in the client, minus the calls of a service without a limit |
//! | `one, Redis` | the whole server, with batches as they form |
//! | `memory, allowed` | the whole process, minus a service without a limit |
//!
//! Batches of a fixed size are not counted here.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that talks to a person")]

mod callgrind;
mod figures;
mod guarded;
mod measure;
mod path;
mod recorded;
mod redis_server;
mod versions;

use std::{collections::BTreeMap, env, error::Error, path::Path, process::ExitCode};

use figures::{CONTENDERS, Measured};
use recorded::Recorded;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<ExitCode, Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (options, mut contenders): (Vec<_>, Vec<_>) =
        arguments.into_iter().partition(|argument| argument.starts_with("--"));
    let record = match options[..] {
        [] => false,
        ["--record"] => true,
        ["--path"] => return show_path(),
        _ => return Err("usage: instructions [--record | --path] [CONTENDER ..]".into()),
    };
    if let Some(unknown) = contenders.iter().find(|contender| !CONTENDERS.contains(contender)) {
        return Err(
            format!("there is no contender {unknown}: the contenders are {}", CONTENDERS.join(", ")).into()
        );
    }
    if contenders.is_empty() {
        contenders = CONTENDERS.to_vec();
    }
    report(&contenders, record)
}

fn report(contenders: &[&str], record: bool) -> Result<ExitCode, Failure> {
    let Some(versions) = versions::installed()? else {
        println!("skipped: valgrind is not installed");
        return Ok(ExitCode::SUCCESS);
    };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("figures.toml");
    let mut recorded = Recorded::read(&file)?;
    let comparable = recorded.versions == versions;
    let measured: Measured = measure::all(contenders)?;

    println!("Instructions and allocations for a decision; {}\n", text_of(&versions));
    println!("{}", figures::table(&measured, &recorded.figures));
    let worse = figures::worse(&measured, &recorded.figures);
    if !comparable && !recorded.figures.is_empty() {
        println!("the recorded figures are not comparable: they are of {}", text_of(&recorded.versions));
    }
    if record {
        if !comparable {
            recorded.figures.clear();
        }
        recorded.versions = versions;
        recorded.figures.extend(measured);
        recorded.write(&file)?;
        println!("recorded in {}", file.display());
    } else if comparable && !worse.is_empty() {
        eprintln!(
            "more than 2 % above the recorded figure: {}. Improve them, or record them with RECORD=yes and say why",
            worse.join("; ")
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the files that take part in one request.
fn show_path() -> Result<ExitCode, Failure> {
    let files = path::files()?;
    for (file, instructions) in &files {
        println!("{instructions:>8} {file}");
    }
    println!("{} files of src take part in one request on Redis", files.len());
    Ok(ExitCode::SUCCESS)
}

fn text_of(versions: &BTreeMap<String, String>) -> String {
    let texts: Vec<_> = versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    texts.join(", ")
}
