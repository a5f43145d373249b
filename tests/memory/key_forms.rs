//! A value makes one key, by value, by reference, and by every conversion.

use std::{
    borrow::Cow,
    fmt::Debug,
    marker::PhantomData,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use http::{HeaderValue, Request, request::Parts};
use tower_ratelimit::{
    Answer, Error, ErrorKind, Header, Key, KeyExtractor,
    key::{IntoKey, from_extension, from_extractor, from_fn},
};

#[derive(Clone)]
struct Held<T>(T);

/// The keys that extractors make of `value`, each also as the only one that its own list matches.
async fn extracted<T>(value: T) -> Vec<(&'static str, Key)>
where
    T: Into<Key> + Clone + Send + Sync + 'static,
{
    async fn found(head: &Parts, listed: Key, extractor: impl KeyExtractor) -> Key {
        let extractor = Arc::new(extractor);
        let key = extractor.extract(head).await.unwrap();
        let is_listed = move |parts: &Parts| extractor.extract(parts);
        assert!(is_listed.any_of([listed])(head).await.unwrap(), "it is not in the list");
        key
    }
    let head = Request::get("/").header("x-id", "sent").extension(Held(value.clone()));
    let (head, ()) = head.body(()).unwrap().into_parts();
    let listed = || Key::new(value.clone());
    let held = |held: &Held<T>| held.0.clone();
    let make = || {
        let value = value.clone();
        move || value.clone()
    };
    let (first, second, third, fourth, fifth, sixth) = (make(), make(), make(), make(), make(), make());
    let late = move |_: &Parts| {
        let key = first().into();
        Answer::pending(async move { Ok(key) })
    };
    let by_axum = from_extractor((), |axum::Extension(held): axum::Extension<Held<T>>| held.0);
    vec![
        ("a closure", found(&head, listed(), move |_: &Parts| second()).await),
        ("`from_fn`", found(&head, listed(), from_fn(move |_| third())).await),
        ("an option", found(&head, listed(), move |_: &Parts| Some(fourth())).await),
        ("a result", found(&head, listed(), move |_: &Parts| Ok::<_, Error>(fifth())).await),
        ("an answer", found(&head, listed(), late).await),
        ("`map`", found(&head, listed(), Header::new("x-id").map(move |_| sixth())).await),
        ("`from_extension`", found(&head, listed(), from_extension(held)).await),
        ("`from_extractor`", found(&head, listed(), by_axum).await),
        ("the key of all requests", found(&head, listed(), listed()).await),
    ]
}

/// Asserts that `value` has the key with the text `text` in every way.
async fn check<T>(text: &str, value: T)
where
    T: Into<Key> + Clone + Debug + Send + Sync + 'static,
    for<'a> &'a T: Into<Key>,
{
    check_owned(text, value.clone()).await;
    assert_eq!(Key::new(&value).as_str(), text, "{value:?} by reference");
    assert_eq!(Key::new((&value, "x")), Key::new((value.clone(), "x")), "{value:?} by reference, as a part");
    let is_listed = {
        let value = value.clone();
        move |_: &Parts| value.clone()
    };
    let (head, ()) = Request::new(()).into_parts();
    assert!(
        is_listed.any_of(std::slice::from_ref(&value))(&head).await.unwrap(),
        "{value:?} in a borrowed list"
    );
}

/// The same for a value of which no reference is taken.
async fn check_owned<T>(text: &str, value: T)
where
    T: Into<Key> + Clone + Debug + Send + Sync + 'static,
{
    assert_eq!(Key::new(value.clone()).as_str(), text, "{value:?}");
    assert_eq!(value.clone().into_key().await.unwrap().as_str(), text, "{value:?}");
    for (way, key) in extracted(value.clone()).await {
        assert_eq!(key.as_str(), text, "{value:?} by {way}");
    }
    let part = Key::new((value.clone(), "x"));
    assert_eq!(part, Key::join([&Key::new(value.clone()), &Key::new("x")]), "{value:?} as a part");
    assert_eq!(Key::from_stored(text).unwrap(), Key::new(value.clone()), "{value:?} typed by an operator");
}

/// [`check`] of each value with the text before it.
macro_rules! keys {
    ($($text:literal: $($value:expr),+;)+) => { $($(check($text, $value).await;)+)+ };
}

#[tokio::test]
async fn text_makes_one_key_in_every_type() {
    keys! {
        "Jos%C3%A9": "José", "José".to_owned(), Box::<str>::from("José"), Arc::<str>::from("José"),
            Cow::Borrowed("José"), Cow::<'static, str>::Owned("José".to_owned());
        "%": "";
        "%#2a2c60fe96afac9151d4bd932fdb45be": "a".repeat(97);
    }
}

#[tokio::test]
async fn bytes_make_one_key_in_every_type_and_length_and_are_the_key_of_their_text() {
    check_owned("a%00%FF", b"a\0\xff").await;
    keys! {
        "a%00%FF": *b"a\0\xff", b"a\0\xff".as_slice(), b"a\0\xff".to_vec();
        "%": [0_u8; 0];
        // As long as the octets of the addresses, and as a UUID.
        "%C0%00%02%01": [192_u8, 0, 2, 1];
        "0123456789abcdef": *b"0123456789abcdef", "0123456789abcdef";
    }
}

#[tokio::test]
async fn numbers_make_the_key_of_their_decimal_text_in_every_type() {
    keys! {
        "7": 7_i8, 7_i16, 7_i32, 7_i64, 7_i128, 7_isize, 7_u8, 7_u16, 7_u32, 7_u64, 7_u128, 7_usize, "7";
        "-128": i8::MIN;
        "-170141183460469231731687303715884105728": i128::MIN;
        "340282366920938463463374607431768211455": u128::MAX;
    }
}

#[tokio::test]
async fn an_address_makes_one_key_in_every_type_and_text_is_not_parsed() {
    let v4 = Ipv4Addr::new(192, 0, 2, 1);
    let v6: Ipv6Addr = "2001:DB8::1".parse().unwrap();
    keys! {
        "192.0.2.1": v4, IpAddr::from(v4), v4.to_ipv6_mapped(), IpAddr::from(v4.to_ipv6_mapped()), "192.0.2.1";
        "2001:db8::1": v6, IpAddr::from(v6), "2001:db8::1";
        // The same addresses in other texts.
        "2001:DB8::1": "2001:DB8::1";
        "::ffff:192.0.2.1": "::ffff:192.0.2.1";
    }
}

#[tokio::test]
async fn tuples_and_keys_make_the_key_of_their_parts() {
    check_owned("%(acme%|7%)", ("acme", 7)).await;
    check_owned("%(acme%|7%|GET%)", (Key::new("acme"), 7_u8, "GET".to_owned())).await;
    check_owned("%(acme%|7%|%(a%|b%)%|1%)", ("acme", "7", ("a", *b"b"), [49_u8])).await;
    keys! {
        "%(acme%|7%)": Key::new(("acme", 7));
        "alice": Key::new("alice");
        "67e55044-10b1-426f-9247-bb680e5fe0c8":
            Key::from_uuid(0x67e5_5044_10b1_426f_9247_bb68_0e5f_e0c8_u128.to_be_bytes());
        "00000000-0000-0000-0000-00000000000a": Key::from_uuid(10_u128.to_be_bytes());
    }
}

#[tokio::test]
async fn a_type_of_a_program_is_a_key_wherever_a_value_is_one() {
    #[derive(Clone, Debug)]
    struct UserId(u64);

    impl From<UserId> for Key {
        fn from(id: UserId) -> Self {
            Self::new(format!("user-{}", id.0))
        }
    }

    impl From<&UserId> for Key {
        fn from(id: &UserId) -> Self {
            id.clone().into()
        }
    }

    check("user-7", UserId(7)).await;
}

#[tokio::test]
async fn no_value_is_a_missing_identity() {
    let error = None::<u64>.into_key().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingIdentity);
    let error =
        Err::<u64, _>(Error::new(ErrorKind::UnknownIdentity, "no account")).into_key().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownIdentity);
}

/// Whether a `T` makes a key.
struct Makes<T>(PhantomData<T>);

impl<T: Into<Key>> Makes<T> {
    const KEY: bool = true;
}

trait MakesNone {
    const KEY: bool = false;
}

impl<T> MakesNone for Makes<T> {}

#[test]
fn a_type_that_is_written_as_text_elsewhere_makes_no_key_of_its_bytes() {
    /// As in the crate `uuid`.
    struct Uuid([u8; 16]);

    impl AsRef<[u8]> for Uuid {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    assert!(!Uuid([0; 16]).as_ref().is_empty());
    const {
        assert!(Makes::<&str>::KEY && Makes::<&[u8; 16]>::KEY && Makes::<[u8; 16]>::KEY);
        assert!(!Makes::<Uuid>::KEY && !Makes::<&Uuid>::KEY);
        assert!(!Makes::<HeaderValue>::KEY && !Makes::<&HeaderValue>::KEY);
        assert!(!Makes::<bool>::KEY && !Makes::<char>::KEY && !Makes::<Option<u8>>::KEY);
    }
}
