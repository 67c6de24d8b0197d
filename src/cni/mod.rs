//! The CNI protocol: what comes in, what goes out, in every version. Knows nothing of Linux.

pub mod args;
pub mod conf;
pub mod json;
pub mod request;
pub mod success;
pub mod text;
pub mod version;
