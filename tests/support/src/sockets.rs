//! What the system knows of the sockets of this host.

/// Whether each connection to the local port `to` has TCP keepalive, as `/proc/net/tcp` reports it.
pub fn keepalive_of_connections(to: u16) -> Vec<bool> {
    // The timer that runs: 2 is the one of keepalive.
    sockets(to, &[ESTABLISHED]).iter().map(|words| words[5].starts_with("02")).collect()
}

/// The addresses of the connections to the local port `to` that this process has not closed, although the other end may
/// have.
pub fn open_to(to: u16) -> Vec<String> {
    sockets(to, &[ESTABLISHED, CLOSE_WAIT]).into_iter().map(|mut words| words.swap_remove(1)).collect()
}

const ESTABLISHED: &str = "01";
const CLOSE_WAIT: &str = "08";

/// The lines about connections to the local port `to` in these states, in words.
fn sockets(to: u16, states: &[&str]) -> Vec<Vec<String>> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let words =
        table.lines().skip(1).map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    let to = format!(":{to:04X}");
    words.filter(|words| words[2].ends_with(&to) && states.contains(&&*words[3])).collect()
}
