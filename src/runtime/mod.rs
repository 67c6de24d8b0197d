//! What a container runtime does: reads network configurations, runs their plugins in order, and remembers what is
//! attached. Source: CNI specification 1.1.0, sections 1 and 3.

pub mod cache;
pub mod conf;
