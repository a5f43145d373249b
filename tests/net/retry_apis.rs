//! What a client does after the rejections of large APIs, with the headers as their documentation shows them. The rows
//! are those of the table in the documentation of `tower_ratelimit_retry`.

use std::time::Duration;

use http::{Method, StatusCode};

use crate::retry_policy::{
    Fields,
    Then::{self, BacksOff, Returns, Waits},
    UNCLEAR, ask, check, exact, paused, request, waits,
};

// 1798761600 seconds since 1970.
const DATE: (&str, &str) = ("date", "Fri, 01 Jan 2027 00:00:00 GMT");

#[test]
fn the_rejections_of_large_apis_are_retried_after_the_waits_they_state() {
    let rows: &[(&str, Method, u16, Fields<'_>, Then)] = &[
        (
            "Anthropic",
            Method::POST,
            429,
            &[
                ("retry-after", "34"),
                ("anthropic-ratelimit-requests-limit", "50"),
                ("anthropic-ratelimit-requests-remaining", "49"),
                ("anthropic-ratelimit-requests-reset", "2027-01-01T00:00:01Z"),
                ("anthropic-ratelimit-tokens-limit", "40000"),
                ("anthropic-ratelimit-tokens-remaining", "0"),
                ("anthropic-ratelimit-tokens-reset", "2027-01-01T00:00:42Z"),
            ],
            waits(34),
        ),
        (
            "Anthropic, no Retry-After",
            Method::POST,
            429,
            &[
                ("anthropic-ratelimit-requests-remaining", "49"),
                ("anthropic-ratelimit-requests-reset", "2027-01-01T00:05:00Z"),
                ("anthropic-ratelimit-tokens-remaining", "0"),
                ("anthropic-ratelimit-tokens-reset", "2027-01-01T00:00:42Z"),
            ],
            waits(42),
        ),
        (
            "Atlassian",
            Method::GET,
            429,
            &[
                ("retry-after", "5"),
                ("x-ratelimit-limit", "350"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "2027-01-01T00:01Z"),
            ],
            waits(5),
        ),
        (
            "Atlassian, no Retry-After",
            Method::GET,
            429,
            &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "2027-01-01T00:01Z")],
            waits(60),
        ),
        ("AWS", Method::POST, 429, &[("x-amzn-errortype", "TooManyRequestsException")], BacksOff),
        ("AWS S3, read", Method::GET, 503, &[("x-amz-request-id", "1")], BacksOff),
        ("AWS S3, POST", Method::POST, 503, &[("x-amz-request-id", "1")], Returns),
        ("Azure Resource Manager", Method::GET, 429, &[("retry-after", "17")], waits(17)),
        (
            "Azure Cosmos DB",
            Method::POST,
            429,
            &[("x-ms-retry-after-ms", "2341")],
            Waits(Duration::from_millis(2_341)),
        ),
        (
            "Azure OpenAI",
            Method::POST,
            429,
            &[
                ("retry-after-ms", "1500"),
                ("retry-after", "2"),
                ("x-ratelimit-remaining-tokens", "-1"),
                ("x-ratelimit-reset-tokens", "0"),
            ],
            waits(2),
        ),
        (
            "Cloudflare",
            Method::GET,
            429,
            &[
                ("ratelimit", r#""default";r=0;t=30"#),
                ("ratelimit-policy", r#""default";q=1200;w=300"#),
                ("retry-after", "30"),
            ],
            waits(30),
        ),
        (
            "Discord",
            Method::POST,
            429,
            &[
                ("retry-after", "65"),
                ("x-ratelimit-limit", "10"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "1798761664.57"),
                ("x-ratelimit-reset-after", "64.57"),
                ("x-ratelimit-scope", "user"),
            ],
            waits(65),
        ),
        (
            "Discord, no Retry-After",
            Method::POST,
            429,
            &[
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "1798761664.57"),
                ("x-ratelimit-reset-after", "64.57"),
            ],
            waits(65),
        ),
        (
            "GitHub, primary limit",
            Method::GET,
            403,
            &[
                ("x-ratelimit-limit", "60"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-used", "60"),
                ("x-ratelimit-reset", "1798761640"),
                ("x-ratelimit-resource", "core"),
            ],
            waits(40),
        ),
        (
            "GitHub, primary limit, 429",
            Method::GET,
            429,
            &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1798761640")],
            waits(40),
        ),
        (
            "GitHub, secondary limit",
            Method::POST,
            403,
            &[("retry-after", "60"), ("x-ratelimit-remaining", "4000"), ("x-ratelimit-reset", "1798764000")],
            waits(60),
        ),
        (
            "GitHub, secondary limit, no Retry-After",
            Method::POST,
            429,
            &[("x-ratelimit-remaining", "4000"), ("x-ratelimit-reset", "1798764000")],
            UNCLEAR,
        ),
        (
            "GitHub, no permission",
            Method::POST,
            403,
            &[("x-ratelimit-remaining", "4000"), ("x-ratelimit-reset", "1798764000")],
            Returns,
        ),
        (
            "GitLab",
            Method::GET,
            429,
            &[
                ("ratelimit-limit", "60"),
                ("ratelimit-name", "throttle_authenticated_web"),
                ("ratelimit-observed", "67"),
                ("ratelimit-remaining", "0"),
                ("ratelimit-reset", "1798761630"),
                ("ratelimit-resettime", "Fri, 01 Jan 2027 00:00:30 GMT"),
                ("retry-after", "30"),
            ],
            waits(30),
        ),
        (
            "GitLab, no Retry-After",
            Method::GET,
            429,
            &[
                ("ratelimit-remaining", "0"),
                ("ratelimit-reset", "1798761630"),
                ("ratelimit-resettime", "Fri, 01 Jan 2027 00:00:30 GMT"),
            ],
            waits(30),
        ),
        ("Google", Method::GET, 429, &[("content-type", "application/json")], BacksOff),
        ("Google, Retry-After", Method::POST, 503, &[("retry-after", "30")], waits(30)),
        ("Google, limit in the body", Method::GET, 403, &[("content-type", "application/json")], Returns),
        (
            "HubSpot",
            Method::GET,
            429,
            &[
                ("x-hubspot-ratelimit-daily-remaining", "249000"),
                ("x-hubspot-ratelimit-interval-milliseconds", "10000"),
                ("x-hubspot-ratelimit-max", "100"),
                ("x-hubspot-ratelimit-remaining", "0"),
            ],
            BacksOff,
        ),
        (
            "Linear",
            Method::POST,
            429,
            &[
                ("x-ratelimit-requests-limit", "5000"),
                ("x-ratelimit-requests-remaining", "0"),
                ("x-ratelimit-requests-reset", "1798761609000"),
                ("x-ratelimit-complexity-remaining", "9"),
                ("x-ratelimit-complexity-reset", "1798765200000"),
            ],
            waits(9),
        ),
        ("Microsoft Graph", Method::GET, 429, &[("retry-after", "10")], waits(10)),
        ("Notion", Method::GET, 429, &[("retry-after", "12")], waits(12)),
        (
            "Okta",
            Method::GET,
            429,
            &[
                ("x-rate-limit-limit", "600"),
                ("x-rate-limit-remaining", "0"),
                ("x-rate-limit-reset", "1798761651"),
            ],
            waits(51),
        ),
        (
            "OpenAI",
            Method::POST,
            429,
            &[
                ("retry-after-ms", "2000"),
                ("retry-after", "2"),
                ("x-ratelimit-limit-requests", "60"),
                ("x-ratelimit-remaining-requests", "59"),
                ("x-ratelimit-reset-requests", "1s"),
                ("x-ratelimit-remaining-tokens", "0"),
                ("x-ratelimit-reset-tokens", "6m0s"),
            ],
            waits(2),
        ),
        (
            "OpenAI, no Retry-After",
            Method::POST,
            429,
            &[
                ("x-ratelimit-remaining-requests", "59"),
                ("x-ratelimit-reset-requests", "20ms"),
                ("x-ratelimit-remaining-tokens", "0"),
                ("x-ratelimit-reset-tokens", "6m0s"),
            ],
            waits(360),
        ),
        (
            "Reddit",
            Method::GET,
            429,
            &[("x-ratelimit-remaining", "0.0"), ("x-ratelimit-used", "600"), ("x-ratelimit-reset", "28")],
            waits(28),
        ),
        (
            "Shopify",
            Method::GET,
            429,
            &[("retry-after", "2.0"), ("x-shopify-shop-api-call-limit", "40/40")],
            waits(2),
        ),
        ("Slack", Method::POST, 429, &[("retry-after", "30")], waits(30)),
        ("Stripe", Method::POST, 429, &[("stripe-rate-limited-reason", "global-rate")], BacksOff),
        ("Twilio", Method::POST, 429, &[("twilio-concurrent-requests", "100")], BacksOff),
        (
            "X",
            Method::GET,
            429,
            &[
                ("x-rate-limit-limit", "900"),
                ("x-rate-limit-remaining", "0"),
                ("x-rate-limit-reset", "1798761655"),
                ("x-app-limit-24hour-remaining", "100"),
                ("x-app-limit-24hour-reset", "1798848000"),
            ],
            waits(55),
        ),
        (
            "Zendesk",
            Method::GET,
            429,
            &[
                ("retry-after", "53"),
                ("x-rate-limit", "700"),
                ("ratelimit-limit", "700"),
                ("x-rate-limit-remaining", "0"),
                ("ratelimit-remaining", "0"),
                ("ratelimit-reset", "41"),
                ("zendesk-ratelimit-tickets-index", "total=100; remaining=0; resets=41"),
            ],
            waits(53),
        ),
    ];
    for (name, method, denied, fields, then) in rows {
        let fields = [*fields, &[DATE]].concat();
        let (status, waits) = paused(ask(exact(), request(method), 1, (*denied, &fields)));
        check(name, StatusCode::from_u16(*denied).unwrap(), status, &waits, *then);
    }
}
