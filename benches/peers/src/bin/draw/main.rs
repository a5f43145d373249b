//! Draws docs/performance.svg and docs/growth.svg from the data of a run.
//!
//! ```text
//! cargo run --release --bin draw -- results.json ../../docs
//! ```

mod comparison;
mod data;
mod growth;

use std::{env, error::Error, fs, path::Path};

use data::Run;
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

const WIDTH: u32 = 1000;
const QUIET: RGBColor = RGBColor(0x66, 0x66, 0x66);
const FAINT: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [data, folder] = &arguments[..] else { return Err("draw results.json FOLDER".into()) };
    let run: Run = serde_json::from_str(&fs::read_to_string(data)?)?;
    comparison::draw(&run, &Path::new(folder).join("performance.svg"))?;
    growth::draw(&run, &Path::new(folder).join("growth.svg"))
}

/// Text of this size and color, whose point is its left or right end, or its middle, at half of its height.
fn text(size: u32, color: RGBColor, at: HPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&color).pos(Pos::new(at, VPos::Center))
}

fn write(
    area: &Area<'_>,
    words: &str,
    at: (i32, i32),
    style: TextStyle<'static>,
) -> Result<(), Box<dyn Error>> {
    area.draw(&Text::new(words.to_owned(), at, style))?;
    Ok(())
}

/// When and on what was measured, and how often, at the bottom of a picture.
fn footer(area: &Area<'_>, run: &Run, rounds: usize, milliseconds: u32) -> Result<(), Box<dyn Error>> {
    let about: Vec<&str> = run.about.iter().take(2).map(String::as_str).collect();
    let about = about.join("; ");
    let words = format!("{about}. Medians; rounds: {rounds}, of {milliseconds} ms, interleaved.");
    write(area, &words, (20, area.dim_in_pixel().1 as i32 - 18), text(11, QUIET, HPos::Left))
}
