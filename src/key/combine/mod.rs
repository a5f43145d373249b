//! What extractors do that are made of other extractors.

mod any_of;
mod hashed;
mod map;
mod or;
mod tuple;
