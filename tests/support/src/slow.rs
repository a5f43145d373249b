//! A server that is far away.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream},
    time::sleep,
};

/// The address of the server at `port`, whose every reply takes as many milliseconds longer as `delay` returns.
pub async fn far(port: u16, delay: impl Fn() -> u64 + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let delay = delay.clone();
            tokio::spawn(async move {
                let server = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                tokio::spawn(async move { copy(&mut from_client, &mut to_server).await });
                let mut bytes = vec![0; 65_536];
                while let count @ 1.. = from_server.read(&mut bytes).await.ok()? {
                    sleep(Duration::from_millis(delay())).await;
                    to_client.write_all(&bytes[..count]).await.ok()?;
                }
                Some(())
            });
        }
    });
    address
}

/// Numbers in `range` that look random and are the same in each run.
pub fn jitter(range: Range<u64>) -> impl Fn() -> u64 + Clone {
    let state = Arc::new(AtomicU64::new(1));
    move || {
        // The finalizer of SplitMix64.
        let number = state.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        range.start + (number ^ (number >> 31)) % (range.end - range.start)
    }
}
