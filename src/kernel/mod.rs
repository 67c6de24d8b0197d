//! Linux: namespaces, links, addresses, routes, sysctls. Knows nothing of CNI.

pub mod child;
pub mod conntrack;
pub mod disk;
pub mod file;
pub mod flock;
pub mod launch;
pub mod netlink;
pub mod netns;
pub mod nft;
pub mod rtnl;
pub mod sandbox;
pub mod sys;
pub mod sysctl;
pub mod sysfs;
pub mod tun;
pub mod unix;
pub mod xtables;
