//! Requests a second and CPU time of a decision of the limiters on Redis, for stored keys, at 1, 16, 64 and 256 in flight.

use std::{error::Error, path::Path};

use plotters::{prelude::*, style::text_anchor::HPos};

use crate::{
    Area, FAINT, QUIET, WIDTH,
    data::{Contender, Run, median},
    footer, text, write,
};

const LOADS: [(&str, &str); 4] = [
    ("stored1", "1 in flight"),
    ("stored16", "16 in flight"),
    ("stored64", "64 in flight"),
    ("stored256", "256 in flight"),
];
/// Client and Redis, ours and others.
const OURS: [RGBColor; 2] = [RGBColor(0x1b, 0x7f, 0x74), RGBColor(0x7c, 0xc7, 0xbe)];
const BEHIND_OURS: RGBColor = RGBColor(0xec, 0xf6, 0xf4);
const OTHERS: [RGBColor; 2] = [RGBColor(0x8a, 0x8f, 0x98), RGBColor(0xc6, 0xca, 0xd0)];

const TOP: i32 = 84;
const ROW: i32 = 26;
const BAR: i32 = 16;
const NAMES: i32 = 300;
const COLUMN: i32 = 172;
/// The longest bar. The rest of a column is for its figure.
const LONGEST: f64 = 120.0;
const BETWEEN: i32 = 64;

/// A bar in parts, or why it is missing.
type Bar = Result<Vec<f64>, &'static str>;

pub(crate) fn draw(run: &Run, path: &Path) -> Result<(), Box<dyn Error>> {
    let mut contenders: Vec<&Contender> = run
        .contenders
        .iter()
        .filter(|contender| contender.place.starts_with("redis"))
        .filter(|contender| LOADS.iter().all(|(load, _)| contender.scenarios.contains_key(*load)))
        .collect();
    let rate = |contender: &Contender, load: &str| median(&contender.scenarios[load].rounds.rate);
    contenders.sort_by(|a, b| rate(b, LOADS[2].0).total_cmp(&rate(a, LOADS[2].0)));

    let rows = contenders.len() as i32;
    let panel = ROW * (rows + 1);
    let height = TOP + 2 * panel + BETWEEN + 44;
    let root = SVGBackend::new(path, (WIDTH, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    write(
        &root,
        "Limits counted in Redis: 10,000 stored keys, all requests admitted",
        (20, 24),
        text(20, BLACK, HPos::Left),
    )?;

    title(&root, TOP - 28, "requests a second", "more is better")?;
    bars(
        &root,
        TOP,
        &contenders,
        |contender, load| vec![rate(contender, load)],
        |total| format!("{:.0} k", total / 1e3),
    )?;

    let below = TOP + panel + BETWEEN;
    title(&root, below - 28, "CPU time of a decision, in microseconds", "less is better")?;
    legend(&root, below - 28)?;
    let cpu = |contender: &Contender, load: &str| {
        let rounds = &contender.scenarios[load].rounds;
        vec![median(&rounds.client_cpu), median(&rounds.server_cpu)]
    };
    bars(&root, below, &contenders, cpu, |total| format!("{total:.1}"))?;
    footer(&root, run, run.rounds, run.milliseconds)?;
    root.present()?;
    Ok(())
}

fn title(root: &Area<'_>, y: i32, what: &str, better: &str) -> Result<(), Box<dyn Error>> {
    write(root, what, (20, y), text(16, BLACK, HPos::Left))?;
    write(root, better, (WIDTH as i32 - 20, y), text(13, QUIET, HPos::Right))
}

fn legend(root: &Area<'_>, y: i32) -> Result<(), Box<dyn Error>> {
    let mut x = 400;
    for (part, name) in ["the service's process", "Redis"].into_iter().enumerate() {
        for (nth, colors) in [OURS, OTHERS].into_iter().enumerate() {
            let left = x + nth as i32 * 14;
            root.draw(&Rectangle::new([(left, y - 6), (left + 14, y + 6)], colors[part].filled()))?;
        }
        write(root, name, (x + 36, y), text(13, BLACK, HPos::Left))?;
        x += 190;
    }
    Ok(())
}

/// A row for each contender and a column for each load, all to one scale.
fn bars(
    root: &Area<'_>,
    top: i32,
    contenders: &[&Contender],
    parts: impl Fn(&Contender, &str) -> Vec<f64>,
    show: impl Fn(f64) -> String,
) -> Result<(), Box<dyn Error>> {
    let bar = |contender: &Contender, load: &str| -> Bar {
        if contender.exact && contender.scenarios[load].valid {
            Ok(parts(contender, load))
        } else {
            Err("limits wrongly")
        }
    };
    let totals = contenders.iter().flat_map(|contender| LOADS.iter().map(|(load, _)| bar(contender, load)));
    let totals: Vec<f64> = totals.flatten().map(|parts| parts.iter().sum()).collect();
    // A few bars that are much longer than the others are cut, or they make the others too short to compare.
    let longest = totals.iter().copied().fold(0.0, f64::max).min(median(&totals) * 2.5);
    if totals.iter().any(|&total| total > longest) {
        let at = (WIDTH as i32 - 130, top - 28);
        write(root, "a bar with a gap is cut", at, text(13, QUIET, HPos::Right))?;
    }

    for (row, contender) in contenders.iter().enumerate() {
        let middle = middle(top, row);
        let ours = contender.ours;
        if ours {
            let corners = [(14, middle - ROW / 2), (WIDTH as i32 - 14, middle + ROW / 2)];
            root.draw(&Rectangle::new(corners, BEHIND_OURS.filled()))?;
        } else {
            let ends = [(NAMES, middle + ROW / 2), (WIDTH as i32 - 20, middle + ROW / 2)];
            root.draw(&PathElement::new(ends, FAINT))?;
        }
        let color = if ours { OURS[0] } else { BLACK };
        write(root, &contender.name, (NAMES - 10, middle), weight(text(13, color, HPos::Right), ours))?;
    }
    for (column, (load, name)) in LOADS.iter().enumerate() {
        let left = NAMES + column as i32 * COLUMN;
        write(root, name, (left, top + 4), text(13, QUIET, HPos::Left))?;
        let bottom = top + ROW * (contenders.len() as i32 + 1) - 10;
        root.draw(&PathElement::new([(left - 1, top + 16), (left - 1, bottom)], QUIET))?;
        for (row, contender) in contenders.iter().enumerate() {
            let middle = middle(top, row);
            match bar(contender, load) {
                Ok(parts) => one_bar(root, (left, middle), &parts, longest, contender.ours, &show)?,
                Err(problem) => write(root, problem, (left + 6, middle), text(12, QUIET, HPos::Left))?,
            }
        }
    }
    Ok(())
}

fn middle(top: i32, row: usize) -> i32 {
    top + ROW * (row as i32 + 1) + 4
}

/// Ours is bold.
fn weight(mut style: TextStyle<'static>, ours: bool) -> TextStyle<'static> {
    if ours {
        style.font = style.font.style(FontStyle::Bold);
    }
    style
}

fn one_bar(
    root: &Area<'_>,
    (left, middle): (i32, i32),
    parts: &[f64],
    longest: f64,
    ours: bool,
    show: &impl Fn(f64) -> String,
) -> Result<(), Box<dyn Error>> {
    let total: f64 = parts.iter().sum();
    let x = |value: f64| left + (value.min(longest) / longest * LONGEST).round() as i32;
    let colors = if ours { OURS } else { OTHERS };
    let mut from = 0.0;
    for (part, color) in parts.iter().zip(colors) {
        let corners = [(x(from), middle - BAR / 2), (x(from + part), middle + BAR / 2)];
        root.draw(&Rectangle::new(corners, color.filled()))?;
        from += part;
    }
    let end = x(total);
    if total > longest {
        for gap in [16, 11] {
            let stroke = [(end - gap, middle + BAR / 2 + 2), (end - gap + 5, middle - BAR / 2 - 2)];
            root.draw(&PathElement::new(stroke, WHITE.stroke_width(2)))?;
        }
    }
    let color = if ours { OURS[0] } else { BLACK };
    write(root, &show(total), (end + 6, middle), weight(text(12, color, HPos::Left), ours))
}
