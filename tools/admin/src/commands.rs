//! The commands. Each returns the text to print.

use std::{cmp::Reverse, time::Duration};

use serde_json::{Value, json};
use tower_ratelimit::{
    Decision, Error, ErrorKind, Key, Limiter, Policy, RedisStore,
    decision::{Outcome, Verdict},
};
use tower_ratelimit_operate::{
    answer::AboutKey, config::PolicySummary, explain::Explanation, live::LivePolicies,
};

use crate::{
    blocklist,
    client::Client,
    connect::connect,
    failure::{Failure, in_options, text_of},
    instances,
    merged::Merged,
    options::{Command, Options, Question},
    printed::{Printed, text},
    routers::Routers,
    span::span,
    stored::{is_charged, note, other_names},
    table::table,
};

pub(crate) async fn run(options: Options) -> Result<Printed, Failure> {
    if let Some(secret) = &options.digest_secret {
        Key::set_digest_secret(secret)?;
    }
    if let Some(routers) = Routers::of(&options)? {
        return instances::ask(&routers, &options.command, options.json).await;
    }
    if matches!(options.command, Command::Top(_) | Command::Recent(_)) {
        return Err(Failure::Usage(
            "denials are recorded by the instances: name their routers with --url, or in the variable RATELIMIT_URL"
                .to_owned(),
        ));
    }
    if matches!(options.command, Command::Probe) {
        return probe(&connect(&options, true).await?, options.json).await;
    }
    if matches!(options.command, Command::Acl) {
        let store = connect(&options, true).await?;
        let _hash = options.live.then(|| store.hash("policies"));
        return Ok((store.acl_rule() + "\n").into());
    }
    if matches!(options.command, Command::Block { .. } | Command::Unblock { .. } | Command::Blocklist) {
        let store = connect(&options, false).await?;
        let warning = unused_prefix(&store).await;
        let printed = blocklist::run(&store, &options.command, options.json).await?;
        return Ok(printed.with_warning(&warning));
    }
    let file = options.policies.as_ref().ok_or_else(|| {
        let message = "name the policies with --policies FILE, or in the variable RATELIMIT_POLICIES";
        let or_routers = if options.command.asks_routers() {
            "; or the routers of running instances with --url"
        } else {
            ""
        };
        Failure::Usage(format!("{message}{or_routers}"))
    })?;
    let mut policies = LivePolicies::file(file)?;
    if matches!(options.command, Command::Policies) && !options.live {
        return Ok(list(&policies.current(), options.json).into());
    }
    let store = connect(&options, false).await?;
    let warning = unused_prefix(&store).await;
    if options.live {
        policies = LivePolicies::redis(&store, policies.current()).await?;
        if let Some(error) = policies.last_error() {
            return Err(error.into());
        }
    }
    let admin = Admin {
        limiter: Limiter::new(store.clone()),
        store,
        policies: policies.current(),
        json: options.json,
    };
    let text = match options.command {
        Command::Why(question) => return Ok(admin.why(&question).await?.with_warning(&warning)),
        // Done above.
        Command::Acl
        | Command::Probe
        | Command::Top(_)
        | Command::Recent(_)
        | Command::Block { .. }
        | Command::Unblock { .. }
        | Command::Blocklist => Ok(String::new()),
        Command::Policies => Ok(list(&admin.policies, admin.json)),
        Command::Show { policy, key, cost } => admin.show(&policy, &key, cost).await,
        Command::Unlock { policy, key } => admin.unlock(&policy, &key).await,
        Command::Reset { policy, key } => admin.reset(&policy, &key).await,
        Command::Refund { policy, key, units } => admin.refund(&policy, &key, units).await,
        Command::Ban { policy, key, time } => admin.ban(&policy, &key, time).await,
        Command::Unban { policy, key } => admin.unban(&policy, &key).await,
        Command::Bans { policy } => admin.bans(policy.as_deref()).await,
        Command::Keys { policy, scan, limit } => admin.keys(policy.as_deref(), scan, limit).await,
    };
    Ok(Printed::from(text?).with_warning(&warning))
}

/// A warning if no instance uses the prefix. The command works nevertheless, because an instance without requests is
/// not seen, and one may start later.
async fn unused_prefix(store: &RedisStore) -> String {
    if store.announced_instances().await != Some(0) {
        return String::new();
    }
    format!(
        "warning: no instance has used the limits under the prefix `{}` in the last 15 seconds: if your service has had \
         requests, name its prefix with --prefix, or in the variable RATELIMIT_PREFIX\n",
        store.prefix()
    )
}

/// Whether the server can make the decisions.
async fn probe(store: &RedisStore, as_json: bool) -> Result<Printed, Failure> {
    let report = store.probe().await?;
    let json = json!({
        "can_decide": report.can_decide(),
        "findings": report.findings().map(in_options).collect::<Vec<_>>(),
        "report": in_options(&report.to_string()),
    });
    let text = if as_json { text(&json) } else { in_options(&report.to_string()) + "\n" };
    Ok(Printed { text, is_failed: !report.can_decide(), ..Printed::default() })
}

struct Admin {
    store: RedisStore,
    limiter: Limiter,
    policies: Vec<Policy>,
    json: bool,
}

impl Admin {
    /// The key under all policies.
    async fn why(&self, question: &Question) -> Result<Printed, Failure> {
        let Some(key) = &question.key else {
            return Err(Failure::Usage(
                "a request is explained by the layers of an instance: name its router with --url".to_owned(),
            ));
        };
        let stored = Key::from_stored(key)?;
        let (mut explanations, mut errors) = (Vec::new(), Vec::new());
        for policy in &self.policies {
            match self.explain(policy, &stored, question.cost).await {
                Ok(explanation) => explanations.push(explanation),
                // The other policies are decided.
                Err(error) if error.kind() == ErrorKind::ForeignValue => {
                    errors.push(
                        json!({"policy": policy.name(), "key": stored.as_str(), "detail": text_of(&error)}),
                    );
                }
                Err(error) => return Err(error.into()),
            }
        }
        // The policies are decided even if the list cannot be read.
        let (blocked, error) = match blocklist::of(&self.store, key).await {
            Ok((blocked, error)) => (blocked, error),
            Err(failure) => (Vec::new(), Some(failure.to_string())),
        };
        errors.extend(error.map(|error| json!({"policy": null, "key": key, "detail": error})));
        let verdict = match (blocked.is_empty(), errors.is_empty()) {
            (false, _) => json!("rejected"),
            (true, false) => json!("unknown"),
            // The states below say the rest.
            (true, true) => json!("admitted"),
        };
        let answer =
            json!({"verdict": verdict, "explanations": explanations, "errors": errors, "blocked": blocked});
        let answers = vec![("Redis".to_owned(), Ok(answer))];
        Ok(Merged::<AboutKey>::new(answers).map(Client::from).why(key, self.json))
    }

    async fn show(&self, policy: &str, key: &str, cost: u64) -> Result<String, Failure> {
        let (policy, key) = self.target(policy, key)?;
        let explanation = self.explain(policy, &key, cost).await?;
        let shown = self.shown(&explanation);
        Ok(if is_charged(&explanation) { shown } else { self.with_note(shown, policy, &key).await })
    }

    async fn unlock(&self, policy: &str, key: &str) -> Result<String, Failure> {
        let (policy, key) = self.target(policy, key)?;
        self.forget(policy, &key, async || self.limiter.operator().unlock(policy, &key).await).await
    }

    async fn reset(&self, policy: &str, key: &str) -> Result<String, Failure> {
        let (policy, key) = self.target(policy, key)?;
        self.forget(policy, &key, async || self.limiter.operator().reset(policy, &key).await).await
    }

    /// Makes a change that removes what was charged to a key.
    async fn forget(
        &self,
        policy: &Policy,
        key: &Key,
        change: impl AsyncFnOnce() -> Result<(), Error>,
    ) -> Result<String, Failure> {
        // The change also removes a value that cannot be read.
        let before = self.explain(policy, key, 1).await;
        change().await.map_err(Failure::of_change)?;
        let state = self.state_after_change(policy, key).await;
        Ok(if before.is_ok_and(|before| !is_charged(&before)) {
            self.with_note(state, policy, key).await
        } else {
            state
        })
    }

    async fn refund(&self, policy: &str, key: &str, units: u64) -> Result<String, Failure> {
        let (policy, key) = self.target(policy, key)?;
        if policy.has_permits() {
            return Err(Failure::Usage(
                "permits are not refunded, their holders release them: `reset` releases all of them"
                    .to_owned(),
            ));
        }
        let refunded = self.limiter.operator().refund_latest(policy, &key, units).await;
        refunded.and_then(decided).map_err(Failure::of_change)?;
        Ok(self.state_after_change(policy, &key).await)
    }

    async fn ban(&self, policy: &str, key: &str, time: Duration) -> Result<String, Failure> {
        let (policy, key) = self.target(policy, key)?;
        self.limiter.operator().ban(policy, &key, time).await.map_err(Failure::of_change)?;
        Ok(self.state_after_change(policy, &key).await)
    }

    async fn unban(&self, policy: &str, key: &str) -> Result<String, Failure> {
        let (policy, key) = self.target(policy, key)?;
        self.limiter.operator().unban(policy, &key).await.map_err(Failure::of_change)?;
        Ok(self.state_after_change(policy, &key).await)
    }

    async fn bans(&self, policy: Option<&str>) -> Result<String, Failure> {
        let policies: Vec<&Policy> = match policy {
            Some(name) => vec![self.policy(name)?],
            None => self.policies.iter().filter(|policy| policy.settings().penalty.is_some()).collect(),
        };
        let (mut bans, mut is_complete) = (Vec::new(), true);
        for policy in policies {
            let banned = self.limiter.operator().bans(policy).await?;
            is_complete &= banned.is_complete;
            bans.extend(banned.bans.into_iter().map(|(key, rest)| (policy.name(), key, rest)));
        }
        // Stable, so bans of the same length stay in the order of the policies and the keys.
        bans.sort_by_key(|(.., rest)| Reverse(*rest));
        if self.json {
            let bans = bans.iter().map(|(policy, key, rest)| {
                json!({
                    "policy": policy,
                    "key": key.as_str(),
                    "identity": key.identity(),
                    "banned_for": rest.as_secs_f64(),
                })
            });
            return Ok(text(&json!({ "bans": bans.collect::<Vec<_>>(), "is_complete": is_complete })));
        }
        let row = |(policy, key, rest): &(&str, Key, Duration)| {
            vec![(*policy).to_owned(), key.as_str().to_owned(), span(*rest)]
        };
        let rows: Vec<Vec<String>> = bans.iter().map(row).collect();
        let others = if is_complete { "" } else { "; there may be others" };
        Ok(table(&["POLICY", "KEY", "BANNED FOR"], &rows) + &number(rows.len()) + others + "\n")
    }

    async fn keys(&self, policy: Option<&str>, scan: usize, limit: usize) -> Result<String, Failure> {
        let policies = match policy {
            Some(name) => vec![self.policy(name)?.clone()],
            None => self.policies.clone(),
        };
        let found = self.limiter.operator().keys(&policies, scan).await?;
        let keys = found.keys;
        let mut states = Vec::with_capacity(limit.min(keys.len()));
        for (place, key) in keys.iter().take(limit) {
            let policy = &policies[*place];
            states.push(match self.explain(policy, key, 1).await {
                Err(error) if error.kind() != ErrorKind::ForeignValue => return Err(error.into()),
                explained => (policy, key, explained),
            });
        }
        if self.json {
            let of_key =
                |(policy, key, explained): &(&Policy, &Key, Result<Explanation, Error>)| match explained {
                    Ok(explanation) => json!(explanation.charges()[0]),
                    Err(error) => json!({
                        "policy": PolicySummary::of(policy),
                        "key": key.as_str(),
                        "identity": key.identity(),
                        "stored_as": self.limiter.operator().stored_name(policy, key),
                        "error": text_of(error),
                    }),
                };
            return Ok(text(&json!({
                "keys": states.iter().map(of_key).collect::<Vec<_>>(),
                "found": keys.len(),
                "others": found.others,
                "is_complete": found.is_complete,
            })));
        }
        let rows = states.iter().map(|(policy, key, explained)| {
            let known = explained.as_ref().ok().and_then(|explanation| explanation.charges()[0].outcome());
            row(policy, key, known)
        });
        let rows: Vec<Vec<String>> = rows.collect();
        let mut text = table(&["POLICY", "KEY", "REMAINING", "RESET", "A REQUEST OF 1 UNIT"], &rows);
        text.push_str(&format!("{} of {}", rows.len(), number(keys.len())));
        if found.others > 0 {
            text.push_str(&format!("; other names under the prefix: {}", found.others));
        }
        if !found.is_complete {
            text.push_str("; only a part of Redis was looked at: raise --scan");
        }
        if states.iter().any(|(.., explained)| explained.is_err()) {
            text.push_str("; ?: the limiter did not write the value");
        }
        Ok(text + "\n")
    }

    fn policy(&self, name: &str) -> Result<&Policy, Failure> {
        self.policies.iter().find(|policy| policy.name() == name).ok_or_else(|| {
            let names: Vec<_> = self.policies.iter().map(|policy| format!("`{}`", policy.name())).collect();
            // A URL in the wrong place, perhaps with a password.
            let named =
                if name.contains("://") { "whose name is a URL".to_owned() } else { format!("`{name}`") };
            Failure::Usage(format!("there is no policy {named}; the policies: {}", names.join(", ")))
        })
    }

    fn target(&self, policy: &str, key: &str) -> Result<(&Policy, Key), Failure> {
        Ok((self.policy(policy)?, Key::from_stored(key)?))
    }

    fn shown(&self, explanation: &Explanation) -> String {
        if self.json { text(explanation) } else { explanation.to_string() }
    }

    /// `shown` of a key without a charge, with the names of those that have one.
    async fn with_note(&self, shown: String, policy: &Policy, key: &Key) -> String {
        let names = other_names(&self.limiter, policy, key).await;
        if !self.json {
            let name = self.limiter.operator().stored_name(policy, key).unwrap_or_default();
            return shown + &note(&name, &names);
        }
        let Ok(Value::Object(mut shown)) = serde_json::from_str(&shown) else { return shown };
        shown.insert("is_charged".to_owned(), json!(false));
        shown.insert("charged_names".to_owned(), json!(names));
        text(&shown)
    }

    /// The state of a key that was just changed. The change is made, even if its state cannot be read.
    async fn state_after_change(&self, policy: &Policy, key: &Key) -> String {
        match self.explain(policy, key, 1).await {
            Ok(explanation) => self.shown(&explanation),
            Err(error) if self.json => text(&json!({ "done": true, "error": text_of(&error) })),
            Err(error) => format!("done; its state is unknown: {}\n", text_of(&error)),
        }
    }

    async fn explain(&self, policy: &Policy, key: &Key, cost: u64) -> Result<Explanation, Error> {
        let explanation = Explanation::of(&self.limiter, policy, key, cost).await?;
        decided(explanation.decision().clone())?;
        Ok(explanation)
    }
}

/// The decision of Redis. Fails if this process would count in its place.
fn decided(decision: Decision) -> Result<Decision, Error> {
    match decision.failure() {
        Some(error) => Err(error.clone()),
        None => Ok(decision),
    }
}

fn list(policies: &[Policy], as_json: bool) -> String {
    let warnings = policies.iter().flat_map(Policy::warnings);
    if as_json {
        return text(&json!({
            "policies": policies.iter().map(PolicySummary::of).collect::<Vec<_>>(),
            "warnings": warnings.collect::<Vec<_>>(),
        }));
    }
    let row = |policy: &Policy| vec![policy.name().to_owned(), policy.to_string()];
    let mut text = table(&["POLICY", "SETTINGS"], &policies.iter().map(row).collect::<Vec<_>>());
    warnings.for_each(|warning| text.push_str(&format!("warning: {warning}\n")));
    text
}

fn row(policy: &Policy, key: &Key, outcome: Option<&Outcome>) -> Vec<String> {
    let (remaining, reset, verdict) = match outcome {
        None => ("?".to_owned(), "?".to_owned(), "?".to_owned()),
        Some(outcome) => (
            format!("{} of {}", outcome.remaining(), outcome.policy().capacity()),
            span(outcome.reset_after()),
            match outcome.verdict() {
                _ if outcome.banned_for().is_some() => {
                    format!("banned for {}", span(outcome.banned_for().unwrap_or_default()))
                }
                Verdict::Admit => "admitted".to_owned(),
                Verdict::Delay(delay) => format!("admitted after {}ms", delay.as_millis()),
                Verdict::Deny { retry_after: Some(wait), .. } => {
                    format!("denied, admitted in {}", span(wait))
                }
                _ => "denied".to_owned(),
            },
        ),
    };
    vec![policy.name().to_owned(), key.as_str().to_owned(), remaining, reset, verdict]
}

fn number(keys: usize) -> String {
    format!("{keys} key{}", if keys == 1 { "" } else { "s" })
}
