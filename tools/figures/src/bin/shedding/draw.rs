//! The picture: a row for each protection, with the part of each class that is answered in time.

use std::{error::Error, path::Path};

use plotters::{coord::Shift, prelude::*};

use crate::service::{CLASSES, END, RUSH, Request};

/// Of each class.
const COLORS: [RGBColor; 3] =
    [RGBColor(0x2a, 0x9d, 0x8f), RGBColor(0xe9, 0xa8, 0x3a), RGBColor(0x9a, 0xa5, 0xb1)];
const QUIET: RGBColor = RGBColor(0x66, 0x66, 0x66);
/// The width of a point, in seconds.
const POINT: f64 = 2.0;
const WIDTH: u32 = 1000;
const ROW: u32 = 124;
const HEADER: u32 = 96;
const FOOTER: u32 = 30;

pub(crate) fn draw(path: &Path, rows: &[(&str, Vec<Request>)]) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(path, (WIDTH, HEADER + ROW * rows.len() as u32 + FOOTER)).into_drawing_area();
    root.fill(&WHITE)?;
    root.draw(&Text::new(
        "A service at three times its capacity: who is answered in time",
        (20, 14),
        text(20),
    ))?;
    for (place, ((criticality, share), color)) in CLASSES.iter().zip(COLORS).enumerate() {
        let x = 20 + 240 * place as i32;
        root.draw(&Rectangle::new([(x, 48), (x + 14, 62)], color.filled()))?;
        root.draw(&Text::new(
            format!("{criticality}, {:.0} % of requests", 100.0 * share),
            (x + 20, 48),
            text(14),
        ))?;
    }
    let what = "percent of each class that is answered within a second, by the time at which they were sent";
    root.draw(&Text::new(what, (20, 72), text(13).color(&QUIET)))?;
    let (_, below) = root.split_vertically(HEADER);
    let (plots, footer) = below.split_vertically(ROW * rows.len() as u32);
    for (place, (area, (name, requests))) in plots.split_evenly((rows.len(), 1)).iter().zip(rows).enumerate()
    {
        row(area, name, requests, place == 0)?;
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
    requests: &[Request],
    is_first: bool,
) -> Result<(), Box<dyn Error>> {
    let (label, plot) = area.split_horizontally(250);
    label.draw(&Text::new(name.to_owned(), (20, 46), text(15)))?;
    let mut chart = ChartBuilder::on(&plot)
        .margin_top(8)
        .margin_right(20)
        .x_label_area_size(18)
        .y_label_area_size(34)
        .build_cartesian_2d(0.0..END, 0.0..105.0)?;
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
