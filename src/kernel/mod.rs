//! Linux: namespaces, links, addresses, routes, nf_tables, kernel parameters. It does not depend on CNI.

pub mod child;
pub mod clock;
pub mod conntrack;
pub mod file;
pub mod flock;
pub mod host_view;
pub mod identity;
pub mod inet;
pub mod launch;
pub mod listener;
pub mod netlink;
pub mod netns;
pub mod nft;
pub mod packet;
pub mod rtnl;
pub mod sandbox;
pub mod sys;
pub mod sysctl;
pub mod sysfs;
pub mod tun;
pub mod unix;
pub mod visible;
pub mod xtables;
