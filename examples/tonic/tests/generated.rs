//! `examples/tonic/src/greeter.rs` is generated from `greeter.proto`. protox reads the file, so protoc is not
//! needed.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use std::{env, fs, path::Path};

/// After a change of `greeter.proto` or of tonic: `BLESS=1 cargo test -p example-tonic`.
#[test]
fn the_greeter_is_what_its_proto_makes() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated");
    fs::create_dir_all(&made).unwrap();

    let descriptors = protox::compile(["greeter.proto"], [example]).unwrap();
    tonic_prost_build::configure().out_dir(&made).compile_fds(descriptors).unwrap();
    let made = fs::read_to_string(made.join("greeter.rs")).unwrap();
    let committed = example.join("src/greeter.rs");
    if env::var_os("BLESS").is_some() {
        fs::write(&committed, &made).unwrap();
    }
    assert!(fs::read_to_string(committed).unwrap() == made, "run `BLESS=1 cargo test -p example-tonic`");
}
