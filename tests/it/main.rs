//! The integration tests: the real executable, called through a link with a real environment and a real stdin, in
//! namespaces of its own, looked at with other people's tools. Every test makes its own world, so that they run in
//! parallel, in any order, without root, and leave nothing.

#![allow(clippy::unwrap_used, reason = "a test that panics is a test that reports")]
#![allow(unreachable_pub, reason = "nobody imports a crate of tests")]

mod bandwidth;
mod bridge;
mod chain;
mod config_keys;
mod contract;
mod delegate;
mod dhcp;
mod dnsname;
mod dummy;
mod faults;
mod firewall;
mod flannel;
mod forged;
mod host_device;
mod host_local;
mod hosts;
mod ipvlan;
mod isolation;
mod killed;
mod loopback;
mod macvlan;
mod manuals;
mod netfilter;
mod one_address;
mod parity;
mod portmap;
mod protocol;
mod reused_path;
mod routes;
mod runtime;
mod sbr;
mod scale;
mod several;
mod shared_rules;
mod spec;
mod static_ipam;
mod status;
mod strangers;
mod taken_over;
mod tap;
mod texts;
mod threads;
mod tidy;
mod toggle;
mod tool;
mod tuning;
mod upgrade;
mod veth;
mod vlan;
mod vrf;
mod world;
