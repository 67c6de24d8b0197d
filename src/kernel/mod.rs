//! Linux: namespaces, links, addresses, routes, sysctls. Knows nothing of CNI.

#[allow(dead_code, reason = "portmap comes next")]
pub mod conntrack;
pub mod netlink;
pub mod netns;
#[allow(dead_code, unused_imports, reason = "portmap and firewall come next")]
pub mod nft;
pub mod rtnl;
pub mod sandbox;
pub mod sys;
pub mod sysctl;
pub mod sysfs;
pub mod tun;
pub mod xtables;
