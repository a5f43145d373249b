//! A connection that stays open: a limit for the messages of each connection, and one for all of a user's.

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};
use tower::BoxError;
use tower_ratelimit::{Charge, Key, Limiter, MemoryStore, Policy, Quota, store::ManualClock};

/// Answers each line with `ok`, or with the policy that denies it; after two denials the connection is closed.
async fn serve(limiter: Limiter, stream: TcpStream, connection: u64) -> Result<(), BoxError> {
    let mut lines = BufReader::new(stream);
    let mut user = String::new();
    lines.read_line(&mut user).await?;
    let charges = [
        Charge::new(&Policy::new("messages", Quota::per_second(1).burst(3)), &Key::new(connection), 1),
        Charge::new(&Policy::new("user-messages", Quota::per_minute(5)), &Key::new(user.trim()), 1),
    ];
    let (mut line, mut denials) = (String::new(), 0);
    while denials < 2 && lines.read_line(&mut line).await? > 0 {
        let decision = limiter.check_all(&charges).await?;
        let denied_by = decision.binding().filter(|_| !decision.is_admitted());
        denials += u32::from(denied_by.is_some());
        let answer = denied_by.map_or("ok", |outcome| outcome.policy().name()).to_owned() + "\n";
        lines.get_mut().write_all(answer.as_bytes()).await?;
        line.clear();
    }
    Ok(())
}

#[tokio::test]
async fn a_connection_and_its_user_are_limited_together() {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for connection in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(limiter.clone(), stream, connection));
        }
    });
    let answers = async |count| {
        let mut stream = BufReader::new(TcpStream::connect(address).await.unwrap());
        let lines = "alice\n".to_owned() + &"hello\n".repeat(count);
        stream.get_mut().write_all(lines.as_bytes()).await.unwrap();
        let (mut answers, mut line) = (Vec::new(), String::new());
        while answers.len() < count && stream.read_line(&mut line).await.unwrap_or(0) > 0 {
            answers.push(std::mem::take(&mut line).trim().to_owned());
        }
        answers
    };
    assert_eq!(answers(5).await, ["ok", "ok", "ok", "messages", "messages"]);
    // Three of the five of the user are used. The second denial closes the connection.
    assert_eq!(answers(5).await, ["ok", "ok", "user-messages", "user-messages"]);
}
