//! The picture: a row for each protection, with what became of the requests of each second.

use std::{error::Error, path::Path};

use plotters::{coord::Shift, prelude::*};

use crate::service::{END, RUSH, Request, SLOW, Sum, capacity, load};

const IN_TIME: RGBColor = RGBColor(0x2a, 0x9d, 0x8f);
const LATE: RGBColor = RGBColor(0xe7, 0x6f, 0x51);
const DENIED: RGBColor = RGBColor(0xcf, 0xd3, 0xd8);
const QUIET: RGBColor = RGBColor(0x66, 0x66, 0x66);
const MOST: f64 = 500.0;
/// The width of a bar, in seconds.
const BAR: f64 = 2.0;
const WIDTH: u32 = 1000;
const ROW: u32 = 124;
const HEADER: u32 = 96;
const FOOTER: u32 = 30;

pub(crate) fn draw(path: &Path, rows: &[(&str, &str, Vec<Request>)]) -> Result<(), Box<dyn Error>> {
    let height = HEADER + ROW * rows.len() as u32 + FOOTER;
    let root = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    root.draw(&Text::new(
        "An overloaded service, with and without limits: which requests are answered in time",
        (20, 14),
        text(20),
    ))?;
    let mut x = 20;
    for (color, label, width) in [
        (IN_TIME, "answered within a second", 205),
        (LATE, "answered later, when the client has given up", 320),
        (DENIED, "denied", 135),
    ] {
        root.draw(&Rectangle::new([(x, 48), (x + 14, 62)], color.filled()))?;
        root.draw(&Text::new(label, (x + 20, 48), text(14)))?;
        x += width;
    }
    root.draw(&PathElement::new([(x, 55), (x + 24, 55)], BLACK.stroke_width(2)))?;
    root.draw(&Text::new("capacity of the service", (x + 30, 48), text(14)))?;
    let what = "requests a second, by the time at which they were sent; on the right, the share of what was possible";
    root.draw(&Text::new(what, (20, 72), text(13).color(&QUIET)))?;
    let (_, below) = root.split_vertically(HEADER);
    let (plots, footer) = below.split_vertically(ROW * rows.len() as u32);
    let areas = plots.split_evenly((rows.len(), 1));
    for (place, (area, (name, says, requests))) in areas.iter().zip(rows).enumerate() {
        row(area, name, says, requests, place == 0)?;
    }
    footer.draw(&Text::new("seconds", (560, 6), text(13).color(&QUIET)))?;
    root.present()?;
    Ok(())
}

fn text(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&BLACK)
}

fn row(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    name: &str,
    says: &str,
    requests: &[Request],
    is_first: bool,
) -> Result<(), Box<dyn Error>> {
    let (label, rest) = area.split_horizontally(210);
    label.draw(&Text::new(name.to_owned(), (20, 38), text(17)))?;
    label.draw(&Text::new(says.to_owned(), (20, 62), text(12).color(&QUIET)))?;
    let (plot, total) = rest.split_horizontally(WIDTH - 210 - 90);
    let mut chart = ChartBuilder::on(&plot)
        .margin_top(8)
        .x_label_area_size(18)
        .y_label_area_size(34)
        .build_cartesian_2d(0.0..END, 0.0..MOST)?;
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
    for bar in 0..(END / BAR) as u32 {
        let (from, to) = (f64::from(bar) * BAR, f64::from(bar + 1) * BAR);
        let sum = Sum::of(requests, from, to);
        let mut height = 0.0;
        for (color, count) in [(IN_TIME, sum.in_time), (LATE, sum.late), (DENIED, sum.denied)] {
            if count > 0.0 {
                let corners = [(from + 0.1, height), (to - 0.1, height + count / BAR)];
                chart.draw_series([Rectangle::new(corners, color.filled())])?;
                height += count / BAR;
            }
        }
    }
    let edges = [0.0, SLOW.start, SLOW.start, SLOW.end, SLOW.end, END];
    let inside = [0.0, 0.0, SLOW.start, SLOW.start, SLOW.end, SLOW.end];
    let line = edges.iter().zip(inside).map(|(&edge, inside)| (edge, capacity(inside)));
    chart.draw_series([PathElement::new(line.collect::<Vec<_>>(), BLACK.stroke_width(2))])?;
    if is_first {
        let rush = format!("a rush: {:.0} a second", load(RUSH.start));
        for (at, says) in [(RUSH.start, rush), (SLOW.start, "the database is slow".to_owned())] {
            chart.draw_series([Text::new(says, (at + 1.0, MOST - 2.0), text(13))])?;
        }
    }
    let sum = Sum::of(requests, 0.0, END);
    let share = format!("{:.0} %", 100.0 * sum.in_time / sum.possible);
    total.draw(&Text::new(share, (14, 44), text(22).color(&IN_TIME)))?;
    Ok(())
}
