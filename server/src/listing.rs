//! What a configuration means, as text: `check`, `match` and the route `/config`.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;

use crate::config::{Config, Kind, Limit};

/// The limits of `config`, and what is probably a mistake.
pub(crate) fn of_config(config: &Config) -> String {
    let width = config.limits.iter().map(|limit| limit.path.chars().count()).max().unwrap_or(0);
    let limits = config.limits.iter().map(|limit| format!("{:width$}  {}\n", limit.path, of_limit(limit)));
    let warnings = config.warnings.iter().map(|warning| format!("warning: {warning}\n"));
    limits.chain(warnings).collect()
}

/// What `limit` does.
fn of_limit(limit: &Limit) -> String {
    let mut text = match &limit.kind {
        Kind::Unlimited => "unlimited".to_owned(),
        Kind::Blocked => "blocked".to_owned(),
        Kind::Counted(policy) => {
            let (settings, quota, name) = (policy.settings(), policy.quota(), policy.name());
            format!("{quota} by {}, policy `{name}`, {}", settings.algorithm.name(), settings.failure_mode)
        }
    };
    if limit.is_shadow {
        text.push_str(", shadow");
    }
    if let Some(name) = &limit.name {
        text.push_str(&format!(", name `{name}`"));
    }
    if !limit.replaces.is_empty() {
        text.push_str(&format!(", replaces `{}`", limit.replaces.join("`, `")));
    }
    text
}

/// The limit of the descriptor `entries` in `domain`, and whose counts it has.
pub(crate) fn of_descriptor(config: &Config, domain: &str, entries: &[Entry]) -> String {
    if !config.domains.contains_key(domain) {
        return format!("there is no domain `{domain}`: each call is OK\n");
    }
    let Some(found) = config.find(domain, entries) else {
        return "no descriptor with a limit matches: OK\n".to_owned();
    };
    let limit = format!("{}: {}\n", found.limit.path, of_limit(found.limit));
    match found.limit.kind {
        Kind::Counted(_) => format!("{limit}counted for the key `{}`\n", found.key().as_str()),
        _ => limit,
    }
}
