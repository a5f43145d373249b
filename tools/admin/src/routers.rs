//! Asks the routers of instances over HTTP.

use std::{error::Error, io, time::Duration};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri,
    header::{CONTENT_TYPE, HOST},
    uri::Scheme,
};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::{failure::Failure, options::Options, tls};

/// The largest answer, in bytes.
const MOST: usize = 16 << 20;

/// The routers of instances.
pub(crate) struct Routers {
    routers: Vec<Router>,
    headers: HeaderMap,
    deadline: Duration,
    /// Only if a URL needs it.
    tls: Option<TlsConnector>,
}

/// The router of one instance.
#[derive(Clone)]
pub(crate) struct Router {
    /// The host and the port, and the path before the routes.
    pub(crate) name: String,
    base: Uri,
    host: String,
    port: u16,
    is_tls: bool,
}

/// What an instance has answered: JSON, or why it has not.
pub(crate) type Answered = (String, Result<Value, String>);

impl Routers {
    /// The routers that the options name. `None` if they name none.
    pub(crate) fn of(options: &Options) -> Result<Option<Self>, Failure> {
        let urls = options.url.iter().map(|url| url.trim()).filter(|url| !url.is_empty());
        let routers = urls.map(Router::at).collect::<Result<Vec<_>, _>>()?;
        if routers.is_empty() {
            return Ok(None);
        }
        let mut headers = HeaderMap::new();
        for line in &options.header {
            let (name, mut value) = header(line)?;
            value.set_sensitive(true);
            headers.append(name, value);
        }
        let needs_tls = routers.iter().any(|router| router.is_tls);
        let tls = if needs_tls { Some(tls::connector(options)?) } else { None };
        Ok(Some(Self { routers, headers, deadline: options.deadline, tls }))
    }

    /// Sends one request to all instances concurrently. The answers are in the order of the URLs.
    pub(crate) async fn ask(&self, method: &Method, path: &str, body: Option<&Value>) -> Vec<Answered> {
        let asked: Vec<_> = self
            .routers
            .iter()
            .map(|router| {
                let request = router.request(method, path, body, &self.headers);
                let (router, tls, deadline) = (router.clone(), self.tls.clone(), self.deadline);
                tokio::spawn(async move {
                    timeout(deadline, router.ask(request?, tls))
                        .await
                        .unwrap_or_else(|_| Err("no answer within the deadline: raise --deadline".to_owned()))
                })
            })
            .collect();
        let mut answers = Vec::with_capacity(asked.len());
        for (router, answer) in self.routers.iter().zip(asked) {
            let answer = answer.await.unwrap_or_else(|error| Err(error.to_string()));
            answers.push((router.name.clone(), answer));
        }
        answers
    }
}

impl Router {
    fn at(url: &str) -> Result<Self, Failure> {
        let invalid = |problem: &str| {
            Failure::Usage(format!("--url: {problem}: write one such as http://127.0.0.1:3001/limits"))
        };
        let uri: Uri = url.parse().map_err(|_| invalid("the URL is invalid"))?;
        let is_tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(invalid("the URL begins neither with http:// nor with https://")),
        };
        let authority = uri.authority().ok_or_else(|| invalid("the URL has no host"))?;
        if authority.as_str().contains('@') {
            return Err(invalid("the URL has a user or a password, which belong into --header"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let name = format!("{authority}{}", uri.path().trim_end_matches('/'));
        Ok(Self { name, host, port, is_tls, base: uri })
    }

    fn request(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
        headers: &HeaderMap,
    ) -> Result<Request<Full<Bytes>>, String> {
        let target = format!("{}{path}", self.base.path().trim_end_matches('/'));
        let authority = self.base.authority().map_or("", |authority| authority.as_str());
        let mut request = Request::builder().method(method).uri(target).header(HOST, authority);
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut request = request.body(Full::from(body)).map_err(|error| error.to_string())?;
        for (name, value) in headers {
            request.headers_mut().append(name, value.clone());
        }
        Ok(request)
    }

    async fn ask(&self, request: Request<Full<Bytes>>, tls: Option<TlsConnector>) -> Result<Value, String> {
        let unreachable = |error: io::Error| format!("cannot connect: {}", tls::explain(&error));
        let stream = TcpStream::connect((&*self.host, self.port)).await.map_err(unreachable)?;
        match tls.filter(|_| self.is_tls) {
            None => exchange(stream, request).await,
            Some(tls) => {
                let name = tls::server_name(&self.host)?;
                exchange(tls.connect(name, stream).await.map_err(unreachable)?, request).await
            }
        }
    }
}

/// Sends `request`, and reads the JSON of the answer.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Value, String> {
    let broken = |error: &(dyn Error + 'static)| format!("the connection broke: {}", tls::explain(error));
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
    // It ends with the sender, or with an error that the sender reports.
    let connection = tokio::spawn(async move { drop(connection.await) });
    let response = sender.send_request(request).await.map_err(|error| {
        if error.is_parse() {
            "the answer is not HTTP: write https:// if the router expects TLS".to_owned()
        } else {
            broken(&error)
        }
    })?;
    let (status, body) = (response.status(), Limited::new(response.into_body(), MOST));
    let body = body.collect().await.map_err(|error| broken(&*error))?.to_bytes();
    connection.abort();
    read(status, &body)
}

fn read(status: StatusCode, body: &[u8]) -> Result<Value, String> {
    let json = serde_json::from_slice::<Value>(body).ok();
    match (status, json) {
        (StatusCode::OK, Some(json)) => Ok(json),
        (StatusCode::NO_CONTENT, _) => Ok(Value::Null),
        (StatusCode::OK, None) => Err("the answer is not JSON: is it the router for operators?".to_owned()),
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => {
            Err(format!("{status}: authenticate with --header, or the variable RATELIMIT_HEADER"))
        }
        (_, Some(json)) if json["detail"].is_string() => {
            Err(format!("{status}: {}", json["detail"].as_str().unwrap_or_default()))
        }
        _ => Err(format!(
            "{status}: is it the router for operators, of this version, with the path under which it is mounted?"
        )),
    }
}

/// A header, from `name: value`.
pub(crate) fn header(line: &str) -> Result<(HeaderName, HeaderValue), Failure> {
    let parsed = line.split_once(':').and_then(|(name, value)| {
        let value = HeaderValue::from_str(value.trim()).ok()?;
        Some((name.trim().parse().ok()?, value))
    });
    // The value may be a secret.
    parsed.ok_or_else(|| Failure::Usage("a header is invalid: write `name: value`".to_owned()))
}
