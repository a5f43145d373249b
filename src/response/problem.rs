//! The response to a rejected HTTP request.

use http::{HeaderValue, Response, StatusCode, header::CONTENT_TYPE, request::Parts};

use super::{body::RejectionBody, mapper::ResponseMapper, rejection::Rejection, words::push_wait};
use crate::{decision::Decision, policy::push_quoted};

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
/// A client is banned if a policy [bans](crate::Policy::penalty) its key. The body of a denial lists the
/// policies that denied in `violated-policies`. Responses never contain keys, addresses or errors of the
/// store.
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
        let mut response = Response::new(RejectionBody::of_text(json(rejection)));
        *response.status_mut() = rejection.status();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response
    }

    fn reads_request(&self) -> bool {
        false
    }
}

fn json(rejection: &Rejection) -> String {
    let (status, _, text) = rejection.described();
    let decision = rejection.decision();
    let is_banned = decision.is_some_and(Decision::is_banned);
    let [begin, title] = match rejection {
        Rejection::Denied(_) if !is_banned => QUOTA_EXCEEDED,
        Rejection::Denied(_) | Rejection::Blocked => ABNORMAL_USAGE,
        _ if status == StatusCode::SERVICE_UNAVAILABLE => REDUCED_CAPACITY,
        _ => [r#"{"type":"about:blank","title":""#, status.canonical_reason().unwrap_or_default()],
    };
    // Longer than most.
    let mut json = String::with_capacity(384);
    // Every text but that of a user's error is known to need no escapes.
    for part in [begin, title, "\",\"status\":", status.as_str(), ",\"detail\":"] {
        json.push_str(part);
    }
    match (rejection, rejection.retry_after_seconds(), text) {
        (Rejection::Denied(_), Some(seconds), _) => {
            json.push_str(match is_banned {
                true => "\"The client is banned. Try again in ",
                false => "\"Try again in ",
            });
            push_wait(&mut json, seconds);
            json.push_str(".\"");
        }
        (Rejection::Unidentified(error), _, None) => push_quoted(&mut json, &printable(error.message())),
        (_, _, text) => {
            let (first, rest) = text.unwrap_or_default().split_at(1);
            for part in ["\"", &first.to_ascii_uppercase(), rest, ".\""] {
                json.push_str(part);
            }
        }
    }
    if let Some(decision) = decision {
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

/// The beginning of the JSON, up to the title, and the title.
const QUOTA_EXCEEDED: [&str; 2] = [
    r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":""#,
    "Request cannot be satisfied as assigned quota has been exceeded",
];
const ABNORMAL_USAGE: [&str; 2] = [
    r#"{"type":"https://iana.org/assignments/http-problem-types#abnormal-usage-detected","title":""#,
    "Request not satisfied due to detection of abnormal request pattern",
];
const REDUCED_CAPACITY: [&str; 2] = [
    r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":""#,
    "Request cannot be satisfied due to temporary server capacity constraints",
];

/// A user's error message may have any characters, and [`push_quoted`] is for printable ASCII.
fn printable(text: &str) -> String {
    text.chars().map(|c| if matches!(c, ' '..='~') { c } else { '?' }).collect()
}
