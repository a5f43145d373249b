use super::networks::Networks;

/// Matches the requests whose address is in one of several networks. Returned by
/// [`PeerIp::within`](crate::PeerIp::within) and [`ClientIp::within`](crate::ClientIp::within), for
/// [`RateLimitLayer::exempt`](crate::RateLimitLayer::exempt) and [`RateLimitLayer::block`](crate::RateLimitLayer::block).
///
/// The whole address counts, not its IPv6 network.
///
/// # If the address is not known
///
/// | case | exempt | banned |
/// |---|---|---|
/// | the server does not know its peers: [`MissingSetup`](crate::ErrorKind::MissingSetup) | no | rejected, 500 |
/// | a header of a single address is sent twice: [`InvalidIdentity`](crate::ErrorKind::InvalidIdentity) | no | rejected, 400 |
/// | [`ClientIp`](crate::ClientIp) [cannot determine](crate::ClientIp#requests-without-a-usable-header) the client, and the proxy's address is in the networks | no | rejected, 400 |
/// | the same, and the proxy's address is not in the networks | no | no |
///
/// # Example
///
/// ```
/// use std::net::SocketAddr;
/// use http::Request;
/// use tower_ratelimit::{key::RequestMatcher, PeerIp};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let from = |peer: &str| {
///     let peer: SocketAddr = peer.parse().unwrap();
///     Request::get("/").extension(peer).body(()).unwrap().into_parts().0
/// };
/// let ours = PeerIp::new().within(["10.0.0.0/8", "2001:db8::1"])?;
/// assert!(ours.matches(&from("10.1.2.3:80")).await?);
/// assert!(ours.matches(&from("[2001:db8::1]:80")).await?);
/// assert!(!ours.matches(&from("[2001:db8::2]:80")).await?);
///
/// let error = PeerIp::new().within(["10.0.0.0/33"]).unwrap_err();
/// assert_eq!(error.to_string(), "\"10.0.0.0/33\" is neither a network, such as 10.0.0.0/8, nor an address");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a matcher does nothing until a layer exempts or bans what it matches"]
pub struct Within<A> {
    pub(super) addresses: A,
    pub(super) networks: Networks,
}
