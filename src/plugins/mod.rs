//! The table of plugins. A new plugin needs a file in this directory, a `mod` line, a line in the table, and a Cargo feature
//! with the name of the plugin. All files are always compiled; the linker removes the plugins that are not in the table.

pub mod bandwidth;
pub mod bridge;
pub mod dhcp;
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
    crate::plugin::entry::<bridge::Bridge>("bridge", "a veth pair with its host end on a bridge")
        .with(bridge::FACTS),
    #[cfg(feature = "veth")]
    crate::plugin::entry::<veth::Veth>(
        "veth",
        "a routed veth pair between host and container; without ipam a plain one",
    )
    .with(veth::FACTS),
    #[cfg(feature = "ptp")]
    crate::plugin::entry::<veth::Veth>("ptp", "the same as veth, under the name of the reference")
        .with(veth::FACTS),
    #[cfg(feature = "macvlan")]
    crate::plugin::entry::<macvlan::Macvlan>(
        "macvlan",
        "an interface on a link of the host, with its own MAC address",
    )
    .with(macvlan::FACTS),
    #[cfg(feature = "ipvlan")]
    crate::plugin::entry::<ipvlan::Ipvlan>(
        "ipvlan",
        "an interface on a link of the host, with the MAC address of that link",
    )
    .with(ipvlan::FACTS),
    #[cfg(feature = "vlan")]
    crate::plugin::entry::<vlan::Vlan>("vlan", "an interface in a VLAN of a link of the host")
        .with(vlan::FACTS),
    #[cfg(feature = "dummy")]
    crate::plugin::entry::<dummy::Dummy>(
        "dummy",
        "an interface for addresses only, without a connection",
    )
    .with(dummy::FACTS),
    #[cfg(feature = "host-device")]
    crate::plugin::entry::<host_device::HostDevice>(
        "host-device",
        "a link of the host, moved into the container",
    ),
    #[cfg(feature = "tap")]
    crate::plugin::entry::<tap::Tap>(
        "tap",
        "an interface that a program reads and writes, for example a virtual machine",
    )
    .with(tap::FACTS),
    #[cfg(feature = "bandwidth")]
    crate::plugin::chained_entry::<bandwidth::Bandwidth>(
        "bandwidth",
        "limits the rate at which a container receives and sends",
    )
    .with(bandwidth::FACTS),
    #[cfg(feature = "firewall")]
    crate::plugin::chained_entry::<firewall::Firewall>(
        "firewall",
        "accepts packets of containers on a host that drops others, and separates bridges",
    )
    .with(firewall::FACTS),
    #[cfg(feature = "flannel")]
    crate::plugin::entry::<flannel::Flannel>(
        "flannel",
        "a network with the subnet that the flannel daemon chose",
    ),
    #[cfg(feature = "loopback")]
    crate::plugin::entry::<loopback::Loopback>(
        "loopback",
        "brings the interface lo of the container up",
    )
    .with(loopback::FACTS),
    #[cfg(feature = "portmap")]
    crate::plugin::chained_entry::<portmap::Portmap>(
        "portmap",
        "publishes ports of the container on the host",
    )
    .with(portmap::FACTS),
    #[cfg(feature = "sbr")]
    crate::plugin::chained_entry::<sbr::Sbr>(
        "sbr",
        "routes packets by source: they leave by the interface that has their source address",
    )
    .with(sbr::FACTS),
    #[cfg(feature = "tuning")]
    crate::plugin::chained_entry::<tuning::Tuning>(
        "tuning",
        "sets sysctls of the container, and the MAC address, MTU and flags of an interface",
    )
    .with(tuning::FACTS),
    #[cfg(feature = "vrf")]
    crate::plugin::chained_entry::<vrf::Vrf>(
        "vrf",
        "puts an interface of the container into a VRF",
    )
    .with(vrf::FACTS),
    #[cfg(feature = "host-local")]
    crate::plugin::ipam_entry::<host_local::HostLocal>(
        "host-local",
        "addresses from ranges, reserved in files on this host",
    ),
    #[cfg(feature = "static")]
    crate::plugin::ipam_entry::<static_ipam::Static>(
        "static",
        "addresses written in the configuration",
    ),
    #[cfg(feature = "dhcp")]
    Entry {
        needs_link: true,
        ..crate::plugin::ipam_entry::<dhcp::Dhcp>(
            "dhcp",
            "addresses from the DHCP servers of the network",
        )
    },
];
