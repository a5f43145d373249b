//! The commands that ask the routers of instances.

use http::Method;
use serde_json::{Map, Value, json};
use tower_ratelimit_operate::answer::{AboutKey, AboutRequest, Explained, Networks};

use crate::{
    client::Client,
    encoded::encoded,
    failure::Failure,
    merged::Merged,
    options::{Command, Question},
    printed::{Printed, push_line},
    routers::{Routers, header},
};

/// More than an instance has.
const MOST_ENTRIES: usize = 10_000;

pub(crate) async fn ask(routers: &Routers, command: &Command, as_json: bool) -> Result<Printed, Failure> {
    let get = async |path: &str| routers.ask(&Method::GET, path, None).await;
    Ok(match command {
        Command::Why(question) => match question.asked()? {
            Asked::Key(key) => {
                let path = format!("/keys/{}?cost={}", encoded(key), question.cost);
                Merged::<AboutKey>::new(get(&path).await).map(Client::from).why(key, as_json)
            }
            Asked::Request(request) => {
                let answers = routers.ask(&Method::POST, "/explain", Some(&request)).await;
                let line = question.request.as_deref().unwrap_or_default();
                Merged::<AboutRequest>::new(answers).map(Client::from).why(line, as_json)
            }
        },
        Command::Recent(filter) => {
            Merged::new(get(&filter.path("recent", filter.limit)).await).recent(filter.limit, as_json)
        }
        Command::Top(filter) => {
            // A key that is not among the first of one instance may be one of the first of all.
            Merged::new(get(&filter.path("top", MOST_ENTRIES)).await).top(filter.limit, as_json)
        }
        Command::Policies => Merged::new(get("/policies").await).policies(as_json),
        Command::Unlock { policy, key } => unlock(routers, policy, key, as_json).await?,
        Command::Block { network, time, reason } => {
            let mut body = json!({ "reason": reason });
            if let Some(time) = time {
                body["seconds"] = json!(time.as_secs() + u64::from(time.subsec_nanos() > 0));
            }
            change(routers, &Method::PUT, network, Some(&body), as_json).await
        }
        Command::Unblock { network } => change(routers, &Method::DELETE, network, None, as_json).await,
        Command::Blocklist => {
            let merged = Merged::<Networks>::new(get("/blocklist").await);
            let is_incomplete = merged.has_error();
            merged.blocklist(as_json).failed_if(is_incomplete)
        }
        Command::Acl => Merged::new(get("/acl").await).acl(as_json),
        Command::Probe => Merged::new(get("/probe").await).probe(as_json),
        _ => {
            let message = "with --url, the commands are why, top, recent, policies, unlock, block, unblock, blocklist, acl and \
                           probe: leave it out to work on Redis";
            return Err(Failure::Usage(message.to_owned()));
        }
    })
}

/// Unlocks a key on all instances, which also ends what each of them counts in its memory, and prints its state.
async fn unlock(routers: &Routers, policy: &str, key: &str, as_json: bool) -> Result<Printed, Failure> {
    if policy.is_empty() || key.is_empty() {
        return Err(Failure::Usage(
            "the policy or the key is empty: write `%` for the empty identity".to_owned(),
        ));
    }
    let path = format!("/policies/{}/keys/{}", encoded(policy), encoded(key));
    let changed = routers.ask(&Method::POST, &format!("{path}/unlock"), Some(&json!({}))).await;
    let mut failed = String::new();
    for (instance, answer) in &changed {
        if let Err(error) = answer {
            push_line(&mut failed, &format!("error: {instance}: {error}"));
        }
    }
    let done = |instance: &str| changed.iter().any(|(other, answer)| other == instance && answer.is_ok());
    let (mut states, mut unknown) = (Vec::new(), String::new());
    // Nothing was changed if all have failed.
    let answers = if changed.iter().any(|(_, answer)| answer.is_ok()) {
        routers.ask(&Method::GET, &path, None).await
    } else {
        Vec::new()
    };
    for (instance, answer) in answers.into_iter().filter(|(instance, _)| done(instance)) {
        match answer {
            Ok(state) => states.push((instance, Ok(state))),
            Err(error) => {
                push_line(&mut unknown, &format!("{instance}: done; its state is unknown: {error}"))
            }
        }
    }
    let mut printed = Merged::<Explained>::new(states).map(Client::from).why(key, as_json);
    printed.complaints.push_str(&unknown);
    printed.complaints.push_str(&failed);
    printed.is_failed = !failed.is_empty();
    Ok(printed)
}

/// Changes the blocklists of all instances, and lists what is blocked then.
async fn change(
    routers: &Routers,
    method: &Method,
    network: &str,
    body: Option<&Value>,
    as_json: bool,
) -> Printed {
    let path = format!("/blocklist/{}", encoded(network));
    let changed = routers.ask(method, &path, body).await;
    let is_changed = changed.iter().any(|(_, answer)| answer.is_ok());
    // Instances with one list: the first one has changed it for the others.
    let is_done = |error: &String| is_changed && error.contains("not in the blocklist");
    let mut failed = String::new();
    for (instance, answer) in &changed {
        if let Err(error) = answer
            && !is_done(error)
        {
            push_line(&mut failed, &format!("error: {instance}: {error}"));
        }
    }
    let mut printed = Printed::default();
    if is_changed {
        printed = Merged::new(routers.ask(&Method::GET, "/blocklist", None).await).blocklist(as_json);
    }
    printed.is_failed |= !failed.is_empty();
    printed.complaints.insert_str(0, &failed);
    printed
}

/// Whom a question is about.
enum Asked<'a> {
    Key(&'a str),
    Request(Value),
}

impl Question {
    fn asked(&self) -> Result<Asked<'_>, Failure> {
        match (&self.key, &self.request) {
            (Some(key), _) if key.is_empty() => {
                Err(Failure::Usage("the key is empty: write `%` for the empty identity".to_owned()))
            }
            (Some(key), _) => Ok(Asked::Key(key)),
            (None, Some(line)) => Ok(Asked::Request(self.described(line)?)),
            (None, None) => Err(Failure::Usage("name a key, or a request with --request".to_owned())),
        }
    }

    /// The request, as `POST /explain` takes it.
    fn described(&self, line: &str) -> Result<Value, Failure> {
        let (method, path) = line.trim().split_once(' ').unwrap_or_else(|| ("GET", line.trim()));
        let mut headers = Map::new();
        for line in &self.headers {
            let (name, value) = header(line)?;
            let value = value.to_str().map_err(|_| Failure::Usage("a header is not ASCII".to_owned()))?;
            let values = headers.entry(name.as_str().to_owned()).or_insert_with(|| json!([]));
            if let Some(values) = values.as_array_mut() {
                values.push(json!(value));
            }
        }
        let mut request = json!({"method": method, "path": path.trim(), "headers": headers});
        if let Some(address) = &self.address {
            request["address"] = json!(address);
        }
        Ok(request)
    }
}
