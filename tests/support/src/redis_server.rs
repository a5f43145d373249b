//! A real redis-server on a free port, for as long as the value lives.

use std::{
    io::{BufRead, BufReader, ErrorKind, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// Started with [`start`](Self::start), stopped when dropped, on panic too. If the test process is killed, the server
/// stops as well: a shell between the two waits for the end of a pipe that closes with this process.
pub struct RedisServer {
    port: u16,
    arguments: Vec<String>,
    process: Option<Process>,
    /// The configuration file, if it is a sentinel.
    sentinel: Option<String>,
    /// The command before `redis-server`, if any.
    wrapper: &'static str,
}

struct Process {
    guard: Child,
    server: u32,
    /// Whether its files are needed again after it stops.
    keep: bool,
}

const GUARD: &str = r#"$WRAPPER redis-server "$@" >/dev/null 2>&1 & echo $!; read -r keep
    kill -KILL $! 2>/dev/null; wait $! 2>/dev/null
    test -n "$keep" || rm -rf "$DIRECTORY""#;

impl RedisServer {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// A server with further arguments, such as `["--maxmemory", "1mb"]`.
    pub fn with(arguments: &[&str]) -> Self {
        Self::start_as(arguments, None, |_| true)
    }

    /// A server whose instructions callgrind counts, about 50 times slower. Needs valgrind.
    pub fn counted() -> Self {
        let wrapper = "valgrind -q --tool=callgrind --callgrind-out-file=/dev/null";
        Self::start_wrapped(wrapper, &[], None, |_| true)
    }

    /// The instructions of a [`counted`](Self::counted) server so far.
    pub fn instructions(&self) -> u64 {
        let process = self.process.as_ref().unwrap().server.to_string();
        let output = Command::new("callgrind_control").args(["-e", &process]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let counts = text.lines().filter_map(|line| line.trim_start().strip_prefix("Th ")?.split_once(' '));
        counts.map(|(_, count)| count.trim().replace(',', "").parse::<u64>().unwrap()).sum()
    }

    /// A sentinel with this text in its configuration file.
    pub fn sentinel(settings: &str) -> Self {
        Self::start_as(&["--sentinel"], Some(settings), |_| true)
    }

    /// A cluster node that has not joined a cluster yet, with further arguments. On a busy machine, the other nodes do not
    /// consider it lost, unless it has a shorter `--cluster-node-timeout`.
    pub fn node(arguments: &[&str]) -> Self {
        let cluster = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "10000",
            "--cluster-require-full-coverage",
            "no",
            // A primary that loses its last slot stays a primary.
            "--cluster-allow-replica-migration",
            "no",
        ];
        Self::start_as(&[&cluster[..], arguments].concat(), None, bus_is_free)
    }

    fn start_as(arguments: &[&str], sentinel: Option<&str>, suits: impl Fn(u16) -> bool) -> Self {
        Self::start_wrapped("", arguments, sentinel, suits)
    }

    fn start_wrapped(
        wrapper: &'static str,
        arguments: &[&str],
        sentinel: Option<&str>,
        suits: impl Fn(u16) -> bool,
    ) -> Self {
        let version = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
        version.expect("redis-server is not on the PATH: `make test` installs it");
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let mut server =
            Self { port: 0, arguments, process: None, sentinel: sentinel.map(ToOwned::to_owned), wrapper };
        // Another process may have taken the port in the meantime.
        for _ in 0..5 {
            server.process = None;
            server.port = (0..100).map(|_| free_port()).find(|&port| suits(port)).unwrap();
            if server.try_restart() {
                return server;
            }
        }
        panic!("redis-server does not start with {:?}", server.arguments);
    }

    /// The major version, such as 7.
    pub fn version() -> u64 {
        let output = Command::new("redis-server").arg("--version").output().unwrap().stdout;
        let text = String::from_utf8(output).unwrap();
        text.split("v=").nth(1).and_then(|rest| rest.split('.').next()?.parse().ok()).expect(&text)
    }

    /// Whether the server was built with TLS: if so, it looks for its certificate first.
    pub fn has_tls() -> bool {
        let output = Command::new("redis-server").args(["--port", "0", "--tls-port", "1"]).output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).contains("tls-cert-file")
    }

    /// Gives the user `name` the permissions of `rule`. Returns the URL for a store with this user.
    pub fn user(&self, name: &str, rule: &str) -> String {
        let mut words = vec!["ACL", "SETUSER", name, "on", ">secret"];
        words.extend(rule.split(' '));
        let () = self.command(&words);
        self.url().replace("//", &format!("//{name}:secret@"))
    }

    /// The URL for a store, with the protocol that the tests run with.
    pub fn url(&self) -> String {
        self.url_with(protocol())
    }

    /// The URL with one protocol: 2 or 3.
    pub fn url_with(&self, protocol: u8) -> String {
        let query = if protocol == 2 { String::new() } else { format!("/?protocol=resp{protocol}") };
        format!("redis://127.0.0.1:{}{query}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's own working directory.
    fn directory(&self) -> PathBuf {
        std::env::temp_dir().join(format!("tower-ratelimit-{}-{}", std::process::id(), self.port))
    }

    /// Starts the server again on its old port, without data.
    pub fn restart(&mut self) {
        assert!(self.try_restart(), "redis-server does not restart on port {}", self.port);
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(process) = &mut self.process {
            process.keep = true;
        }
        self.process = None;
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().server
    }

    /// Sends the server a signal, such as `STOP` or `CONT`.
    pub fn signal(&self, name: &str) {
        let server = self.process.as_ref().unwrap().server.to_string();
        assert!(Command::new("kill").arg(format!("-{name}")).arg(server).status().unwrap().success());
    }

    pub fn connection(&self) -> redis::Connection {
        self.try_connection().unwrap()
    }

    pub fn try_connection(&self) -> redis::RedisResult<redis::Connection> {
        redis::Client::open(self.url_with(2))?.get_connection()
    }

    /// Runs one command on a new connection.
    pub fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query(&mut self.connection()).unwrap()
    }

    /// The number of connections that stores have opened. One of [`command`](Self::command) is listed for a moment after
    /// it was closed, and so a count of all connections is not of these.
    pub fn connections(&self) -> usize {
        self.command::<String>(&["CLIENT", "LIST"]).matches("name=tower-ratelimit").count()
    }

    /// Stores `value` under `key`.
    pub fn set(&self, key: &str, value: &[u8]) {
        redis::cmd("SET").arg(key).arg(value).exec(&mut self.connection()).unwrap();
    }

    /// The number of script calls that the server executed, including the tests' calls.
    pub fn script_calls(&self) -> u64 {
        let stats: String = self.command(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
    }

    fn try_restart(&mut self) -> bool {
        self.kill();
        let port = self.port.to_string();
        let directory = self.directory();
        std::fs::create_dir_all(&directory).unwrap();
        let mut file = Vec::new();
        if let Some(settings) = &self.sentinel {
            // A sentinel writes what it learns into its file.
            file.push(directory.join("sentinel.conf"));
            std::fs::write(&file[0], settings).unwrap();
        }
        let mut guard = Command::new("sh")
            .args(["-c", GUARD, "redis-server"])
            .args(&file)
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--dir", directory.to_str().unwrap(), "--port", &port])
            // A replica gets its data immediately. By default the primary waits five seconds for more replicas.
            .args(["--repl-diskless-sync-delay", "0"])
            .args(&self.arguments)
            .env("DIRECTORY", &directory)
            .env("WRAPPER", self.wrapper)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(guard.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let server = line.trim().parse().unwrap();
        self.process = Some(Process { guard, server, keep: false });
        self.answers()
    }

    /// Waits until the server that this process started answers, and not another one on the same port.
    fn answers(&self) -> bool {
        let started = Instant::now();
        let ours = self.process.as_ref().unwrap().server;
        while started.elapsed() < Duration::from_secs(if self.wrapper.is_empty() { 10 } else { 60 }) {
            match TcpStream::connect(("127.0.0.1", self.port)) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                _ => {
                    let info = redis::Client::open(self.url_with(2))
                        .and_then(|client| client.get_connection())
                        .and_then(|mut connection| {
                            redis::cmd("INFO").arg("server").query::<String>(&mut connection)
                        });
                    match info {
                        Ok(info) => return info.contains(&format!("process_id:{ours}\r\n")),
                        // It requires a password or is still loading. In both cases it is up.
                        Err(error) if error.to_string().contains("NOAUTH") => return true,
                        Err(_) => {}
                    }
                }
            }
            sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.process = None;
        // After a kill, its files were kept until now.
        let _ = std::fs::remove_dir_all(self.directory());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL works on a stopped process too. The guard ends when its pipe closes.
        let _ = Command::new("kill").args(["-KILL", &self.server.to_string()]).stderr(Stdio::null()).status();
        let mut pipe = self.guard.stdin.take();
        if self.keep {
            let _ = pipe.as_mut().unwrap().write_all(b"keep\n");
        }
        drop(pipe);
        let _ = self.guard.wait();
    }
}

/// The version of the protocol that stores use: 2, or 3 if `REDIS_PROTOCOL` is `resp3`.
pub fn protocol() -> u8 {
    match std::env::var("REDIS_PROTOCOL").as_deref() {
        Err(_) | Ok("resp2") => 2,
        Ok("resp3") => 3,
        Ok(other) => panic!("REDIS_PROTOCOL is resp2 or resp3, not {other}"),
    }
}

pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Nodes talk to each other on another port, which is higher by this much.
pub fn bus_is_free(port: u16) -> bool {
    port.checked_add(10_000).is_some_and(|bus| TcpListener::bind(("127.0.0.1", bus)).is_ok())
}
