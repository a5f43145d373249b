//! The list form of drafts 08 to 11: `RateLimit-Policy: "burst";q=100;w=60`, `RateLimit: "burst";r=50;t=30`.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderValue};

use super::{
    headers::Headers,
    names::RATELIMIT,
    window::{digits, effective_window},
};
use crate::{decision::Outcome, policy::Policy, response::wait::seconds_up};

/// Whether the service has sent the dictionary of draft 07: followed by a list, it would be neither.
pub(super) fn has_dictionary(headers: &HeaderMap) -> bool {
    // Nearly no response has the header, and `get_all` takes three times as many instructions to find none.
    headers.contains_key(RATELIMIT) && headers.get_all(RATELIMIT).iter().any(is_dictionary)
}

/// Whether it begins as an RFC 9651 Dictionary with a value does, `limit=100`, and no List of Items.
fn is_dictionary(value: &HeaderValue) -> bool {
    let first = value.as_bytes().split(|byte| b";,\"".contains(byte)).next();
    first.is_some_and(|first| first.contains(&b'='))
}

/// `"burst";q=100;w=60`
pub(super) fn policy_item(policy: &Policy) -> String {
    let mut buffer = itoa::Buffer::new();
    let limit = digits(&mut buffer, policy.quota().limit());
    let window = if policy.has_permits() {
        // The period of its quota is how long a permit is kept, and no window.
        ";qu=\"concurrent-requests\"".into()
    } else {
        window(policy)
    };
    let unit = if policy.counts_bytes() { ";qu=\"content-bytes\"" } else { "" };
    [policy.quoted_name(), ";q=", limit, unit, &window].concat()
}

/// `;w=60`. A window below a second is left out.
pub(super) fn window(policy: &Policy) -> String {
    let period = policy.quota().period();
    if period < Duration::from_secs(1) || policy.has_permits() {
        return String::new();
    }
    [";w=", digits(&mut itoa::Buffer::new(), seconds_up(period))].concat()
}

const R: &str = ";r=";
const T: &str = ";t=";

/// `"burst";r=50;t=30`, in one allocation of exactly its length, which the header then keeps.
pub(super) fn limit_item(outcome: &Outcome, denied: bool, latest: u64, headers: &Headers) -> String {
    let [mut remaining, mut seconds] = [itoa::Buffer::new(); 2];
    let name = outcome.policy().quoted_name();
    let remaining = digits(&mut remaining, outcome.remaining());
    let window = effective_window(outcome, denied).filter(|seconds| *seconds <= latest);
    let seconds = window.map_or("", |window| digits(&mut seconds, window));
    let partition = headers.partition_key.as_ref().map(|secret| {
        // 96 bits are whole groups of base64, without padding.
        let mac = secret.mac(outcome.key().as_str());
        [";pk=:", &STANDARD.encode(&mac[..12]), ":"].concat()
    });
    let partition = partition.as_deref().unwrap_or_default();
    let t = if seconds.is_empty() { 0 } else { T.len() + seconds.len() };
    // Not `concat`, which takes twice as many instructions: every response has this.
    let mut item = String::with_capacity(name.len() + R.len() + remaining.len() + t + partition.len());
    item.push_str(name);
    item.push_str(R);
    item.push_str(remaining);
    if t > 0 {
        item.push_str(T);
        item.push_str(seconds);
    }
    item.push_str(partition);
    item
}
