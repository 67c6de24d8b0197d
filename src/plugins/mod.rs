//! The table of plugins. A new plugin needs a file in this directory, a `mod` line, a line in the table, and a Cargo feature
//! with the name of the plugin. All files are always compiled; the linker removes the plugins that are not in the table.

pub mod bandwidth;
pub mod bridge;
pub mod dhcp;
pub mod dnsname;
pub mod dummy;
pub mod firewall;
pub mod flannel;
pub mod host_device;
pub mod host_local;
pub mod ipvlan;
pub mod loopback;
pub mod macvlan;
pub mod portmap;
pub mod sbr;
pub mod static_ipam;
pub mod tap;
pub mod tuning;
pub mod veth;
pub mod vlan;
pub mod vrf;

use crate::plugin::Entry;

/// All plugins, in the order of `cnibox --list`.
pub const PLUGINS: &[Entry] = &[
    #[cfg(feature = "bridge")]
    bridge::ENTRY,
    #[cfg(feature = "veth")]
    veth::ENTRY,
    #[cfg(feature = "ptp")]
    Entry {
        name: "ptp",
        about: "the same as veth, under the name of the reference",
        ..veth::ENTRY
    },
    #[cfg(feature = "macvlan")]
    macvlan::ENTRY,
    #[cfg(feature = "ipvlan")]
    ipvlan::ENTRY,
    #[cfg(feature = "vlan")]
    vlan::ENTRY,
    #[cfg(feature = "dummy")]
    dummy::ENTRY,
    #[cfg(feature = "host-device")]
    host_device::ENTRY,
    #[cfg(feature = "tap")]
    tap::ENTRY,
    #[cfg(feature = "bandwidth")]
    bandwidth::ENTRY,
    #[cfg(feature = "dnsname")]
    dnsname::ENTRY,
    #[cfg(feature = "firewall")]
    firewall::ENTRY,
    #[cfg(feature = "flannel")]
    flannel::ENTRY,
    #[cfg(feature = "loopback")]
    loopback::ENTRY,
    #[cfg(feature = "portmap")]
    portmap::ENTRY,
    #[cfg(feature = "sbr")]
    sbr::ENTRY,
    #[cfg(feature = "tuning")]
    tuning::ENTRY,
    #[cfg(feature = "vrf")]
    vrf::ENTRY,
    #[cfg(feature = "host-local")]
    host_local::ENTRY,
    #[cfg(feature = "static")]
    static_ipam::ENTRY,
    #[cfg(feature = "dhcp")]
    dhcp::ENTRY,
];

/// The plugin with this name.
pub fn named(name: &str) -> Option<&'static Entry> {
    PLUGINS.iter().find(|entry| entry.name == name)
}

/// Prefixes of plugin names that distributions and tools use.
const PREFIXES: [&str; 2] = ["buildkit-cni-", "cnv-"];

/// The plugin that a file name calls: one with this name, or with this name after one of the prefixes.
pub fn called(name: &str) -> Option<&'static Entry> {
    let of_prefix = |prefix: &&str| named(name.strip_prefix(prefix)?);
    named(name).or_else(|| PREFIXES.iter().find_map(of_prefix))
}
