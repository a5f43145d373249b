//! Counts the instructions for a decision with callgrind, and prints each figure beside the recorded one and its budget.
//!
//! ```text
//! make bench-instructions                            # every contender
//! make bench-instructions CONTENDERS="stored alone"  # these two
//! make bench-instructions RECORD=yes                 # writes the figures to figures.toml as well
//! make request-path                                  # prints the files of `src` that one request executes, unoptimized
//! ```
//!
//! It fails if a figure is more than 2 % above the recorded one in `figures.toml`. A budget that is not met yet is not a
//! failure. Counts depend on the versions of Redis, rustc, valgrind and libc: with other versions than the recorded ones,
//! it prints both and does not fail. The load of the machine changes them by 1 %, and `leased, Redis` by up to 4 %, because
//! leases depend on time. Without valgrind, everything is skipped.
//!
//! Most services send what the first contenders do: keys that are stored, and calls of one or a few decisions.
//!
//! | contender | |
//! |---|---|
//! | `stored` | one policy, 10,000 a day with the same burst: Redis has a state of each key; 1, 4, 16 and 64 decisions in each call |
//! | `stored-pair` | the same with a fixed window of a day as well: two charges |
//! | `stored-window` | only the fixed window |
//! | `stored-month` | a calendar month in its place |
//! | `shared` | one policy with one key for all requests; 64 decisions in each call |
//! | `shared-pair` | `stored`, and `shared` as a second policy |
//! | `pool` | one policy with one key for all requests, in which each key has a guarantee |
//! | `stored-headroom` | `stored` for requests that leave headroom |
//! | `denied` | a policy of 10 a day, exhausted: each is denied by Redis |
//! | `denied-headroom`, `denied-below` | a policy of 20 a day for requests that leave headroom, of which exactly that or much less remains |
//! | `alone-stored` | `stored` as one request at a time: the client, and Redis as `stored, 1 a call` |
//! | `memory` | one policy in process, allowed and denied: one client, 256 clients (`many`) and a new one each time (`flood`); each denied with the log of denials, too |
//! | `memory-info` | the same with a subscriber of `tracing` at the level info, which wants no span of a decision |
//! | `memory-spans` | with one that wants the spans of decisions, and does nothing with them |
//!
//! These have large batches, or keys that are full again at their next request, so that Redis has no state of most:
//!
//! | contender | |
//! |---|---|
//! | `one-stored`, `two-stored` | one or two policies, stored keys, large batches |
//! | `alone` | one policy, idle keys, one request at a time: the client, and Redis as `idle, 1 a call` |
//! | `idle`, `idle-pair` | one or two policies, idle keys; 1, 4, 16 and 64 decisions in each call. A fixed window is never idle, so both are GCRA |
//! | `one`, `two`, `three` | one to three policies, idle keys, large batches |
//! | `penalty` | one policy with a penalty, idle keys, large batches |
//! | `leased` | one policy with leases of 1,000 units, idle keys, large batches; no key is hot |
//!
//! Of `stored`, `shared`, `pool`, `denied`, `idle` and those named after them, only Redis is counted. As many tasks as decisions are in a call share a
//! single connection, and take 256 keys in turn. A figure is the difference of a run of 23 charges of each key and a run of
//! 16, divided by the decisions between. Redis writes all of these in place if the keys are stored.
//!
//! For the others, 64 tasks send requests for 10,000 keys to Redis, one request after another; in process and for `alone`, a
//! single task does. A figure is the difference of a run of 38,400 decisions and a run of 6,400, divided by 32,000, so the
//! start does not count. Each figure is the median of three such rounds of 30 seconds.
//!
//! | figure | counts |
//! |---|---|
//! | `stored, 16 a call, Redis` | the whole server; the decisions in each call beside it are counted by the server, too |
//! | `one, client` | the whole process of the service; the loop that sends the requests is about 3,300 of it |
//! | `one, allocations` | calls of `malloc` and its relatives in the client, minus the calls of a service without a limit |
//! | `one, Redis` | the whole server, with batches as they form |
//! | `memory, allowed` | the whole process, minus a service without a limit |

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that talks to a person")]

mod callgrind;
mod figures;
mod guarded;
mod measure;
mod path;
mod recorded;
mod redis_server;
mod results;
mod versions;

use std::{collections::BTreeMap, env, error::Error, path::Path, process::ExitCode};

use figures::CONTENDERS;
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
    let results = measure::all(contenders)?;

    println!("Instructions and allocations for a decision; {}\n", text_of(&versions));
    println!("{}", figures::tables(&results, &recorded.figures));
    let worse = figures::worse(&results.figures, &recorded.figures);
    if !comparable && !recorded.figures.is_empty() {
        println!("the recorded figures are not comparable: they are of {}", text_of(&recorded.versions));
    }
    if record {
        if !comparable {
            recorded.figures.clear();
        }
        recorded.versions = versions;
        recorded.figures.extend(results.figures);
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
