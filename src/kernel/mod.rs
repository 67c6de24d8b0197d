//! The interfaces of Linux except netlink: namespaces, files, locks, processes, sockets, kernel parameters. This code does not
//! depend on CNI.

pub(crate) mod boot;
pub(crate) mod child;
pub(crate) mod clock;
pub(crate) mod file;
pub mod flock;
pub(crate) mod host_view;
pub(crate) mod identity;
pub(crate) mod inet;
pub(crate) mod launch;
pub(crate) mod listener;
pub(crate) mod netns;
pub(crate) mod packet;
pub(crate) mod process;
pub mod sandbox;
pub(crate) mod sockets;
pub(crate) mod state_directory;
pub(crate) mod sys;
pub(crate) mod sysctl;
pub(crate) mod terminal;
pub(crate) mod tun;
pub(crate) mod unix;
pub(crate) mod who_has;
