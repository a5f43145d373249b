//! Who is asking: a [`Key`], and how to find it in a request.

mod combine;
mod constant;
mod extractor;
mod header;
mod ip;
mod value;

pub use self::{
    combine::Or,
    constant::Constant,
    extractor::{IntoKey, KeyExtractor},
    header::Header,
    ip::PeerIp,
    value::Key,
};
