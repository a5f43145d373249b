//! A server process, and what tests ask it.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use envoy_types::pb::{
    envoy::{
        extensions::common::ratelimit::v3::{
            RateLimitDescriptor,
            rate_limit_descriptor::{Entry, RateLimitOverride},
        },
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse,
            rate_limit_response::{DescriptorStatus, rate_limit::Unit},
            rate_limit_service_client::RateLimitServiceClient,
        },
    },
    google::protobuf::UInt64Value,
};
use serde_json::Value;
use support::{Directory, RedisServer, eventually, http::Client};
use tonic::{Request, Status, transport::Channel};

/// The command with `words`, and nothing of this process's environment that it reads.
pub(crate) fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ratelimit-server"));
    for name in ["REDIS_URL", "RATELIMIT_TOKEN", "RATELIMIT_PREFIX", "RATELIMIT_POLICIES", "RUST_LOG"] {
        command.env_remove(name);
    }
    command.args(words);
    command
}

/// What the command prints, with its exit code, standard output and standard error.
pub(crate) fn run(words: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command(words).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// A configuration in a directory.
pub(crate) struct Files(Directory);

impl Files {
    /// One file.
    pub(crate) fn new(text: &str) -> Self {
        let files = Self(Directory::new());
        fs::create_dir(files.directory()).unwrap();
        files.write("limits.yaml", text);
        files
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.0.file("limits")
    }

    pub(crate) fn path(&self) -> String {
        self.directory().display().to_string()
    }

    /// Replaces a file of the configuration.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.directory().join(name), text).unwrap();
    }

    /// Writes a file beside the configuration, and returns its path.
    pub(crate) fn beside(&self, name: &str, text: &str) -> String {
        let path = self.0.file(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

/// A server process, which ends with the value.
pub(crate) struct Server {
    child: Child,
    pub(crate) calls: SocketAddr,
    pub(crate) operators: SocketAddr,
    log: Arc<Mutex<String>>,
}

impl Server {
    /// A server that counts in Redis, and waits for its decisions.
    pub(crate) async fn start(files: &Files, redis: &RedisServer, options: &[&str]) -> Self {
        let url = redis.url();
        let patient: &[&str] = if options.contains(&"--deadline") { &[] } else { &["--deadline", "20s"] };
        let server = Self::begin(files, &[&["--redis", &url], patient, options].concat(), &[]);
        server.is_ready(true).await;
        server
    }

    /// A server that counts in its memory.
    pub(crate) async fn alone(files: &Files, options: &[&str]) -> Self {
        let server = Self::begin(files, &[&["--memory"], options].concat(), &[]);
        server.is_ready(true).await;
        server
    }

    /// A server that listens. It may not be ready yet.
    pub(crate) fn begin(files: &Files, options: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = command(&["serve", &files.path()]);
        let defaults =
            [("--listen", "127.0.0.1:0"), ("--operators", "127.0.0.1:0"), ("--shutdown-delay", "0s")];
        for (name, value) in defaults.iter().filter(|(name, _)| !options.contains(name)) {
            command.args([name, value]);
        }
        command.args(["--log", "json"]).args(options).envs(environment.iter().copied());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = Arc::new(Mutex::new(String::new()));
        let mut listening = None;
        while listening.is_none() {
            let line =
                lines.next().unwrap_or_else(|| panic!("it has ended: {}", log.lock().unwrap())).unwrap();
            let fields = serde_json::from_str::<Value>(&line).ok().map(|line| line["fields"].clone());
            listening = fields.filter(|fields| fields["message"] == "listening");
            log.lock().unwrap().push_str(&format!("{line}\n"));
        }
        let of = |name: &str| listening.as_ref().unwrap()[name].as_str().unwrap().parse().unwrap();
        let (calls, operators) = (of("calls"), of("operators"));
        let rest = log.clone();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                rest.lock().unwrap().push_str(&format!("{line}\n"));
            }
        });
        Self { child, calls, operators, log }
    }

    /// Waits until the route for readiness says so.
    pub(crate) async fn is_ready(&self, ready: bool) {
        let all = eventually(async || (self.get("/ready").await.0 == 200) == ready).await;
        assert!(all, "{}", self.log());
    }

    /// The status and the body of a page for operators.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let response = Client::new().get(&format!("http://{}{path}", self.operators)).await;
        (response.status().as_u16(), response.into_body())
    }

    /// The value of a metric with its labels, as the exporter prints them.
    pub(crate) async fn metric(&self, name: &str) -> Option<f64> {
        let page = self.get("/metrics").await.1;
        page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    pub(crate) async fn caller(&self) -> Caller {
        let channel =
            Channel::from_shared(format!("http://{}", self.calls)).unwrap().connect().await.unwrap();
        Caller(RateLimitServiceClient::new(channel))
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the given number of configurations have been applied.
    pub(crate) async fn has_applied(&self, times: usize) {
        let applied = || self.log().matches("the configuration applies").count();
        assert!(eventually(async || applied() >= times).await, "{}", self.log());
    }

    /// Waits until a line of the log contains `text`.
    pub(crate) async fn logs(&self, text: &str) {
        assert!(eventually(async || self.log().contains(text)).await, "{}", self.log());
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Stops the server as an orchestrator does, and returns its exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        self.signal("TERM");
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client of the service.
#[derive(Clone)]
pub(crate) struct Caller(pub(crate) RateLimitServiceClient<Channel>);

impl Caller {
    pub(crate) async fn call(
        &self,
        request: impl tonic::IntoRequest<RateLimitRequest>,
    ) -> Result<RateLimitResponse, Status> {
        self.0.clone().should_rate_limit(request).await.map(tonic::Response::into_inner)
    }

    /// The answer for `descriptors` in the domain `d`, in short.
    pub(crate) async fn ask(&self, descriptors: &[RateLimitDescriptor]) -> String {
        brief(&self.call(request("d", descriptors)).await.unwrap())
    }

    /// How many of `calls` are OK.
    pub(crate) async fn admitted(&self, calls: usize, descriptors: &[RateLimitDescriptor]) -> usize {
        let mut admitted = 0;
        for _ in 0..calls {
            admitted += usize::from(self.ask(descriptors).await.starts_with("OK:"));
        }
        admitted
    }
}

pub(crate) fn request(domain: &str, descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    RateLimitRequest { domain: domain.into(), descriptors: descriptors.to_vec(), hits_addend: 0 }
}

/// A request that is not sent yet, so that metadata can be added.
pub(crate) fn prepared(descriptors: &[RateLimitDescriptor]) -> Request<RateLimitRequest> {
    Request::new(request("d", descriptors))
}

/// A descriptor: `message_type=marketing to_number=1`.
pub(crate) fn descriptor(entries: &str) -> RateLimitDescriptor {
    let entry = |text: &str| {
        let (key, value) = text.split_once('=').unwrap();
        Entry { key: key.into(), value: value.into() }
    };
    RateLimitDescriptor { entries: entries.split(' ').map(entry).collect(), ..Default::default() }
}

/// The same with its own hits.
pub(crate) fn with_hits(entries: &str, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value: hits }), ..descriptor(entries) }
}

/// The same with a limit of the request.
pub(crate) fn with_limit(entries: &str, requests_per_unit: u32, unit: Unit) -> RateLimitDescriptor {
    let limit = Some(RateLimitOverride { requests_per_unit, unit: unit.into() });
    RateLimitDescriptor { limit, ..descriptor(entries) }
}

/// An answer in short: `OVER_LIMIT: OK 2 of 5/MONTH, OVER_LIMIT 0 of 1/MINUTE "name", OK`.
pub(crate) fn brief(response: &RateLimitResponse) -> String {
    let status = |status: &DescriptorStatus| {
        let mut text = status.code().as_str_name().to_owned();
        if let Some(limit) = &status.current_limit {
            let unit = limit.unit().as_str_name();
            text.push_str(&format!(" {} of {}/{unit}", status.limit_remaining, limit.requests_per_unit));
            if !limit.name.is_empty() {
                text.push_str(&format!(" {:?}", limit.name));
            }
        } else if status.limit_remaining > 0 {
            text.push_str(&format!(" {}", status.limit_remaining));
        }
        text
    };
    let statuses = response.statuses.iter().map(status).collect::<Vec<_>>().join(", ");
    format!("{}: {statuses}", response.overall_code().as_str_name())
}
