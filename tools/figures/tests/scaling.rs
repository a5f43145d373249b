//! The formulas of docs/scaling.md agree with the simulation.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use std::process::Command;

/// The rows of each table, as numbers.
fn tables(text: &str) -> Vec<Vec<Vec<f64>>> {
    let cells = |line: &str| -> Vec<f64> {
        let cells = line.split('|').map(|cell| cell.trim().trim_end_matches(" µs").trim_end_matches(" %"));
        cells.filter_map(|cell| cell.parse().ok()).collect()
    };
    let mut tables = Vec::new();
    for line in text.lines() {
        if line.starts_with("|---") {
            tables.push(Vec::new());
        } else if let (Some(table), true) = (tables.last_mut(), !cells(line).is_empty()) {
            table.push(cells(line));
        }
    }
    tables
}

#[test]
fn the_formulas_of_scaling_are_near_the_simulation() {
    let output = Command::new(env!("CARGO_BIN_EXE_scaling")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let near = |name: &str, seen: f64, formula: f64, by: f64| {
        assert!((seen / formula - 1.0).abs() < by, "{name}: {seen}, not {formula}\n{text}");
    };
    let [calls, fleets, denied, leased] = &*tables(&text) else { panic!("{text}") };
    assert_eq!((calls.len(), fleets.len(), denied.len(), leased.len()), (7, 11, 4, 4), "{text}");
    for row in calls {
        let &[_, _, gathered, gathered_formula, busy, busy_formula, _] = &**row else { panic!("{row:?}") };
        near("in a batch", gathered, gathered_formula, 0.5);
        // The formula hardly underestimates.
        assert!(busy <= busy_formula + 0.03, "{row:?}\n{text}");
        near("busy", busy, busy_formula, 0.2);
    }
    for row in fleets {
        let &[_, _, rate, gathered, busy, busy_formula, _] = &**row else { panic!("{row:?}") };
        assert!(gathered < if rate > 100_000.0 { 3.0 } else { 1.1 }, "{row:?}\n{text}");
        // Ten requests in a second are few: the counts differ by chance.
        assert!((busy - busy_formula).abs() < 0.2 + 0.1 * busy_formula, "{row:?}\n{text}");
    }
    for row in denied {
        let &[_, rate, _, without, with, formula] = &**row else { panic!("{row:?}") };
        near("without a deny cache", without, rate, 0.02);
        near("with one", with, formula, 0.7);
    }
    for row in leased {
        let &[_, rate, lease, asked, formula, above] = &**row else { panic!("{row:?}") };
        // Redis also decides the requests that come while a lease is fetched, and those that are denied.
        let fetching = if lease > 1.0 { 100.0 } else { rate - formula };
        assert!((formula..formula + fetching + 1.0).contains(&asked), "{row:?}\n{text}");
        assert!(above == 0.0, "{row:?}");
    }
}
