//! Draws the decisions of each algorithm on the same traffic into `docs/algorithms.svg`.
//!
//! Run with
//!
//! ```text
//! cargo run -p docs-figures --bin plot_algorithms
//! ```
//!
//! The traffic: a steady client below the limit, a client that sends a burst on each side of a window's edge,
//! an attack, silence. The limit: 10 in 5 seconds. The decisions are this crate's own, on a manual clock.

use std::{error::Error, path::Path, time::Duration};

use plotters::prelude::*;
use tower_ratelimit::{
    Key, Limiter, MemoryStore, Policy, Quota,
    algorithm::{Algorithm, FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    decision::Verdict,
    store::ManualClock,
};

const END: f64 = 45.0;
const LIMIT: u64 = 10;
const PERIOD: Duration = Duration::from_secs(5);
/// The width of a bar, in seconds.
const BAR: f64 = 0.5;

const ADMITTED: RGBColor = RGBColor(0x2a, 0x9d, 0x8f);
const DENIED: RGBColor = RGBColor(0xe7, 0x6f, 0x51);
const WAITED: RGBColor = RGBColor(0x45, 0x7b, 0x9d);
const QUIET: RGBColor = RGBColor(0x99, 0x99, 0x99);

/// When requests come, in seconds.
fn traffic() -> Vec<f64> {
    let every = |from: f64, to: f64, pause: f64| {
        (0..).map(move |i| from + f64::from(i) * pause).take_while(move |at| *at < to - 1e-9)
    };
    let mut traffic: Vec<f64> = every(0.3, 10.0, 0.7).collect();
    // Ten just before the window's edge at 15 s, and ten just after.
    traffic.extend(every(14.5, 15.0, 0.05).chain(every(15.0, 15.5, 0.05)));
    traffic.extend(every(22.0, 32.0, 0.1));
    traffic.extend(every(37.2, 44.0, 0.7));
    traffic
}

/// One row of the picture: when requests were admitted, whether they were delayed, and when requests were
/// denied.
struct Lane {
    name: &'static str,
    says: &'static str,
    left: Vec<(f64, bool)>,
    denied: Vec<f64>,
}

async fn lane(
    name: &'static str,
    says: &'static str,
    algorithm: impl Algorithm,
) -> Result<Lane, Box<dyn Error>> {
    let clock = ManualClock::new();
    let start = clock.now();
    let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
    let policy = Policy::new("plot", Quota::new(LIMIT, PERIOD)).algorithm(algorithm);
    let mut lane = Lane { name, says, left: Vec::new(), denied: Vec::new() };
    for at in traffic() {
        clock.set(start + Duration::from_micros((at * 1e6).round() as u64));
        match limiter.check(&policy, &Key::new("client"), 1).await?.verdict() {
            Verdict::Delay(wait) => lane.left.push((at + wait.as_secs_f64(), true)),
            Verdict::Deny { .. } => lane.denied.push(at),
            _ => lane.left.push((at, false)),
        }
    }
    Ok(lane)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let lanes = [
        lane("FixedWindow", "20 within a second, at the edge", FixedWindow::aligned()).await?,
        lane("SlidingWindow", "the edge is smoothed", SlidingWindow::new()).await?,
        lane("SlidingLog", "never more than 10 in any 5 s", SlidingLog::new()).await?,
        lane("Gcra", "a burst of 10, then 2 a second", Gcra::new()).await?,
        lane(
            "TokenBucket in steps",
            "a burst of 10, then 5 every 2.5 s",
            TokenBucket::new().refill_every(PERIOD / 2),
        )
        .await?,
        lane(
            "LeakyBucket queue",
            "2 a second leave, up to 3 s late",
            LeakyBucket::queue(Duration::from_secs(3)),
        )
        .await?,
    ];
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/algorithms.svg");
    std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
    draw(&path, &lanes)
}

fn draw(path: &Path, lanes: &[Lane]) -> Result<(), Box<dyn Error>> {
    const HEIGHT: u32 = 118;
    const HEADER: u32 = 84;
    let height = HEADER + HEIGHT * (lanes.len() as u32 + 1) + 10;
    let root = SVGBackend::new(path, (1000, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let text = |size: i32| ("sans-serif", size).into_font();
    root.draw(&Text::new("One traffic, a limit of 10 in 5 seconds, six algorithms", (20, 14), text(20)))?;
    let mut x = 20;
    for (color, label, width) in
        [(ADMITTED, "admitted", 110), (WAITED, "admitted, had to wait", 190), (DENIED, "denied", 100)]
    {
        root.draw(&Rectangle::new([(x, 50), (x + 14, 64)], color.filled()))?;
        root.draw(&Text::new(label, (x + 20, 50), text(14)))?;
        x += width;
    }
    root.draw(&Text::new(
        "bars: requests in half a second    dotted: edges of the windows",
        (x, 50),
        text(14),
    ))?;

    let (_, below) = root.split_vertically(HEADER);
    let areas = below.split_evenly((lanes.len() + 1, 1));
    let asked: Vec<(f64, RGBColor)> = traffic().into_iter().map(|at| (at, QUIET)).collect();
    row(&areas[0], "the traffic", "steady, a burst at an edge, an attack, silence, steady", &[asked], 12.5)?;
    for (area, lane) in areas[1..].iter().zip(lanes) {
        let left =
            lane.left.iter().map(|(at, waited)| (*at, if *waited { WAITED } else { ADMITTED })).collect();
        let denied = lane.denied.iter().map(|at| (*at, DENIED)).collect();
        row(area, lane.name, lane.says, &[left, denied], 12.5)?;
    }
    root.present()?;
    Ok(())
}

/// Draws bars of request times. The first list is at the bottom.
fn row(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    name: &str,
    says: &str,
    stacked: &[Vec<(f64, RGBColor)>],
    most: f64,
) -> Result<(), Box<dyn Error>> {
    let (label, plot) = area.split_horizontally(230);
    label.draw(&Text::new(name.to_owned(), (20, 34), ("sans-serif", 17).into_font()))?;
    label.draw(&Text::new(says.to_owned(), (20, 58), ("sans-serif", 12).into_font().color(&QUIET)))?;
    let mut chart = ChartBuilder::on(&plot)
        .margin_right(20)
        .margin_top(10)
        .x_label_area_size(18)
        .build_cartesian_2d(0.0..END, 0.0..most)?;
    let seconds = |x: &f64| format!("{x:.0} s");
    chart.configure_mesh().disable_mesh().disable_y_axis().x_labels(9).x_label_formatter(&seconds).draw()?;
    for edge in 1..(END / PERIOD.as_secs_f64()) as u32 {
        let x = f64::from(edge) * PERIOD.as_secs_f64();
        let dots = (0..12).map(f64::from);
        chart.draw_series(dots.map(|y| PathElement::new([(x, y), (x, y + 0.4)], BLACK.mix(0.25))))?;
    }
    for bar in 0..(END / BAR) as u32 {
        let (from, to) = (f64::from(bar) * BAR, f64::from(bar + 1) * BAR);
        let mut height = 0.0;
        for color in [QUIET, ADMITTED, WAITED, DENIED] {
            // Slightly to the right, because a request at the edge of a bar belongs to the bar that begins
            // there.
            let inside = |at: f64| (from..to).contains(&(at + 1e-9));
            let count =
                stacked.iter().flatten().filter(|(at, of)| *of == color && inside(*at)).count() as f64;
            if count > 0.0 {
                let corners = [(from + 0.03, height), (to - 0.03, height + count)];
                chart.draw_series([Rectangle::new(corners, color.filled())])?;
                height += count;
            }
        }
    }
    Ok(())
}
