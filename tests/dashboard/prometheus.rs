//! A real Prometheus on a free port, for as long as the value lives.

use std::{
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::Value;
use support::{Directory, http::Client, redis_server::free_port};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Stops Prometheus when this process ends, even if it is killed: the shell waits for the end of a pipe.
const GUARD: &str = r#""$PROGRAM" "$@" >/dev/null 2>&1 & read -r line; kill -KILL $!; wait $! 2>/dev/null"#;

/// Where Prometheus is, if it is installed.
pub(crate) fn program() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let own = Path::new(ROOT).join("target/prometheus/usr/bin");
    env::split_paths(&path).chain([own]).map(|folder| folder.join("prometheus")).find(|file| file.is_file())
}

pub(crate) struct Prometheus {
    client: Client,
    url: String,
    started: f64,
    guard: Child,
    _files: Directory,
}

/// What a query shows from the start until now.
pub(crate) struct Shown {
    pub(crate) series: usize,
    /// Whether a value is a number above 0.
    pub(crate) is_above_zero: bool,
}

impl Prometheus {
    pub(crate) async fn start(program: &Path, service: SocketAddr) -> Self {
        let files = Directory::new();
        let alerts = Path::new(ROOT).join("ops/alerts.yml");
        let (config, data) = (files.file("prometheus.yml"), files.file("data"));
        let text = format!(
            "global: {{ scrape_interval: 500ms, evaluation_interval: 1s }}\n\
             rule_files: [ {} ]\n\
             scrape_configs: [ {{ job_name: shop, static_configs: [ {{ targets: [ \"{service}\" ] }} ] }} ]\n",
            alerts.display()
        );
        fs::write(&config, text).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let guard = Command::new("sh")
            .args(["-c", GUARD, "sh"])
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", data.display()))
            .arg(format!("--web.listen-address={address}"))
            .env("PROGRAM", program)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let url = format!("http://{address}");
        let prometheus = Self { client: Client::new(), url, started: now(), guard, _files: files };
        super::eventually(async || prometheus.is_ready(&address).await).await;
        prometheus
    }

    async fn is_ready(&self, address: &str) -> bool {
        // The client panics if there is no connection.
        tokio::net::TcpStream::connect(address).await.is_ok()
            && self.client.get(&format!("{}/-/ready", self.url)).await.status() == 200
    }

    async fn get(&self, path: &str) -> Value {
        let response = self.client.get(&format!("{}/api/v1/{path}", self.url)).await;
        let answer: Value = serde_json::from_str(response.body()).unwrap();
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    /// Whether a value of `query` is above 0 at this moment.
    pub(crate) async fn is_above_zero(&self, query: &str) -> bool {
        let data = self.get(&format!("query?query={}", encoded(query))).await;
        data["result"].as_array().unwrap().iter().any(|series| is_above_zero(&series["value"]))
    }

    /// What a panel with `query` shows. The steps are shorter than the time between scrapes, so no value is missed.
    pub(crate) async fn shown(&self, query: &str) -> Shown {
        let (start, end) = (self.started, now());
        let data =
            self.get(&format!("query_range?query={}&start={start}&end={end}&step=0.2", encoded(query))).await;
        let series = data["result"].as_array().unwrap();
        let mut values = series.iter().flat_map(|series| series["values"].as_array().unwrap());
        Shown { series: series.len(), is_above_zero: values.any(is_above_zero) }
    }

    /// The values of `label_values(selector, label)`, a query that Grafana makes of this API.
    pub(crate) async fn values_of(&self, query: &str) -> Vec<String> {
        let arguments = query.strip_prefix("label_values(").unwrap().strip_suffix(')').unwrap();
        let (selector, label) = arguments.rsplit_once(", ").unwrap();
        strings(&self.get(&format!("label/{label}/values?match[]={}", encoded(selector))).await)
    }

    /// The names of the rules that are loaded.
    pub(crate) async fn rules(&self) -> Vec<String> {
        let data = self.get("rules").await;
        let rules =
            data["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
        rules.map(|rule| rule["name"].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// Whether a pair of a time and a value, which is a text, has a number above 0.
fn is_above_zero(sample: &Value) -> bool {
    let value: f64 = sample[1].as_str().unwrap().parse().unwrap();
    value.is_finite() && value > 0.0
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}
