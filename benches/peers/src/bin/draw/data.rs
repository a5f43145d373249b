//! What the pictures need of the data of a run, which `src/data.rs` of the benchmark writes.

use std::collections::HashMap;

use serde::Deserialize;

#[derive(Deserialize)]
pub(crate) struct Run {
    /// The date, the machine, and the versions.
    pub(crate) about: Vec<String>,
    pub(crate) rounds: usize,
    /// Of a measurement. The charts of growth take half of it.
    pub(crate) milliseconds: u32,
    pub(crate) contenders: Vec<Contender>,
    pub(crate) growth: Vec<Point>,
}

#[derive(Deserialize)]
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) place: String,
    pub(crate) ours: bool,
    /// Whether it enforced its limit when that was verified.
    pub(crate) exact: bool,
    pub(crate) scenarios: HashMap<String, Measured>,
}

#[derive(Deserialize)]
pub(crate) struct Measured {
    /// Whether its answers were as the scenario requires.
    pub(crate) valid: bool,
    pub(crate) rounds: Rounds,
}

#[derive(Deserialize)]
pub(crate) struct Rounds {
    pub(crate) rate: Vec<f64>,
    pub(crate) client_cpu: Vec<f64>,
    pub(crate) server_cpu: Vec<f64>,
}

#[derive(Deserialize)]
pub(crate) struct Point {
    pub(crate) series: String,
    pub(crate) axis: String,
    pub(crate) at: f64,
    pub(crate) rounds: Rounds,
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}
