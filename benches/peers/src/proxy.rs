//! A proxy that makes a network out of the loopback device: it delivers every chunk of bytes later, in order, and
//! does not limit the throughput.
//!
//! It is this program in a separate process, so that its CPU time is not the client's. Each direction of a connection
//! has a thread that reads and a thread that waits and writes. The timers of tokio are too coarse for this.

use std::{
    env, fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    process::{self, Child, Command, Stdio},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use crate::redis_server::RedisServer;

/// The argument that makes this program a proxy, before the server's port and the delay in microseconds.
const ARGUMENT: &str = "--delay";
const CHUNK: usize = 64 * 1024;

pub(crate) struct DelayingProxy {
    process: Child,
    port: u16,
}

impl DelayingProxy {
    /// In front of `server`. What is sent and what is answered each take half of `round_trip`.
    pub(crate) fn start(server: &RedisServer, round_trip: Duration) -> io::Result<Self> {
        let mut process = Command::new(env::current_exe()?)
            .arg(ARGUMENT)
            .args([server.port().to_string(), (round_trip / 2).as_micros().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut port = String::new();
        if let Some(stdout) = process.stdout.take() {
            BufReader::new(stdout).read_line(&mut port)?;
        }
        let port = port.trim().parse().map_err(io::Error::other)?;
        Ok(Self { process, port })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for DelayingProxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// If this process was started as a proxy, forwards until its standard input closes, so that it never outlives its
/// parent process.
pub(crate) fn forward_if_asked() -> io::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [argument, port, delay] = &arguments[..] else { return Ok(()) };
    if argument != ARGUMENT {
        return Ok(());
    }
    let port: u16 = port.parse().map_err(io::Error::other)?;
    let delay = Duration::from_micros(delay.parse().map_err(io::Error::other)?);
    // Or a thread sleeps up to 50 µs longer than it asks for. Threads inherit it.
    fs::write("/proc/self/timerslack_ns", "1")?;
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("{}", listener.local_addr()?.port());
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // A client whose connection cannot be forwarded sees it closed.
            let _ = connect(client, port, delay);
        }
    });
    io::stdin().read_to_end(&mut Vec::new())?;
    process::exit(0);
}

fn connect(client: TcpStream, port: u16, delay: Duration) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", port))?;
    for socket in [&client, &server] {
        socket.set_nodelay(true)?;
    }
    forward(client.try_clone()?, server.try_clone()?, delay);
    forward(server, client, delay);
    Ok(())
}

type Chunk = (Instant, Vec<u8>);

fn forward(from: TcpStream, to: TcpStream, delay: Duration) {
    let (sender, receiver) = channel();
    thread::spawn(move || receive(from, &sender, delay));
    thread::spawn(move || deliver(to, &receiver));
}

fn receive(mut from: TcpStream, chunks: &Sender<Chunk>, delay: Duration) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if chunks.send((Instant::now() + delay, buffer[..length].to_vec())).is_err() {
            return;
        }
    }
}

fn deliver(mut to: TcpStream, chunks: &Receiver<Chunk>) {
    while let Ok((due, chunk)) = chunks.recv() {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&chunk).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
