//! Prices in code, and what usage costs.

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tower_ratelimit_gateway::prices::{Api, CallError, Price, Prices, UnknownModel, Usage, UsageMeter};

/// The decimal text of a number of millionths, as often written in another way.
fn text(millionths: u64) -> String {
    let text = format!("{}.{:06}", millionths / 1_000_000, millionths % 1_000_000);
    if millionths.is_multiple_of(2) {
        text
    } else {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

#[test]
fn a_cost_is_the_exact_sum_rounded_up_once() {
    let rates = || proptest::collection::vec(0..1_000_000_000_000_u64, 4);
    let tokens = || proptest::collection::vec(prop_oneof![0..100_u64, 0..10_000_000_u64, Just(u64::MAX)], 4);
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    runner
        .run(&(rates(), tokens()), |(rates, tokens)| {
            let texts: Vec<String> = rates.iter().copied().map(text).collect();
            let price = Price::new(&texts[0], &texts[3]).cached_input(&texts[1]).cache_write(&texts[2]);
            let usage = Usage::new(tokens[0], tokens[3]).cached_input(tokens[1]).cache_write(tokens[2]);
            let sum: u128 =
                rates.iter().zip(&tokens).map(|(rate, n)| u128::from(*rate) * u128::from(*n)).sum();
            let exact = sum / 1_000_000 + u128::from(!sum.is_multiple_of(1_000_000));
            prop_assert_eq!(price.micro_dollars(&usage), u64::try_from(exact).unwrap_or(u64::MAX));
            Ok(())
        })
        .unwrap();
}

#[test]
fn unknown_models_are_denied_or_have_the_dearest_or_a_set_price() {
    let prices = Prices::new("1").model("a", Price::new("1", "9")).model("b*", Price::new("2", "3"));
    let other = Price::new("7", "7");
    let rows = [
        (UnknownModel::Deny, "a", Some(Price::new("1", "9"))),
        (UnknownModel::Deny, "b1", Some(Price::new("2", "3"))),
        (UnknownModel::Deny, "c", None),
        (UnknownModel::Dearest, "a", Some(Price::new("1", "9"))),
        (UnknownModel::Dearest, "c", Some(Price::new("2", "9").cached_input("2").cache_write("2"))),
        (UnknownModel::Price(other), "b", Some(Price::new("2", "3"))),
        (UnknownModel::Price(other), "c", Some(other)),
    ];
    for (unknown, model, price) in rows {
        let prices = prices.clone().unknown(unknown);
        assert_eq!(prices.price(model), price, "{unknown:?} {model}");
        let body = format!(r#"{{ "model": "{model}" }}"#);
        let call = UsageMeter::new(prices).call(Api::OpenAiChat, body.as_bytes());
        match price {
            Some(_) => assert_eq!(call.unwrap().model(), model),
            None => assert_eq!(call.err(), Some(CallError::UnknownModel(model.to_owned()))),
        }
    }
    assert_eq!(Prices::new("1").unknown(UnknownModel::Dearest).price("a"), None);
}

#[test]
fn invalid_entries_are_errors_or_panics() {
    let price = Price::new("1", "1");
    let prices = || Prices::new("1").model("a", price).model("a*", price);
    for (name, problem) in
        [("a", "two prices"), ("a*", "two prices"), ("", "empty"), ("a*b", "last character")]
    {
        let error = prices().try_model(name, price).unwrap_err().to_string();
        assert!(error.starts_with(&format!("model `{name}`: ")) && error.contains(problem), "{error}");
        assert!(std::panic::catch_unwind(|| prices().model(name, price)).is_err());
    }
    assert!(Price::try_new("1", "-1").is_err() && price.try_cached_input("").is_err());
    assert!(price.try_cache_write("1e1").is_err());
    assert!(std::panic::catch_unwind(|| Price::new("one", "1")).is_err());
}
