use std::borrow::Cow;

use http::{HeaderValue, Response, StatusCode, header::CONTENT_TYPE, request::Parts};
use http_body_util::Full;

use super::{
    headers::retry_after,
    mapper::{RejectionBody, ResponseMapper},
    rejection::Rejection,
};
use crate::{error::ErrorKind, policy::push_quoted};

/// The default [`ResponseMapper`]: `application/problem+json` (RFC 9457), with the problem types of
/// draft-ietf-httpapi-ratelimit-headers.
///
/// | rejection | status | `type` |
/// |---|---|---|
/// | limited | 429 | `https://iana.org/assignments/http-problem-types#quota-exceeded` |
/// | banned | 429 | `https://iana.org/assignments/http-problem-types#abnormal-usage-detected` |
/// | store unavailable, policy closed | 503 | `https://iana.org/assignments/http-problem-types#temporary-reduced-capacity` |
/// | no identity, the client's fault | 400 | `about:blank` |
/// | no identity, the server's fault | 500 | `about:blank` |
///
/// A 429 lists the policies that refused in `violated-policies`. No response shows a key, an address or
/// what the store said.
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{response::{ProblemDetails, ResponseMapper}, Error, ErrorKind, Rejection};
///
/// let (request, ()) = Request::get("/").body(())?.into_parts();
/// let missing = Rejection::Unidentified(Error::new(ErrorKind::MissingIdentity, "who are you?"));
/// assert_eq!(ProblemDetails::default().response(&missing, &request).status(), 400);
/// let down = Rejection::Unavailable(Error::new(ErrorKind::StoreTimeout, "secret"));
/// assert_eq!(ProblemDetails::default().response(&down, &request).status(), 503);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ProblemDetails;

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
const ABNORMAL_USAGE: &str = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
const BLANK: &str = "about:blank";

impl ResponseMapper for ProblemDetails {
    fn response(&self, rejection: &Rejection, _: &Parts) -> Response<RejectionBody> {
        let status = rejection.status();
        let (kind, title, detail): (_, _, Cow<'_, str>) = match rejection {
            Rejection::Denied(decision) => (
                QUOTA_EXCEEDED,
                "Request cannot be satisfied as assigned quota has been exceeded",
                match retry_after(decision) {
                    Some(1) => "Try again in 1 second.".into(),
                    Some(seconds) => {
                        ["Try again in ", itoa::Buffer::new().format(seconds), " seconds."].concat().into()
                    }
                    None => {
                        "The request costs more than the quota can ever hold; waiting does not help.".into()
                    }
                },
            ),
            Rejection::Banned => (
                ABNORMAL_USAGE,
                "Request not satisfied due to detection of abnormal request pattern",
                "Requests of this client are not answered; waiting does not help.".into(),
            ),
            Rejection::Unavailable(_) if status == StatusCode::SERVICE_UNAVAILABLE => (
                REDUCED_CAPACITY,
                "Request cannot be satisfied due to temporary server capacity constraints",
                "The request could not be counted against its quota.".into(),
            ),
            Rejection::Unidentified(error) if status == StatusCode::BAD_REQUEST => {
                (BLANK, "Bad Request", error.to_string().into())
            }
            // Written for the operator, and said to be shown.
            Rejection::Unidentified(error) if error.kind() == ErrorKind::MissingSetup => {
                (BLANK, "Internal Server Error", error.to_string().into())
            }
            Rejection::Unidentified(error) if error.kind() != ErrorKind::InvalidConfig => {
                (BLANK, "Internal Server Error", "It could not be found out whose request it is.".into())
            }
            Rejection::Unidentified(_) | Rejection::Unavailable(_) => {
                (BLANK, "Internal Server Error", "The rate limit is not set up right.".into())
            }
        };

        // Longer than most, so that it need not grow.
        let mut body = String::with_capacity(384);
        body.push_str("{\"type\":\"");
        body.push_str(kind);
        body.push_str("\",\"title\":\"");
        body.push_str(title);
        body.push_str("\",\"status\":");
        body.push_str(status.as_str());
        body.push_str(",\"detail\":");
        push_quoted(&mut body, &printable(&detail));
        if let Rejection::Denied(decision) = rejection {
            body.push_str(",\"violated-policies\":[");
            let mut separator = "";
            for outcome in decision.outcomes().iter().filter(|outcome| !outcome.is_allowed()) {
                body.push_str(separator);
                body.push_str(outcome.policy().quoted_name());
                separator = ",";
            }
            body.push(']');
        }
        body.push('}');

        let mut response = Response::new(RejectionBody::new(Full::from(body)));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response
    }
}

/// An error's message may be a user's own, of any characters; our quoting is for printable ASCII.
fn printable(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return text.into();
    }
    text.chars().map(|c| if matches!(c, ' '..='~') { c } else { '?' }).collect()
}
