//! What extractors do that are made of other extractors.

mod map;
mod or;
mod tuple;
