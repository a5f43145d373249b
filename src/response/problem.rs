use std::borrow::Cow;

use http::{HeaderValue, Response, StatusCode, header::CONTENT_TYPE, request::Parts};
use http_body_util::Full;

use super::{body::RejectionBody, mapper::ResponseMapper, rejection::Rejection};
use crate::{base::ErrorKind, decision::Decision, policy::push_quoted};

/// The default [`ResponseMapper`]: `application/problem+json` (RFC 9457), with the problem types of
/// draft-ietf-httpapi-ratelimit-headers.
///
/// | rejection | status | `type` |
/// |---|---|---|
/// | denied | 429 | `https://iana.org/assignments/http-problem-types#quota-exceeded` |
/// | banned or blocked | 429 | `https://iana.org/assignments/http-problem-types#abnormal-usage-detected` |
/// | store unavailable, policy closed | 503 | `https://iana.org/assignments/http-problem-types#temporary-reduced-capacity` |
/// | no identity, the client's fault | 400 | `about:blank` |
/// | unknown identity | 401 | `about:blank` |
/// | no identity, the server's fault | 500 | `about:blank` |
///
/// A client is banned if a policy [bans](crate::Policy::penalty) its key. A denial lists the policies that denied in
/// `violated-policies`. Keys, addresses and the errors of the store are in no
/// response.
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{response::{ProblemDetails, ResponseMapper}, Error, ErrorKind, Rejection};
///
/// let (request, ()) = Request::get("/").body(())?.into_parts();
/// let missing = Rejection::Unidentified(Error::new(ErrorKind::MissingIdentity, "no api key"));
/// assert_eq!(ProblemDetails::default().response(&missing, &request).status(), 400);
/// let unavailable = Rejection::Unavailable(Error::new(ErrorKind::StoreTimeout, "secret"));
/// assert_eq!(ProblemDetails::default().response(&unavailable, &request).status(), 503);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ProblemDetails;

impl ResponseMapper for ProblemDetails {
    fn response(&self, rejection: &Rejection, _: &Parts) -> Response<RejectionBody> {
        let status = rejection.status();
        let mut response = Response::new(RejectionBody::new(Full::from(json(rejection, status))));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response
    }

    fn reads_request(&self) -> bool {
        false
    }
}

/// The members of a problem that its rejection and status determine, up to the value of `status`. Every text here is
/// known to need no escapes.
macro_rules! members {
    ($kind:literal, $title:literal) => {
        concat!(
            "{\"type\":\"https://iana.org/assignments/http-problem-types#",
            $kind,
            "\",\"title\":\"Request ",
            $title,
            "\",\"status\":"
        )
    };
}

fn members(rejection: &Rejection, status: StatusCode, is_banned: bool) -> Cow<'static, str> {
    match (rejection, status) {
        (Rejection::Denied(_), _) if !is_banned => {
            members!("quota-exceeded", "cannot be satisfied as assigned quota has been exceeded")
        }
        (Rejection::Denied(_) | Rejection::Blocked, _) => {
            members!("abnormal-usage-detected", "not satisfied due to detection of abnormal request pattern")
        }
        (_, StatusCode::SERVICE_UNAVAILABLE) => members!(
            "temporary-reduced-capacity",
            "cannot be satisfied due to temporary server capacity constraints"
        ),
        (_, status) => {
            let title = status.canonical_reason().unwrap_or_default();
            return format!("{{\"type\":\"about:blank\",\"title\":\"{title}\",\"status\":").into();
        }
    }
    .into()
}

fn json(rejection: &Rejection, status: StatusCode) -> String {
    let is_banned = rejection.decision().is_some_and(Decision::is_banned);
    // Longer than most.
    let mut json = String::with_capacity(384);
    json.push_str(&members(rejection, status, is_banned));
    json.push_str(status.as_str());
    json.push_str(",\"detail\":");
    push_detail(&mut json, rejection, is_banned);
    if let Some(decision) = rejection.decision() {
        json.push_str(",\"violated-policies\":[");
        let denied = decision.outcomes().iter().filter(|outcome| outcome.is_denied());
        for (i, outcome) in denied.enumerate() {
            json.push_str(if i == 0 { "" } else { "," });
            json.push_str(outcome.policy().quoted_name());
        }
        json.push(']');
    }
    json.push('}');
    json
}

fn push_detail(json: &mut String, rejection: &Rejection, is_banned: bool) {
    let detail: Cow<'_, str> = match rejection {
        Rejection::Denied(_) => match rejection.retry_after_seconds() {
            Some(seconds) => {
                let unit = if seconds == 1 { " second.\"" } else { " seconds.\"" };
                let ban = if is_banned { "\"The client is banned. " } else { "\"" };
                for part in [ban, "Try again in ", itoa::Buffer::new().format(seconds), unit] {
                    json.push_str(part);
                }
                return;
            }
            None => "The cost of the request exceeds the quota; waiting does not help.".into(),
        },
        Rejection::Blocked => "The client is banned; waiting does not help.".into(),
        Rejection::Unidentified(error) => match error.kind() {
            // The texts of these kinds are for the client.
            kind if kind.is_clients() => error.to_string().into(),
            ErrorKind::MissingSetup | ErrorKind::InvalidConfig => MISCONFIGURED.into(),
            _ => "The client could not be identified.".into(),
        },
        Rejection::Unavailable(error) if error.kind() == ErrorKind::InvalidConfig => MISCONFIGURED.into(),
        Rejection::Unavailable(_) => "The rate limit is temporarily unavailable.".into(),
    };
    push_quoted(json, &printable(&detail));
}

const MISCONFIGURED: &str = "The rate limit is misconfigured.";

/// A user's error message may have any characters, and [`push_quoted`] is for printable ASCII.
fn printable(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return text.into();
    }
    text.chars().map(|c| if matches!(c, ' '..='~') { c } else { '?' }).collect()
}
