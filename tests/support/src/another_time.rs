//! A server whose scripts see another time, as on a machine with a wrong clock, or in another month.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, copy},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf},
};

/// The time at the server, in microseconds since 1970. It stands still until it is set.
#[derive(Clone)]
pub struct AnotherTime(Arc<AtomicU64>);

impl AnotherTime {
    /// A proxy of the server at `port`, and its URL. In each call of the limiter's script, it replaces the number that
    /// stands for the server's clock by its own time.
    pub async fn at(port: u16, micros: u64) -> (String, Self) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        (url, Self::between(listener, port, micros))
    }

    /// The same for clients of `listener`.
    pub fn between(listener: TcpListener, port: u16, micros: u64) -> Self {
        let time = Self(Arc::new(AtomicU64::new(micros)));
        let shared = time.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let time = shared.clone();
                tokio::spawn(async move {
                    let server = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
                    let _ = (client.set_nodelay(true), server.set_nodelay(true));
                    let (from_client, mut to_client) = client.into_split();
                    let (mut from_server, mut to_server) = server.into_split();
                    tokio::spawn(async move { copy(&mut from_server, &mut to_client).await });
                    let mut commands = BufReader::new(from_client);
                    while let Some(command) = time.next(&mut commands).await {
                        to_server.write_all(&command).await.ok()?;
                    }
                    Some(())
                });
            }
        });
        time
    }

    pub fn set(&self, micros: u64) {
        self.0.store(micros, Ordering::Relaxed);
    }

    /// The bytes of the next command.
    async fn next(&self, commands: &mut BufReader<OwnedReadHalf>) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let (mut words, mut keys): (Vec<String>, _) = (Vec::new(), usize::MAX);
        for place in 0..header(commands, &mut bytes).await? {
            let size = header(commands, &mut bytes).await?;
            let start = bytes.len();
            bytes.resize(start + size + 2, 0);
            commands.read_exact(&mut bytes[start..]).await.ok()?;
            let word = &bytes[start..start + size];
            if place < 3 {
                words.push(String::from_utf8_lossy(word).into_owned());
            }
            if place == 2 && words[0].starts_with("EVAL") {
                keys = words[2].parse().ok()?;
            }
            // The numbers of the script come after its keys, and begin with 0 for the server's clock.
            if keys < usize::MAX && place == 3 + keys && word.starts_with(&[0; 8]) {
                let now = self.0.load(Ordering::Relaxed) as f64;
                bytes[start..start + 8].copy_from_slice(&now.to_le_bytes());
            }
        }
        Some(bytes)
    }
}

/// Reads a line such as `*3` or `$12`, and returns its number.
async fn header(commands: &mut BufReader<OwnedReadHalf>, bytes: &mut Vec<u8>) -> Option<usize> {
    let start = bytes.len();
    commands.read_until(b'\n', bytes).await.ok()?;
    str::from_utf8(bytes.get(start + 1..)?).ok()?.trim().parse().ok()
}
