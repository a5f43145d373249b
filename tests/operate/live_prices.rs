//! Prices in a file, which is followed.

use std::{fs, time::Duration};

use http_body_util::BodyExt as _;
use support::{Directory, day};
use tokio::time::sleep;
use tower_ratelimit::{ErrorKind, Key, Limiter, MemoryStore, Reservation};
use tower_ratelimit_gateway::prices::{Api, Call, Price, Prices, UnknownModel, UsageMeter};
use tower_ratelimit_operate::live::LivePrices;

const TOML: &str = r#"
version = "2025-06"
unknown = "dearest"

[models]
o3 = { input = 2, output = 8 }

[models."gpt-4o-*"]
input = 2.50
cached_input = "1.25"
cache_write = 0.000001
output = 10
count_text = true
"#;

const JSON: &str = r#"{
    "version": "2025-06",
    "unknown": "dearest",
    "models": {
        "o3": { "input": 2, "cached_input": null, "output": 8 },
        "gpt-4o-*": { "input": 2.50, "cached_input": "1.25", "cache_write": 0.000001, "output": 10, "count_text": true }
    }
}"#;

const YAML: &str = r#"
version: "2025-06"
unknown: dearest
models:
  o3: { input: 2, output: 8 }
  gpt-4o-*:
    input: 2.50
    cached_input: "1.25"
    cache_write: 0.000001
    output: 10
    count_text: true
"#;

fn prices() -> Prices {
    Prices::new("2025-06")
        .unknown(UnknownModel::Dearest)
        .model("o3", Price::new("2", "8"))
        .model("gpt-4o-*", Price::new("2.5", "10").cached_input("1.25").cache_write("0.000001").count_text())
}

#[tokio::test]
async fn prices_are_read_from_toml_json_and_yaml() {
    let directory = Directory::new();
    for (name, text) in [
        ("prices.toml", TOML),
        ("prices", TOML),
        ("prices.json", JSON),
        ("prices.JSON", JSON),
        ("prices.yaml", YAML),
    ] {
        let path = directory.file(name);
        fs::write(&path, text).unwrap();
        assert_eq!(LivePrices::file(&path).unwrap().current(), prices(), "{name}");
    }
    assert_eq!(serde_json::from_str::<Prices>(JSON).unwrap(), prices());
    let set = JSON.replace(r#""dearest""#, r#"{ "input": 1, "output": 1 }"#);
    let set = serde_json::from_str::<Prices>(&set).unwrap();
    assert_eq!(set.price("other"), Some(Price::new("1", "1")));
    let denying = serde_json::from_str::<Prices>(r#"{ "version": "1", "models": {} }"#).unwrap();
    assert_eq!(denying, Prices::new("1"));
}

#[tokio::test]
async fn an_invalid_file_is_an_error_that_states_the_line_and_the_entry() {
    let directory = Directory::new();
    let rows = [
        (
            "a.toml",
            "input = 2.50",
            "input = '2,50'",
            ", line 9: entry `models.gpt-4o-*.input`: invalid price `2,50`: write dollars",
        ),
        (
            "a.toml",
            "input = 2.50",
            "input = -1",
            ", line 9: entry `models.gpt-4o-*.input`: invalid price `-1`",
        ),
        (
            "a.toml",
            "input = 2.50",
            "input = 0.1234567",
            ", line 9: entry `models.gpt-4o-*.input`: invalid price `0.1234567`",
        ),
        ("a.toml", "input = 2.50", "inputs = 2", "entry `models.gpt-4o-*.inputs`: unknown field `inputs`"),
        (
            "a.toml",
            "o3 = { input = 2, output = 8 }",
            "o3 = { input = 2 }",
            ", line 6: entry `models.o3`: missing field `output`",
        ),
        (
            "a.toml",
            "o3 = { input = 2, output = 8 }",
            "o3 = 7",
            "entry `models.o3`: invalid type: integer `7`, expected a table with",
        ),
        (
            "a.toml",
            "o3 = { input = 2, output = 8 }",
            "o3 = [2, 8]",
            "entry `models.o3`: invalid type: sequence",
        ),
        (
            "a.toml",
            "unknown = \"dearest\"",
            "unknown = \"cheapest\"",
            ", line 3: entry `unknown`: invalid value: string \"cheapest\", expected \"deny\", \"dearest\" or a price",
        ),
        ("a.toml", "version = \"2025-06\"", "", "missing field `version`"),
        ("a.toml", "version = \"2025-06\"", "version = 7", "entry `version`: invalid type: integer `7`"),
        ("a.toml", "version", "edition = 1\nversion", "entry `edition`: unknown field `edition`"),
        (
            "a.toml",
            "gpt-4o-*",
            "gpt-*-mini",
            "model `gpt-*-mini`: `*` may only be the last character of a name",
        ),
        ("a.toml", "[models.\"gpt-4o-*\"]", "[models.o3]", "duplicate key"),
        ("a.toml", "[models]", "[models", "no valid TOML"),
        (
            "a.json",
            "2.50",
            "true",
            ": entry `models.gpt-4o-*.input`: invalid type: boolean `true`, expected dollars for a million tokens",
        ),
        ("a.json", "gpt-4o-*", "o3", "model `o3`: there are two prices of this name: remove one"),
        ("a.json", "    }\n}", "    }\n} 7", "trailing characters"),
        ("a.json", "    }\n}", "", ", line 7: no valid JSON: EOF"),
        ("a.json", "2.50", "{deep}", ", line 6: more than 64 lists and tables"),
        (
            "a.json",
            JSON,
            "[\"1\", null, {}]",
            ", line 1: invalid type: sequence, expected a table with `version`",
        ),
        ("a.toml", "2.50", "{deep}", ", line 9: more than 64 lists and tables"),
        ("a.yaml", "2.50", "{deep}", ", line 7: more than 64 lists and tables"),
        ("a.yaml", "2.50", "two", ", line 7: entry `models.gpt-4o-*.input`: invalid price `two`"),
        ("a.yaml", "\"2025-06\"", "2", ", line 2: entry `version`: invalid type: integer `2`"),
        ("a.yaml", YAML, "- '1'", ", line 1: invalid type: sequence, expected a table with `version`"),
    ];
    for (name, from, to, expected) in rows {
        let path = directory.file(name);
        let text = match name {
            "a.toml" => TOML,
            "a.yaml" => YAML,
            _ => JSON,
        };
        let to = to.replace("{deep}", &"[".repeat(200_000));
        assert!(text.contains(from), "{from}");
        fs::write(&path, text.replace(from, &to)).unwrap();
        let error = LivePrices::file(&path).unwrap_err();
        let message = error.to_string();
        assert!(
            message.starts_with(&format!("{}", path.display())) && message.contains(expected),
            "{message}"
        );
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    }
    let missing = LivePrices::file(directory.file("none.toml")).unwrap_err().to_string();
    assert!(missing.contains("the file of prices cannot be read: No such file"), "{missing}");
    let outside =
        std::thread::spawn(move || LivePrices::file(directory.file("a.json")).unwrap_err()).join().unwrap();
    assert!(outside.to_string().starts_with("live prices need a Tokio runtime"), "{outside}");
}

#[tokio::test(start_paused = true)]
async fn a_changed_file_is_followed_and_a_call_keeps_the_prices_that_it_began_with() {
    let directory = Directory::new();
    let path = directory.file("prices.toml");
    fs::write(&path, TOML).unwrap();
    let live = LivePrices::file(&path).unwrap();
    let followed = async || sleep(Duration::from_secs(2)).await;
    let settled = std::sync::Arc::<std::sync::Mutex<Vec<_>>>::default();
    let notes = settled.clone();
    let meter = UsageMeter::new(&live).tokens_unit(None).money_unit(None).on_settled(move |call| {
        notes.lock().unwrap().push((call.prices_version.clone(), call.micro_dollars))
    });
    let limiter = Limiter::new(MemoryStore::new());
    let decision = limiter.check(&day("calls", 9), &Key::new("all"), 1).await.unwrap();
    let begin = || meter.call(Api::OpenAiChat, br#"{ "model": "o3", "max_tokens": 1 }"#).unwrap();
    let end = async |call: Call| {
        let body = r#"{ "choices": [], "usage": { "prompt_tokens": 1, "completion_tokens": 1 } }"#;
        let response = http::Response::new(http_body_util::Full::<bytes::Bytes>::from(body));
        let reservation = Reservation::new(&limiter, &decision);
        let sent = call.metered(reservation, async { Ok::<_, ()>(response) }).await.unwrap();
        drop(sent.into_body().collect().await.unwrap());
    };

    let begun = begin();
    fs::write(&path, TOML.replace("2025-06", "2025-07").replace("output = 8", "output = 20")).unwrap();
    followed().await;
    assert_eq!((live.current().version(), live.last_error().is_none()), ("2025-07", true));
    end(begun).await;
    end(begin()).await;
    let expected = [("2025-06".to_owned(), 10), ("2025-07".to_owned(), 22)];
    assert_eq!(*settled.lock().unwrap(), expected);

    fs::write(&path, TOML.replace("output = 8", "output = many")).unwrap();
    followed().await;
    assert_eq!(live.current().version(), "2025-07");
    assert!(
        live.last_error().unwrap().to_string().contains("line 6: no valid TOML"),
        "{:?}",
        live.last_error()
    );
    fs::remove_file(&path).unwrap();
    followed().await;
    assert!(live.last_error().unwrap().to_string().contains("cannot be read"), "{:?}", live.last_error());
    fs::write(&path, TOML).unwrap();
    followed().await;
    assert_eq!((live.current(), live.last_error().is_none()), (prices(), true));
}
