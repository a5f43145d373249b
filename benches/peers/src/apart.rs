//! Keeps the cores awake, and pins client and server to different ones, while latency is measured.
//!
//! With one request in flight the two processes alternate, and their placement by the kernel decides the result: on one
//! core a request costs a context switch, on two a wake-up of the other core, and in a virtual machine much more if
//! that core has halted. The same contender had 12 µs in one round and 65 µs in the next. So the server gets the first
//! core and this process the others, as if they were two hosts near each other, and a process of the class
//! `SCHED_IDLE`, which gives way to any other immediately, spins on each core so that none halts. Behind a delaying
//! proxy nothing is pinned, but a core that halts would add to the delay.

use std::{
    env, fs,
    hint::spin_loop,
    io::{self, Read},
    process::{self, Child, Command, Stdio},
    thread::{self, available_parallelism},
};

use crate::redis_server::RedisServer;

/// The argument that makes this program a spinner.
const ARGUMENT: &str = "--spin";

/// No core halts as long as this value lives.
pub(crate) struct Awake(Child);

impl Awake {
    pub(crate) fn start() -> io::Result<Self> {
        let spinner = Command::new("chrt")
            .args(["--idle", "0"])
            .arg(env::current_exe()?)
            .arg(ARGUMENT)
            .stdin(Stdio::piped())
            .spawn()?;
        Ok(Self(spinner))
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Client and server are on different cores, which stay awake, as long as this value lives.
pub(crate) struct Apart {
    _awake: Awake,
    server: String,
    /// The original cores, such as `0-1`.
    cores: String,
}

impl Apart {
    /// Returns `None` if there is only one core or no server.
    pub(crate) fn start(server: Option<&RedisServer>) -> io::Result<Option<Self>> {
        let cores = own_cores()?;
        let (Some(server), [first, others @ ..]) = (server, &expand(&cores)[..]) else { return Ok(None) };
        if others.is_empty() {
            return Ok(None);
        }
        // The spinner first, so that it has all cores.
        let apart = Self { _awake: Awake::start()?, server: server.process().to_owned(), cores };
        pin(&apart.server, first)?;
        pin(&process::id().to_string(), &others.join(","))?;
        Ok(Some(apart))
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = pin(&self.server, &self.cores);
        let _ = pin(&process::id().to_string(), &self.cores);
    }
}

/// The cores that this process may use, such as `0-1` or `0,2-3`.
fn own_cores() -> io::Result<String> {
    let status = fs::read_to_string("/proc/self/status")?;
    let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Ok(cores.unwrap_or_default().trim().to_owned())
}

fn expand(cores: &str) -> Vec<String> {
    let number = |text: &str| text.parse::<usize>().ok();
    let ranges = cores.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(number(first)?..=number(last)?)
    });
    ranges.flatten().map(|core| core.to_string()).collect()
}

/// All threads of `process` run on `cores` from now on.
fn pin(process: &str, cores: &str) -> io::Result<()> {
    let pinned =
        Command::new("taskset").args(["-a", "-c", "-p", cores, process]).stdout(Stdio::null()).status()?;
    if pinned.success() { Ok(()) } else { Err(io::Error::other("taskset cannot pin a process to a core")) }
}

/// If this process was started as a spinner, spins until its standard input closes, so that it never outlives its
/// parent process.
pub(crate) fn spin_if_asked() {
    if env::args().nth(1).as_deref() != Some(ARGUMENT) {
        return;
    }
    for _ in 0..available_parallelism().map_or(1, usize::from) {
        thread::spawn(|| {
            loop {
                spin_loop();
            }
        });
    }
    let _ = io::stdin().read_to_end(&mut Vec::new());
    process::exit(0);
}
