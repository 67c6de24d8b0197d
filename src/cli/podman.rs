//! The networks of podman, as lists of plugins.

pub(super) mod list;
pub(super) mod object;
