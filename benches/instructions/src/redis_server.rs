//! A Redis server on a free port, which writes nothing to disk.

use std::{
    env,
    io::{self, BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{Failure, callgrind, guarded::Guarded};

/// Under callgrind, the start takes seconds.
const START: Duration = Duration::from_secs(60);

pub(crate) struct RedisServer {
    process: Guarded,
    port: u16,
}

impl RedisServer {
    pub(crate) fn start() -> Result<Self, Failure> {
        Self::start_with(|command| command)
    }

    /// A server whose instructions are counted. [`Self::stop`] returns the profile.
    pub(crate) fn start_counted() -> Result<Self, Failure> {
        Self::start_with(callgrind::command)
    }

    fn start_with(wrap: impl Fn(Vec<String>) -> Vec<String>) -> Result<Self, Failure> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let directory = env::temp_dir();
        let command = ["redis-server", "--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""];
        let command = command.into_iter().chain(["--appendonly", "no", "--hz", "1", "--loglevel", "warning"]);
        let mut command: Vec<String> = command.map(str::to_owned).collect();
        command.extend(["--dir".to_owned(), directory.display().to_string()]);
        let mut server = Self { process: Guarded::start(&wrap(command), &[])?, port };
        server.answers()?;
        Ok(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// How many calls of scripts the server has answered.
    pub(crate) fn script_calls(&self) -> Result<u64, Failure> {
        let mut connection = self.connect()?;
        connection.write_all(b"INFO commandstats\r\nQUIT\r\n")?;
        let mut calls = 0;
        for line in BufReader::new(connection).lines() {
            let line = line?;
            if let Some((_, statistics)) =
                line.strip_prefix("cmdstat_eval").and_then(|rest| rest.split_once(":calls="))
            {
                calls += statistics.split(',').next().unwrap_or_default().parse::<u64>()?;
            }
        }
        Ok(calls)
    }

    /// Returns what the server wrote to standard output.
    pub(crate) fn stop(self) -> Result<String, Failure> {
        self.connect()?.write_all(b"SHUTDOWN NOSAVE\r\n")?;
        self.process.wait()
    }

    /// Waits until this server answers, and not another one on the same port.
    fn answers(&mut self) -> Result<(), Failure> {
        let started = Instant::now();
        while started.elapsed() < START {
            if !self.process.runs()? {
                return Err("redis-server ended during its start".into());
            }
            match self.process_id() {
                Ok(id) if id == self.process.process() => return Ok(()),
                Ok(_) => return Err("another server has taken the port: try again".into()),
                Err(_) => sleep(Duration::from_millis(50)),
            }
        }
        Err("redis-server does not answer".into())
    }

    fn process_id(&self) -> io::Result<String> {
        let mut connection = self.connect()?;
        connection.write_all(b"INFO server\r\n")?;
        for line in BufReader::new(connection).lines() {
            if let Some(id) = line?.strip_prefix("process_id:") {
                return Ok(id.to_owned());
            }
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let connection = TcpStream::connect(("127.0.0.1", self.port))?;
        connection.set_read_timeout(Some(START))?;
        Ok(connection)
    }
}
