//! What pictures over time have in common: a title, a line that says what they show, and a row for each case, over its seconds.

use std::{error::Error, path::Path};

use plotters::{
    coord::{Shift, types::RangedCoordf64},
    prelude::*,
};

pub(crate) const WIDTH: u32 = 1000;
pub(crate) const QUIET: RGBColor = RGBColor(0x66, 0x66, 0x66);
const ROW: u32 = 124;
const HEADER: u32 = 96;
const FOOTER: u32 = 30;

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// A picture to draw into. [`present`](DrawingArea::present) of `root` writes it.
pub(crate) struct Picture<'a> {
    /// The whole, for a legend between its title and the line below it.
    pub(crate) root: Area<'a>,
    /// From the first row to the last one.
    pub(crate) rows: Vec<Area<'a>>,
}

impl<'a> Picture<'a> {
    pub(crate) fn new(path: &'a Path, title: &str, shows: &str, rows: usize) -> Result<Self, Box<dyn Error>> {
        let height = ROW * u32::try_from(rows)?;
        let root = SVGBackend::new(path, (WIDTH, HEADER + height + FOOTER)).into_drawing_area();
        root.fill(&WHITE)?;
        root.draw(&Text::new(title, (20, 14), text(20)))?;
        root.draw(&Text::new(shows, (20, 72), text(13).color(&QUIET)))?;
        let (plots, footer) = root.split_vertically(HEADER).1.split_vertically(height);
        footer.draw(&Text::new("seconds", (560, 6), text(13).color(&QUIET)))?;
        Ok(Self { root, rows: plots.split_evenly((rows, 1)) })
    }

    /// An entry of the legend, at this place from the left.
    pub(crate) fn legend(&self, x: i32, color: RGBColor, label: &str) -> Result<(), Box<dyn Error>> {
        self.root.draw(&Rectangle::new([(x, 48), (x + 14, 62)], color.filled()))?;
        Ok(self.root.draw(&Text::new(label, (x + 20, 48), text(14)))?)
    }
}

pub(crate) fn text(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&BLACK)
}

/// A chart with its axes: the seconds from 0 to `end`, and numbers from 0 to `most`.
pub(crate) fn chart<'a, 'b>(
    area: &'a Area<'b>,
    margin: i32,
    end: f64,
    most: f64,
) -> Result<Chart<'a, 'b>, Box<dyn Error>> {
    let mut chart = ChartBuilder::on(area)
        .margin_top(8)
        .margin_right(margin)
        .x_label_area_size(18)
        .y_label_area_size(34)
        .build_cartesian_2d(0.0..end, 0.0..most)?;
    let whole = |value: &f64| format!("{value:.0}");
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .x_labels(10)
        .y_labels(5)
        .x_label_formatter(&whole)
        .y_label_formatter(&whole)
        .draw()?;
    Ok(chart)
}
