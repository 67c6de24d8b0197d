//! The CNI protocol: requests and results of every version. This module does not use Linux interfaces.

pub mod args;
pub mod conf;
pub mod json;
pub mod request;
pub mod success;
pub mod text;
pub mod version;
