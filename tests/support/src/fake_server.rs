//! A server that speaks the Redis protocol and answers script calls as the test specifies.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

type Answer = Arc<dyn Fn(&[String]) -> String + Send + Sync>;

/// Starts a server that answers each command with `answer(words)`, in the bytes of the protocol. Returns its URL.
pub async fn start(answer: impl Fn(&[String]) -> String + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let answer: Answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(serve(client, answer.clone()));
        }
    });
    url
}

/// Starts a server that answers script calls with `answer(arguments)` and all other commands as Redis does.
pub async fn scripted(answer: impl Fn(&[String]) -> String + Send + Sync + 'static) -> String {
    start(move |words| match words[0].to_ascii_uppercase().as_str() {
        "EVALSHA" | "EVAL" => answer(words),
        "PING" => "+PONG\r\n".into(),
        "INFO" => "$0\r\n\r\n".into(),
        _ => "+OK\r\n".into(),
    })
    .await
}

/// Starts a server that sends `reply` to each client and closes the connection, without reading anything. Returns its
/// address.
pub async fn closing(reply: &'static str) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let _ = client.write_all(reply.as_bytes()).await;
        }
    });
    address
}

/// Starts a server that announces a huge text to each client and sends it without end. Returns its address, and the most
/// bytes that a client has taken.
pub async fn flooding() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let most = Arc::new(AtomicUsize::new(0));
    let taken = most.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let taken = taken.clone();
            tokio::spawn(async move {
                let (mut sent, chunk) = (0, vec![b'x'; 65_536]);
                client.write_all(b"$1000000000\r\n").await.ok()?;
                loop {
                    sent += client.write(&chunk).await.ok()?;
                    taken.fetch_max(sent, Relaxed);
                }
                #[expect(unreachable_code, reason = "it gives the block a type")]
                Some(())
            });
        }
    });
    (address, most)
}

async fn serve(client: TcpStream, answer: Answer) -> Option<()> {
    client.set_nodelay(true).ok()?;
    let (reading, mut writing) = client.into_split();
    let mut reading = BufReader::new(reading);
    loop {
        let mut words = Vec::new();
        for _ in 0..number(&mut reading, '*').await? {
            let mut word = vec![0; number(&mut reading, '$').await? + 2];
            reading.read_exact(&mut word).await.ok()?;
            word.truncate(word.len() - 2);
            words.push(String::from_utf8_lossy(&word).into_owned());
        }
        writing.write_all(answer(&words).as_bytes()).await.ok()?;
    }
}

async fn number(reading: &mut (impl tokio::io::AsyncBufRead + Unpin), sign: char) -> Option<usize> {
    let mut line = String::new();
    reading.read_line(&mut line).await.ok()?;
    line.trim_end().strip_prefix(sign)?.parse().ok()
}

/// A list of integers, as bytes of the protocol.
pub fn integers(values: &[i64]) -> String {
    let values: String = values.iter().map(|value| format!(":{value}\r\n")).collect();
    format!("*{}\r\n{values}", values.matches(':').count())
}
