//! The picture: a row for each protection, with the part of each class that is answered in time.

use std::{error::Error, path::Path};

use plotters::prelude::*;

use crate::{
    picture::{Area, Picture, chart, text},
    service::{CLASSES, END, RUSH, Request},
};

/// Of each class.
const COLORS: [RGBColor; 3] =
    [RGBColor(0x2a, 0x9d, 0x8f), RGBColor(0xe9, 0xa8, 0x3a), RGBColor(0x9a, 0xa5, 0xb1)];
/// The width of a point, in seconds.
const POINT: f64 = 2.0;

pub(crate) fn draw(path: &Path, rows: &[(&str, Vec<Request>)]) -> Result<(), Box<dyn Error>> {
    let title = "A service at three times its capacity: who is answered in time";
    let shows = "percent of each class that is answered within a second, by the time at which they were sent";
    let picture = Picture::new(path, title, shows, rows.len())?;
    for (place, ((criticality, share), color)) in CLASSES.iter().zip(COLORS).enumerate() {
        let label = format!("{criticality}, {:.0} % of requests", 100.0 * share);
        picture.legend(20 + 240 * place as i32, color, &label)?;
    }
    for (place, (area, (name, requests))) in picture.rows.iter().zip(rows).enumerate() {
        row(area, name, requests, place == 0)?;
    }
    Ok(picture.root.present()?)
}

fn row(area: &Area<'_>, name: &str, requests: &[Request], is_first: bool) -> Result<(), Box<dyn Error>> {
    let (label, plot) = area.split_horizontally(250);
    label.draw(&Text::new(name.to_owned(), (20, 46), text(15)))?;
    let mut chart = chart(&plot, 20, END, 105.0)?;
    for (class, color) in COLORS.into_iter().enumerate().rev() {
        let points = (0..(END / POINT) as u32).map(|point| {
            let from = f64::from(point) * POINT;
            let of_class = || {
                let times = from..from + POINT;
                requests.iter().filter(move |request| times.contains(&request.at) && request.class == class)
            };
            let in_time = of_class().filter(|request| request.is_in_time()).count() as f64;
            (from + POINT / 2.0, 100.0 * in_time / (of_class().count() as f64).max(1.0))
        });
        chart.draw_series([PathElement::new(points.collect::<Vec<_>>(), color.stroke_width(3))])?;
    }
    if is_first {
        let says = "three times the capacity".to_owned();
        chart.draw_series([Text::new(says, (RUSH.start + 1.0, 60.0), text(13))])?;
    }
    Ok(())
}
