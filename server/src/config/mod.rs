//! The configuration: a directory of files as envoyproxy/ratelimit reads them.
//!
//! `yaml.rs` has the files as serde reads them, `build.rs` makes a [`Config`] of them, which `tree.rs` searches for the
//! limit of a descriptor. `files.rs` reads the directory and follows it.

mod build;
mod files;
mod limit;
mod tree;
mod yaml;

pub(crate) use self::{
    build::Settings,
    files::{Followed, read},
    limit::{Hits, Kind, Limit},
    tree::Config,
};
