//! A redis-server on a free port, in its own folder, for as long as the value lives.
//!
//! A shell between the two waits for the end of a pipe that closes with this process, so that the
//! server and its folder go even when the benchmark is interrupted or killed.

use std::{
    collections::HashMap,
    io::{self, BufRead, BufReader},
    net::TcpListener,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

const GUARD: &str = r#"
trap '' HUP INT TERM
dir=$(mktemp -d) || exit 1
redis-server "$@" --dir "$dir" >"$dir/log" 2>&1 &
echo $!
read -r _
kill -KILL $! 2>/dev/null
wait $! 2>/dev/null
rm -rf "$dir"
"#;

/// How long the idle server is observed.
const IDLE: Duration = Duration::from_millis(500);

pub(crate) struct RedisServer {
    guard: Child,
    process: String,
    port: u16,
    /// Seconds of CPU time in a second without commands.
    idle: f64,
}

impl RedisServer {
    /// A plain server, or one with a module loaded. Nothing is written to disk.
    pub(crate) fn start(module: Option<&str>) -> io::Result<Self> {
        let port = free_port()?;
        let mut arguments = vec!["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let text = port.to_string();
        arguments.extend(["--port", &text]);
        arguments.extend(module.into_iter().flat_map(|module| ["--loadmodule", module]));
        let mut guard = Command::new("sh")
            .args(["-c", GUARD, "redis-server"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut process = String::new();
        if let Some(stdout) = guard.stdout.take() {
            BufReader::new(stdout).read_line(&mut process)?;
        }
        let mut server = Self { guard, process: process.trim().to_owned(), port, idle: 0.0 };
        server.wait()?;
        let before = server.info()?.cpu();
        sleep(IDLE);
        server.idle = (server.info()?.cpu() - before) / IDLE.as_secs_f64();
        Ok(server)
    }

    pub(crate) fn url(&self) -> String {
        url(self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// See the field.
    pub(crate) fn idle(&self) -> f64 {
        self.idle
    }

    /// Its process id.
    pub(crate) fn process(&self) -> &str {
        &self.process
    }

    /// The `INFO` of the server.
    pub(crate) fn info(&self) -> io::Result<Info> {
        let text = self
            .connection()
            .and_then(|mut connection| redis::cmd("INFO").arg("everything").query::<String>(&mut connection));
        text.map(|text| Info::of(&text)).map_err(io::Error::other)
    }

    fn connection(&self) -> redis::RedisResult<redis::Connection> {
        redis::Client::open(self.url())?.get_connection()
    }

    /// Waits until the server that this process started answers, and not another one on the same port.
    fn wait(&self) -> io::Result<()> {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(10) {
            if let Ok(info) = self.info() {
                return match info.text("process_id") == self.process {
                    true => Ok(()),
                    false => Err(io::Error::other("another server has taken the port: try again")),
                };
            }
            sleep(Duration::from_millis(10));
        }
        Err(io::Error::other("redis-server does not answer: is it installed?"))
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// The URL of what listens on `port`: a server, or a proxy in front of it.
pub(crate) fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// The fields of `INFO`.
pub(crate) struct Info(HashMap<String, String>);

impl Info {
    fn of(text: &str) -> Self {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        Self(fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> f64 {
        self.text(name).parse().unwrap_or(0.0)
    }

    /// Seconds of CPU time of the server, in user space and in the kernel.
    pub(crate) fn cpu(&self) -> f64 {
        self.number("used_cpu_user") + self.number("used_cpu_sys")
    }

    /// Commands executed, including those called by scripts and modules.
    pub(crate) fn commands(&self) -> f64 {
        self.number("total_commands_processed")
    }

    /// Commands sent by a contender, without those called by its script.
    pub(crate) fn sent(&self) -> f64 {
        ["evalsha", "eval", "fcall", "ping", "cl.throttle"]
            .iter()
            .filter_map(|name| self.text(&format!("cmdstat_{name}")).strip_prefix("calls="))
            .filter_map(|calls| calls.split(',').next()?.parse::<f64>().ok())
            .sum()
    }
}
