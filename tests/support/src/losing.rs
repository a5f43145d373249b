//! A connection that breaks after a command was carried out.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream},
};

/// The address of a proxy before the server at `port`. Where `loses` returns true for the bytes of a reply, the
/// proxy closes the connection instead of forwarding them.
pub async fn losing(port: u16, loses: impl Fn(&[u8]) -> bool + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let loses = loses.clone();
            tokio::spawn(async move {
                let server = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let commands = tokio::spawn(async move { copy(&mut from_client, &mut to_server).await });
                let mut bytes = vec![0; 65_536];
                while let Some(count @ 1..) = from_server.read(&mut bytes).await.ok()
                    && !loses(&bytes[..count])
                    && to_client.write_all(&bytes[..count]).await.is_ok()
                {}
                commands.abort();
                Some(())
            });
        }
    });
    address
}
