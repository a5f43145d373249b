//! The picture: a row for each protection, with what became of the requests of each second.

use std::{error::Error, path::Path};

use plotters::prelude::*;

use crate::{
    picture::{Area, Picture, QUIET, WIDTH, chart, text},
    service::{END, RUSH, Request, SLOW, Sum, capacity, load},
};

const IN_TIME: RGBColor = RGBColor(0x2a, 0x9d, 0x8f);
const LATE: RGBColor = RGBColor(0xe7, 0x6f, 0x51);
const DENIED: RGBColor = RGBColor(0xcf, 0xd3, 0xd8);
const MOST: f64 = 500.0;
/// The width of a bar, in seconds.
const BAR: f64 = 2.0;

pub(crate) fn draw(path: &Path, rows: &[(&str, &str, Vec<Request>)]) -> Result<(), Box<dyn Error>> {
    let title = "An overloaded service, with and without limits: which requests are answered in time";
    let shows = "requests a second, by the time at which they were sent; on the right, the share of what was possible";
    let picture = Picture::new(path, title, shows, rows.len())?;
    let mut x = 20;
    for (color, label, width) in [
        (IN_TIME, "answered within a second", 205),
        (LATE, "answered later, when the client has given up", 320),
        (DENIED, "denied", 135),
    ] {
        picture.legend(x, color, label)?;
        x += width;
    }
    picture.root.draw(&PathElement::new([(x, 55), (x + 24, 55)], BLACK.stroke_width(2)))?;
    picture.root.draw(&Text::new("capacity of the service", (x + 30, 48), text(14)))?;
    for (place, (area, (name, says, requests))) in picture.rows.iter().zip(rows).enumerate() {
        row(area, name, says, requests, place == 0)?;
    }
    Ok(picture.root.present()?)
}

fn row(
    area: &Area<'_>,
    name: &str,
    says: &str,
    requests: &[Request],
    is_first: bool,
) -> Result<(), Box<dyn Error>> {
    let (label, rest) = area.split_horizontally(210);
    label.draw(&Text::new(name.to_owned(), (20, 38), text(17)))?;
    label.draw(&Text::new(says.to_owned(), (20, 62), text(12).color(&QUIET)))?;
    let (plot, total) = rest.split_horizontally(WIDTH - 210 - 90);
    let mut chart = chart(&plot, 0, END, MOST)?;
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
