//! Settings of the sockets to Redis.

use redis::io::tcp::TcpSettings;

/// Turns off Nagle's algorithm, which redis-rs leaves on. With it, a call that is sent while another one is under way
/// on the same connection waits until the server has acknowledged that one: up to one more round trip.
pub(crate) fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}
