//! Keys of any bytes. The lines of the input are the identities.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tower_ratelimit::Key;

/// Identities up to this length are never hashed: each byte is stored in at most three.
const SHORT: usize = 32;

fuzz_target!(|data: &[u8]| {
    let identities: Vec<&[u8]> = data.split(|&byte| byte == b'\n').take(16).collect();
    let keys: Vec<Key> = identities.iter().map(Key::new).collect();
    keys.iter().for_each(is_sound);
    is_sound(&Key::new(data));

    for (key, identity) in keys.iter().zip(&identities) {
        for (other_key, other) in keys.iter().zip(&identities) {
            // Hashes of 128 bits do not collide either.
            assert_eq!(key == other_key, identity == other);
        }
    }

    let whole = Key::join(&keys);
    is_sound(&whole);
    let parts: Vec<&str> = keys.iter().map(Key::as_str).collect();
    let text = format!("%({}%)", parts.join("%|"));
    // A join is stored with its parts visible, unless it is too long.
    assert_eq!(whole.as_str() == text, text.len() <= 96, "{text}");
    assert_eq!(whole, Key::join(&keys));
    let joined = |parts: &[&[u8]]| Key::join(&parts.iter().map(Key::new).collect::<Vec<_>>());
    for count in 0..keys.len() {
        // A join of fewer parts, and a join of the same bytes with other boundaries.
        let (left, right) = identities.split_at(count);
        assert_ne!(whole, Key::join(&keys[..count]));
        let (left, right) = (left.concat(), right.concat());
        let halves: [&[u8]; 2] = [&left, &right];
        assert_eq!(whole == joined(&halves), identities == halves);
    }
    if let Some((first, others)) = keys.split_first() {
        let turned: Vec<Key> = others.iter().chain([first]).cloned().collect();
        assert_eq!(whole == Key::join(&turned), keys == turned);
        // A nested join does not equal a flat join.
        if keys.len() > 1 {
            assert_ne!(whole, Key::join([&Key::join(&keys[..keys.len() - 1]), &keys[keys.len() - 1]]));
            assert_ne!(whole, Key::join([&whole]));
        }
    }

    // No client can send an identity whose key equals the key of a join.
    for identity in identities.iter().copied().chain([data, whole.as_str().as_bytes()]) {
        assert_ne!(Key::new(identity), whole);
        assert_ne!(Key::new(identity), Key::join([&Key::new(identity)]));
        if identity.len() <= SHORT {
            assert!(!Key::new(identity).as_str().contains('#') || identity.contains(&b'#'));
        }
    }
});

fn is_sound(key: &Key) {
    let text = key.as_str();
    assert!((1..=96).contains(&text.len()), "{text}");
    assert!(text.bytes().all(|byte| (0x21..=0x7e).contains(&byte) && byte != b'{' && byte != b'}'), "{text}");
}
