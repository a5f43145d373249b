//! Bar charts as SVG, whose colors follow the style of the page.

use super::{html::escaped, time::tick};
use crate::{notes::number, timeline::Timeline};

/// The width of a chart over time, as wide as the page, of one beside a table, and of each on a phone. Their texts have
/// one size.
const WIDE: f64 = 1040.0;
const NARROW: f64 = 560.0;
const PHONE: f64 = 320.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 26.0;
/// Steps between ticks on the axis of time, in seconds.
const STEPS: [u64; 16] = [
    1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400, 604_800, 2_592_000, 31_536_000,
];
const MOST_TICKS: u64 = 9;
const MOST_TICKS_ON_A_PHONE: u64 = 4;
/// The styles of a chart of which the page shows one, as it is wide.
const ON_A_SCREEN: &str = "on-screen";
const ON_A_PHONE: &str = "on-phone";

/// A bar, from the bottom up: a style for each part, and its count.
pub(super) struct Bar {
    /// What a pointer over the bar shows.
    pub(super) label: String,
    /// What is below it. Charts over time have times there.
    pub(super) name: String,
    pub(super) parts: Vec<(&'static str, u64)>,
}

/// A chart over time. `parts` are the parts of a span's bar.
pub(super) fn over_time(
    title: &str,
    timeline: &Timeline,
    height: f64,
    parts: impl Fn(&[u64]) -> Vec<(&'static str, u64)>,
) -> String {
    let seconds = timeline.seconds();
    let bars = timeline.spans().iter().enumerate().map(|(place, span)| Bar {
        label: super::time::full(timeline.start() + place as u64 * seconds),
        name: String::new(),
        parts: parts(span),
    });
    let bars: Vec<Bar> = bars.collect();
    let chart = |style, width: f64, most_ticks| {
        let ticks = ticks(timeline.start(), bars.len() as u64 * seconds, width, height, most_ticks);
        svg(title, &Frame { style, width, height, gap: 1.0, is_logarithmic: false }, &bars, &ticks)
    };
    chart(ON_A_SCREEN, WIDE, MOST_TICKS) + &chart(ON_A_PHONE, PHONE, MOST_TICKS_ON_A_PHONE)
}

/// The axis of time below a chart of this size, which begins at `start` and is `length` seconds long.
fn ticks(start: u64, length: u64, width: f64, height: f64, most: u64) -> String {
    let step = STEPS.into_iter().find(|step| length / step <= most).unwrap_or_else(|| length.max(1));
    let mut ticks = String::new();
    let mut time = start.div_ceil(step) * step;
    while time <= start + length {
        let x = LEFT + (width - LEFT) * (time - start) as f64 / length.max(1) as f64;
        if x < width - 24.0 {
            ticks += &format!(
                "<line class=\"tick\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{0:.1}\" y2=\"{1:.1}\"/>\
                 <text class=\"label\" x=\"{x:.1}\" y=\"{2:.1}\" text-anchor=\"middle\">{3}</text>",
                height - BOTTOM,
                height - BOTTOM + 4.0,
                height - 6.0,
                tick(time, step)
            );
        }
        time += step;
    }
    ticks
}

/// A chart of groups, whose names are below the bars. Its scale is logarithmic, since nearly all clients are
/// usually in one group.
pub(super) fn of_groups(title: &str, height: f64, bars: &[Bar]) -> String {
    let chart = |style, width: f64| {
        let slot = (width - LEFT) / bars.len().max(1) as f64;
        let name = |(place, bar): (usize, &Bar)| {
            let y = height - 6.0;
            let is_last = place + 1 == bars.len();
            // On a phone there is room for every other name, without the one beside the last, which is longer.
            if style == ON_A_PHONE && !is_last && place % 2 == 1 {
                return String::new();
            }
            let (x, anchor) = match is_last {
                true if style == ON_A_PHONE => (width, "end"),
                _ => (LEFT + slot * (place as f64 + 0.5), "middle"),
            };
            let label = escaped(&bar.name);
            format!("<text class=\"label\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{label}</text>")
        };
        let names: String = bars.iter().enumerate().map(name).collect();
        svg(title, &Frame { style, width, height, gap: slot * 0.25, is_logarithmic: true }, bars, &names)
    };
    chart(ON_A_SCREEN, NARROW) + &chart(ON_A_PHONE, PHONE)
}

struct Frame {
    style: &'static str,
    width: f64,
    height: f64,
    /// The space between two bars.
    gap: f64,
    is_logarithmic: bool,
}

fn svg(title: &str, frame: &Frame, bars: &[Bar], axis: &str) -> String {
    let Frame { style, width: right, height, gap, .. } = *frame;
    let total = |bar: &Bar| bar.parts.iter().map(|(_, count)| count).sum::<u64>();
    let most = bars.iter().map(total).max().unwrap_or(0);
    let lines = if frame.is_logarithmic { decades(most) } else { steps(most) };
    let top = lines.last().copied().unwrap_or(1);
    let part_of = |count: u64| match (frame.is_logarithmic, count) {
        (_, 0) => 0.0,
        // The lowest line is the tenth of a unit, so one unit is visible.
        (true, count) => ((count as f64).log10() + 1.0) / ((top as f64).log10() + 1.0),
        (false, count) => count as f64 / top as f64,
    };
    let y_of = |count: u64| height - BOTTOM - (height - TOP - BOTTOM) * part_of(count);
    let mut svg = format!(
        "<svg class=\"{style}\" viewBox=\"0 0 {right:.0} {height:.0}\" role=\"img\" aria-label=\"{}\">",
        escaped(title)
    );
    for line in lines {
        let y = y_of(line);
        svg += &format!(
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"label\" x=\"{0:.1}\" y=\"{1:.1}\" text-anchor=\"end\">{2}</text>",
            LEFT - 8.0,
            y + 4.0,
            short(line)
        );
    }
    let slot = (right - LEFT) / bars.len().max(1) as f64;
    let width = (slot - gap.min(slot * 0.25)).min(80.0);
    for (place, bar) in bars.iter().enumerate() {
        let x = LEFT + slot * place as f64 + (slot - width) / 2.0;
        let mut below = 0;
        let mut shapes = String::new();
        for (style, count) in bar.parts.iter().filter(|(_, count)| *count > 0) {
            let (bottom, end) = (y_of(below), y_of(below + count));
            // A count above zero is visible.
            let tall = (bottom - end).max(1.5);
            shapes += &format!(
                "<rect class=\"{style}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{tall:.1}\"/>",
                bottom - tall
            );
            below += count;
        }
        if !shapes.is_empty() {
            let counts: Vec<String> =
                bar.parts.iter().map(|(style, count)| format!("{} {style}", number(*count))).collect();
            let label = escaped(format!("{}: {}", bar.label, counts.join(", ")));
            svg += &format!("<g><title>{label}</title>{shapes}</g>");
        }
    }
    svg + axis + "</svg>"
}

/// The lines of a scale for counts up to `most`.
fn steps(most: u64) -> Vec<u64> {
    let rough = most.div_ceil(4).max(1);
    let magnitude = 10_u64.pow(rough.ilog10());
    let step = [1, 2, 5, 10].into_iter().map(|factor| factor * magnitude).find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    (0..=most.div_ceil(step).max(1)).map(|line| line * step).collect()
}

/// The lines of a logarithmic scale for counts up to `most`.
fn decades(most: u64) -> Vec<u64> {
    let count = most.max(1).ilog10() + u32::from(!is_power_of_ten(most.max(1)));
    std::iter::once(0).chain((0..=count).map(|power| 10_u64.saturating_pow(power))).collect()
}

fn is_power_of_ten(count: u64) -> bool {
    10_u64.checked_pow(count.ilog10()) == Some(count)
}

/// A number in few characters.
fn short(count: u64) -> String {
    match count {
        1_000_000.. if count.is_multiple_of(100_000) => format!("{}M", count as f64 / 1e6),
        1_000.. if count.is_multiple_of(100) => format!("{}k", count as f64 / 1e3),
        _ => number(count),
    }
}
