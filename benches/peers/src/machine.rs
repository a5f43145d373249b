//! The head of the document: when, on what, and with which versions.

use std::{
    error::Error,
    fs,
    process::Command,
    thread::{available_parallelism, sleep},
    time::Duration,
};

use crate::bench::Bench;

pub(crate) fn head(bench: &Bench) -> Result<String, Box<dyn Error>> {
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let os = fs::read_to_string("/etc/os-release")?;
    let os = os.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    Ok(format!(
        "# tower-ratelimit beside its peers\n\n\
         * {}\n* {}, {} cores, shared by Redis and its clients; {:.0} % busy with other things before the run\n\
         * {}, Linux {}\n* {}\n* redis-server {}\n* tower-ratelimit at {}\n",
        output("date", &["-u", "+%Y-%m-%d %H:%M UTC"])?,
        cpu.map_or("unknown processor", |(_, model)| model.trim()),
        available_parallelism()?,
        busy()? * 100.0,
        os.map_or("unknown system", |name| name.trim_matches('"')),
        output("uname", &["-r"])?,
        env!("RUSTC_VERSION"),
        bench.plain.info()?.text("redis_version"),
        commit(),
    ))
}

fn output(program: &str, arguments: &[&str]) -> Result<String, Box<dyn Error>> {
    Ok(String::from_utf8(Command::new(program).args(arguments).output()?.stdout)?.trim().to_owned())
}

/// A package and its version in the lock that this program was built with. `redis@1` is the one whose version
/// begins with 1, where several are linked.
pub(crate) fn version(package: &str) -> String {
    let (name, begin) = package.split_once('@').unwrap_or((package, ""));
    let mut lines = include_str!("../Cargo.lock").lines();
    while let Some(line) = lines.next() {
        if line != format!("name = \"{name}\"") {
            continue;
        }
        let version = lines.next().and_then(|line| line.strip_prefix("version = ")).unwrap_or_default();
        let version = version.trim_matches('"');
        if version.starts_with(begin) {
            return format!("{name} {version}");
        }
    }
    format!("{name} (not in the lock)")
}

/// The share of the machine's CPU time used by other processes, measured over a second in which this program is idle.
fn busy() -> Result<f64, Box<dyn Error>> {
    let times = || -> Result<(f64, f64), Box<dyn Error>> {
        let stat = fs::read_to_string("/proc/stat")?;
        let times: Vec<f64> =
            stat.lines().next().unwrap_or_default().split(' ').filter_map(|time| time.parse().ok()).collect();
        // user, nice, system, idle, iowait, ..
        Ok((times.iter().sum(), times.iter().skip(3).take(2).sum()))
    };
    let before = times()?;
    sleep(Duration::from_secs(1));
    let after = times()?;
    Ok(1.0 - (after.1 - before.1) / (after.0 - before.0))
}

/// The commit of tower-ratelimit, and whether its source differs from it.
fn commit() -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let git = |arguments: &[&str]| output("git", &[&["-C", folder], arguments].concat()).unwrap_or_default();
    let changed = !git(&["status", "--porcelain", "--", "src", "lua", "Cargo.toml"]).is_empty();
    format!("{}{}", git(&["rev-parse", "--short", "HEAD"]), if changed { ", changed since" } else { "" })
}
