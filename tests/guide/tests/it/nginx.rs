//! The nginx configuration of the guide to client addresses, in front of a service.

use std::{fs, net::SocketAddr, process::Stdio};

use axum::{Router, routing::get};
use http::request::Parts;
use support::{Directory, eventually, http::serve};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    process::{Child, Command},
};
use tower_ratelimit::{ClientIp, MemoryStore, Policy, Quota, RateLimitLayer, key::TrustedProxies};

/// nginx with the block of the guide.
struct Nginx {
    address: SocketAddr,
    _process: Child,
    _directory: Directory,
}

impl Nginx {
    /// In front of `service`. `edit` changes the block.
    async fn start(service: SocketAddr, edit: impl Fn(String) -> String) -> Self {
        let guide = include_str!("../../../../src/guide/client_ip.md");
        let block = guide.split("```nginx\n").nth(1).unwrap().split("```").next().unwrap();
        let listen = TcpListener::bind("127.0.0.9:0").await.unwrap().local_addr().unwrap();
        assert!(block.contains("listen 80;") && block.contains("127.0.0.1:3000"));
        let block = block
            .replace("listen 80;", &format!("listen {listen};"))
            .replace("127.0.0.1:3000", &service.to_string());

        let directory = Directory::new();
        let path = |name: &str| directory.file(name).to_str().unwrap().to_owned();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {};", path(kind)))
            .concat();
        // One process, which ends with the test.
        let configuration = format!(
            "daemon off; master_process off; pid {}; error_log stderr; events {{}}\n\
             http {{ access_log off; {temporary}\n{} }}",
            path("pid"),
            edit(block)
        );
        fs::write(directory.file("nginx.conf"), configuration).unwrap();
        let program = if fs::exists("/usr/sbin/nginx").unwrap() { "/usr/sbin/nginx" } else { "nginx" };
        let process = Command::new(program)
            .args(["-p", &path("."), "-c", &path("nginx.conf"), "-e", "stderr"])
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .expect("nginx on the PATH: .ci/get-nginx installs it");
        assert!(eventually(async || TcpStream::connect(listen).await.is_ok()).await, "nginx does not listen");
        Self { address: listen, _process: process, _directory: directory }
    }
}

/// A request from the address `from`, with these header lines. Returns the status and the body.
async fn get_from(from: [u8; 4], to: SocketAddr, headers: &str) -> (u16, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    let mut stream = socket.connect(to).await.unwrap();
    let request = format!("GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    let status = response.split(' ').nth(1).unwrap().parse().unwrap();
    (status, response.split("\r\n\r\n").nth(1).unwrap().to_owned())
}

fn client() -> ClientIp {
    ClientIp::behind(TrustedProxies::cidrs(["127.0.0.1"]).unwrap())
}

const CLIENT: [u8; 4] = [127, 0, 0, 77];

/// What clients send to be counted as another one.
const SPOOFED: [(&str, &str); 9] = [
    ("nothing", ""),
    ("an address", "x-forwarded-for: 192.0.2.1\r\n"),
    ("another address", "x-forwarded-for: 192.0.2.2\r\n"),
    ("a list that ends with the proxy", "x-forwarded-for: 192.0.2.1, 127.0.0.1\r\n"),
    ("two lines", "x-forwarded-for: 192.0.2.1\r\nx-forwarded-for: 192.0.2.2\r\n"),
    ("no address", "x-forwarded-for: unknown, \"\r\n"),
    ("x-real-ip", "x-real-ip: 192.0.2.1\r\n"),
    ("forwarded", "forwarded: for=192.0.2.1\r\n"),
    ("a header of a CDN", "cf-connecting-ip: 192.0.2.1\r\n"),
];

#[tokio::test]
async fn behind_nginx_a_client_is_counted_by_its_address_and_not_by_what_it_sends() {
    let limit =
        RateLimitLayer::new(MemoryStore::new(), Policy::new("per-client", Quota::per_day(20)), client());
    let address = get(async |request: Parts| client().address(&request).unwrap().to_string());
    let service = serve(Router::new().route("/", address.layer(limit))).await;
    let nginx = Nginx::start(service, |block| block).await;

    for (name, headers) in SPOOFED {
        let (status, address) = get_from(CLIENT, nginx.address, headers).await;
        println!("{name:32} -> {status} {address}");
        assert_eq!((status, &*address), (200, "127.0.0.77"), "{name}");
        // Past nginx, the header is ignored.
        let (status, address) = get_from(CLIENT, service, headers).await;
        assert_eq!((status, &*address), (200, "127.0.0.77"), "{name}, past nginx");
    }
    // 18 of 20.
    for (headers, status) in
        [(SPOOFED[1].1, 200), (SPOOFED[2].1, 200), (SPOOFED[3].1, 429), (SPOOFED[4].1, 429)]
    {
        assert_eq!(get_from(CLIENT, nginx.address, headers).await.0, status);
    }
    assert_eq!(get_from([127, 0, 0, 78], nginx.address, "").await, (200, "127.0.0.78".into()));
}

/// Why the guide has the line.
#[tokio::test]
async fn without_its_header_line_nginx_passes_on_what_the_client_sends() {
    let address = get(async |request: Parts| client().address(&request).unwrap().to_string());
    let service = serve(Router::new().route("/", address)).await;
    let without = |block: String| {
        let lines = block.lines().filter(|line| !line.contains("proxy_set_header"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let nginx = Nginx::start(service, without).await;
    assert_eq!(get_from(CLIENT, nginx.address, SPOOFED[1].1).await.1, "192.0.2.1");
    // All clients are the proxy.
    assert_eq!(get_from(CLIENT, nginx.address, "").await.1, "127.0.0.1");
}
