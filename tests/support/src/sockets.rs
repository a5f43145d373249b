//! What the system knows of the sockets of this host.

/// Whether each connection to the local port `to` has TCP keepalive, as `/proc/net/tcp` reports it.
pub fn keepalive_of_connections(to: u16) -> Vec<bool> {
    const ESTABLISHED: &str = "01";
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let words = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let to = format!(":{to:04X}");
    let connections = words.filter(|words| words[2].ends_with(&to) && words[3] == ESTABLISHED);
    // The timer that runs: 2 is the one of keepalive.
    connections.map(|words| words[5].starts_with("02")).collect()
}
