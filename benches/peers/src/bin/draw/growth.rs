//! CPU time of a decision by the number of keys, the limit, and the policies of a request.

use std::{error::Error, path::Path};

use plotters::{prelude::*, style::text_anchor::HPos};

use crate::{
    Area, FAINT, QUIET, WIDTH,
    data::{Point, Run, median},
    footer, text, write,
};

const HEIGHT: i32 = 440;
const TOP: i32 = 100;
const BOTTOM: i32 = HEIGHT - 90;
const COLORS: [(&str, RGBColor); 4] = [
    ("Gcra", RGBColor(0x1b, 0x7f, 0x74)),
    ("SlidingWindow", RGBColor(0x45, 0x7b, 0x9d)),
    ("SlidingLog", RGBColor(0xe0, 0x8a, 0x1e)),
    ("SlidingLog, a full log, denied", RGBColor(0xc4, 0x45, 0x36)),
];
/// One part of the picture.
struct Panel {
    /// In the data.
    axis: &'static str,
    name: &'static str,
    logarithmic: bool,
    left: i32,
    right: i32,
}

const PANELS: [Panel; 3] = [
    Panel { axis: "keys", name: "number of keys", logarithmic: true, left: 60, right: 340 },
    Panel { axis: "limit", name: "limit", logarithmic: true, left: 400, right: 680 },
    Panel { axis: "policies", name: "policies of a request", logarithmic: false, left: 740, right: 960 },
];

pub(crate) fn draw(run: &Run, path: &Path) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(path, (WIDTH, HEIGHT as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let title = "CPU time of a decision in microseconds: RedisStore, 64 in flight";
    write(&root, title, (20, 24), text(20, BLACK, HPos::Left))?;
    legend(&root)?;
    for panel in PANELS {
        let points: Vec<&Point> = run.growth.iter().filter(|point| point.axis == panel.axis).collect();
        panel.draw(&root, &points)?;
    }
    let rounds = run.growth.first().map_or(0, |point| point.rounds.rate.len());
    footer(&root, run, rounds, run.milliseconds / 2)?;
    root.present()?;
    Ok(())
}

impl Panel {
    fn draw(&self, root: &Area<'_>, points: &[&Point]) -> Result<(), Box<dyn Error>> {
        let &Self { name, left, right, .. } = self;
        let mut ats: Vec<f64> = points.iter().map(|point| point.at).collect();
        ats.sort_by(f64::total_cmp);
        ats.dedup();
        let (Some(&first), Some(&last)) = (ats.first(), ats.last()) else { return Ok(()) };
        let highest = points.iter().flat_map(|point| [server(point), client(point)]).fold(0.0, f64::max);
        let step =
            [1.0, 2.0, 5.0, 10.0, 20.0, 50.0].into_iter().find(|step| highest / step <= 6.0).unwrap_or(100.0);
        let top = (highest / step).ceil() * step;
        // From the first point to the last.
        let scale = |at: f64| if self.logarithmic { at.ln() } else { at };
        let x = |at: f64| {
            let share = (scale(at) - scale(first)) / (scale(last) - scale(first));
            left + (share * f64::from(right - left)).round() as i32
        };
        let y = |cpu: f64| BOTTOM - (cpu / top * f64::from(BOTTOM - TOP)).round() as i32;

        for line in 0..=(top / step) as i32 {
            let value = f64::from(line) * step;
            root.draw(&PathElement::new([(left, y(value)), (right, y(value))], FAINT))?;
            write(root, &format!("{value}"), (left - 12, y(value)), text(12, QUIET, HPos::Right))?;
        }
        for &at in &ats {
            write(root, &short(at), (x(at), BOTTOM + 14), text(12, QUIET, HPos::Center))?;
        }
        write(root, name, (i32::midpoint(left, right), BOTTOM + 34), text(13, BLACK, HPos::Center))?;
        for (series, color) in COLORS {
            let of = |cpu: fn(&Point) -> f64| {
                let points = points.iter().filter(|point| point.series == series);
                points.map(|point| (x(point.at), y(cpu(point)))).collect::<Vec<_>>()
            };
            let (redis, service) = (of(server), of(client));
            root.draw(&PathElement::new(redis.clone(), color.stroke_width(2)))?;
            for at in redis {
                root.draw(&Circle::new(at, 3, color.filled()))?;
            }
            // A dashed line, in pieces of 4 pixels.
            for ends in service.windows(2) {
                let [(from, at), (to, then)] = *ends else { continue };
                let level = |x: i32| at + (then - at) * (x - from) / (to - from).max(1);
                for dash in (from..to - 4).step_by(8) {
                    root.draw(&PathElement::new(
                        [(dash, level(dash)), (dash + 4, level(dash + 4))],
                        color.stroke_width(1),
                    ))?;
                }
            }
        }
        Ok(())
    }
}

fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{} M", value / 1e6),
        value if value >= 1e3 => format!("{} k", value / 1e3),
        value => format!("{value}"),
    }
}

fn server(point: &Point) -> f64 {
    median(&point.rounds.server_cpu)
}

fn client(point: &Point) -> f64 {
    median(&point.rounds.client_cpu)
}

fn legend(root: &Area<'_>) -> Result<(), Box<dyn Error>> {
    let mut x = 20;
    for (name, color) in COLORS {
        root.draw(&Rectangle::new([(x, 50), (x + 14, 64)], color.filled()))?;
        write(root, name, (x + 20, 57), text(14, BLACK, HPos::Left))?;
        x += 50 + 8 * name.len() as i32;
    }
    write(root, "solid: Redis; dashed: the service's process", (x + 10, 57), text(14, QUIET, HPos::Left))
}
