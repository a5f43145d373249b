//! A server that speaks the Redis protocol and answers script calls as the test specifies.

use std::sync::Arc;

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
