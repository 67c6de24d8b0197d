//! Linux: namespaces, links, addresses, routes, sysctls. Knows nothing of CNI.

pub mod netlink;
pub mod netns;
pub mod rtnl;
pub mod sandbox;
pub mod sys;
pub mod sysctl;
