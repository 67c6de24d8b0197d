//! The CNI protocol: requests and results of every version. This module does not use Linux interfaces.

pub(crate) mod args;
pub(crate) mod conf;
pub mod json;
pub mod request;
pub(crate) mod success;
pub(crate) mod text;
pub(crate) mod version;
