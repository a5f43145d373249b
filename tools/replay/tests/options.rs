//! Options that are invalid, or do not fit the input.

use std::fs;

use support::Directory;

use crate::{errors, replay};

#[test]
fn invalid_options_are_errors_that_name_the_problem() {
    let directory = Directory::new();
    let file = |name: &str, text: &str| {
        let path = directory.file(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let toml = file("limits.toml", "[[policies]]\nname = 'api'\nquota = '5/min'\n");
    let wrong_toml = file("wrong.toml", "[[policies]]\nname = 'api'\nquota = 'many'\n");
    let wrong_json = file("wrong.json", r#"{"policies": [{"name": "api", "quota": "5/min", "brust": 7}]}"#);
    let rows: [(&[&str], &str); 17] = [
        (&["--limit", "0", "--period", "1s"], "limit must be at least 1"),
        (&["--limit", "1", "--period", "soon"], "--period"),
        (&["--period", "1s"], "--limit"),
        (&["--limit", "1", "--period", "1s", "--algorithm", "sliding-log", "--burst", "2"], "has no burst"),
        (&["--limit", "1", "--period", "1s", "--segments", "5"], "--segments is of no use"),
        (&["--limit", "1", "--period", "1s", "no such file"], "cannot read no such file"),
        (&["--limit", "1", "--period", "1s", "--store", "redis://127.0.0.1:1"], "cannot connect to Redis"),
        (&["--limit", "1", "--period", "1s", "--key", "adress"], "invalid key `adress`"),
        (&["--limit", "1", "--period", "1s", "--key", "path:0"], "at least 1"),
        (&["--limit", "1", "--period", "1s", "--key", "address/129"], "1 to 128 bits"),
        (
            &["--limit", "1", "--period", "1s", "--format", "combined", "--key", "field:user"],
            "no named fields",
        ),
        (&["--limit", "1", "--period", "1s", "--cost", "much"], "invalid cost `much`"),
        (&["--policies", &toml, "--key", "plan=user"], "no policy `plan`: the policies are `api`"),
        (&["--policies", &wrong_toml], "line 3: policy `api`: entry `quota`"),
        (&["--policies", &wrong_json], "unknown field `brust`"),
        (&["--policies", &toml, "--algorithm", "sliding-log"], "cannot be used with"),
        (&["--suggest", "--period", "1s", "--suggest-share", "1"], "from 0 to below 1"),
    ];
    for (options, message) in rows {
        let output = replay(options, "");
        assert!(!output.status.success(), "{options:?}");
        let errors = errors(&output);
        assert!(errors.contains(message), "{options:?}: {errors}");
    }
}

#[test]
fn an_input_of_no_known_format_is_an_error() {
    let output = replay(&["--limit", "1", "--period", "1s"], "once upon a time\n");
    assert!(!output.status.success());
    assert!(errors(&output).contains("the format is not recognized: set `--format`"), "{}", errors(&output));
}
