//! The report as one HTML file.

use std::fs;

use support::Directory;

use crate::{errors, replay};

const POLICIES: &str = "
    [[policies]]
    name = 'minute & more'
    quota = '2/min'
    [[policies]]
    name = 'strict'
    quota = '1/min'
    enforced = 0";

/// Three requests of one client in a minute, and one of another; a line that has no request.
fn log() -> String {
    let line = |address: &str| {
        format!("{address} - - [10/Oct/2026:13:55:36 +0000] \"GET / HTTP/1.1\" 200 12 \"-\" \"curl\"\n")
    };
    format!("{}{}<script>alert(1)</script>\n", line("203.0.113.7").repeat(3), line("198.51.100.1"))
}

fn report(options: &[&str], log: &str) -> String {
    let directory = Directory::new();
    let (policies, report) = (directory.file("limits.toml"), directory.file("report.html"));
    fs::write(&policies, POLICIES).unwrap();
    let files = ["--policies", policies.to_str().unwrap(), "--report", report.to_str().unwrap()];
    let output = replay(&[&files, options].concat(), log);
    assert!(output.status.success(), "{}", errors(&output));
    fs::read_to_string(report).unwrap()
}

#[test]
fn the_report_has_the_numbers_of_the_replay() {
    let report = report(&[], &log());
    let has = |text: &str| assert!(report.contains(text), "{text}:\n{report}");
    has("4 requests from 2026-10-10 13:55:36 to 2026-10-10 13:55:36 UTC, read as combined");
    has("<dt>denied</dt><dd>1 <small>25.0 %</small></dd>");
    let listed = |name: &str, cells: [(&str, &str); 8]| {
        let cell = |(head, cell)| format!("<td data-head=\"{head}\"><span>{cell}</span></td>");
        format!("<th scope=\"row\">{name}</th>{}</tr>", cells.map(cell).concat())
    };
    let cells = |settings, [clients, requests, alone, shadow]: [&'static str; 4]| {
        [
            ("settings", settings),
            ("key", "address"),
            ("clients", "2"),
            ("clients denied", clients),
            ("requests denied", requests),
            ("only by this one", alone),
            ("as a shadow", shadow),
            ("in bans", "0"),
        ]
    };
    let minute = ["1 <small>50.0 %</small>", "1 <small>25.0 %</small>", "1", "0"];
    has(&listed("minute &amp; more", cells("2/min, gcra", minute)));
    let strict = ["1 <small>50.0 %</small>", "0 <small>0 %</small>", "0", "2"];
    has(&listed("strict", cells("1/min, gcra, shadow", strict)));
    // The charts, and the same as tables.
    has("<title>2026-10-10 13:55:36: 3 admitted, 1 denied</title>");
    has("<title>2026-10-10 13:55:36: 2 shadow</title>");
    has("<th scope=\"row\">2026-10-10 13:55:36</th><td>4</td><td>3</td><td>1</td><td>1</td><td>2</td>");
    has("<th scope=\"row\">40 to 50 %</th><td>1</td><td>50.0 %</td>");
    has("<th scope=\"row\">denied</th><td>1</td><td>50.0 %</td>");
    has("<p>Malformed and skipped: 1 line.</p>");
    has("<th scope=\"row\">5</th><td>no address with a space after it</td>");
}

#[test]
fn the_report_refers_to_no_other_file_and_hides_identities() {
    let hidden = report(&[], &log());
    for text in
        ["http:", "https:", "src=", "href=", "url(", "@import", "203.0.113.7", "198.51.100.1", "alert"]
    {
        assert!(!hidden.contains(text), "{text}:\n{hidden}");
    }
    let name = |report: &str| report.split_once("<code>#").unwrap().1[..12].to_owned();
    assert!(name(&hidden).bytes().all(|byte| byte.is_ascii_hexdigit()), "{}", name(&hidden));
    // The secret is new in each run.
    assert_ne!(name(&hidden), name(&report(&[], &log())));

    let shown = report(&["--show-keys"], &log());
    assert!(shown.contains("<code>203.0.113.7</code></th><td>3</td><td>1</td><td>33.3 %</td>"), "{shown}");
    assert!(shown.contains("<code>&lt;script&gt;alert(1)&lt;/script&gt;</code>"), "{shown}");
}

#[test]
fn a_report_without_requests_says_so() {
    assert!(report(&[], "").contains("The input has no requests."));
}
