//! The table of plugins. A new plugin needs a file in this directory, a `mod` line and a line in the table.

mod bandwidth;
mod bridge;
mod dhcp;
mod dummy;
mod firewall;
pub mod flannel;
mod host_device;
pub mod host_local;
mod ipvlan;
mod loopback;
mod macvlan;
mod portmap;
mod sbr;
mod static_ipam;
mod tap;
mod tuning;
mod veth;
mod vlan;
mod vrf;

use crate::plugin::{Entry, entry, ipam_entry};

/// All plugins, in the order of `cnibox --list`.
pub const PLUGINS: &[Entry] = &[
    entry::<bridge::Bridge>("bridge", "a veth pair with its host end on a bridge"),
    entry::<veth::Veth>(
        "veth",
        "a routed veth pair between host and container; without ipam a plain one",
    ),
    entry::<veth::Veth>("ptp", "the same as veth, under the name of the reference"),
    entry::<macvlan::Macvlan>(
        "macvlan",
        "an interface on a link of the host, with its own MAC address",
    ),
    entry::<ipvlan::Ipvlan>(
        "ipvlan",
        "an interface on a link of the host, with the MAC address of that link",
    ),
    entry::<vlan::Vlan>("vlan", "an interface in a VLAN of a link of the host"),
    entry::<dummy::Dummy>("dummy", "an interface for addresses only, without a connection"),
    entry::<host_device::HostDevice>("host-device", "a link of the host, moved into the container"),
    entry::<tap::Tap>(
        "tap",
        "an interface that a program reads and writes, for example a virtual machine",
    ),
    entry::<bandwidth::Bandwidth>(
        "bandwidth",
        "limits the rate at which a container receives and sends",
    ),
    entry::<firewall::Firewall>(
        "firewall",
        "accepts packets of containers on a host that drops others, and separates bridges",
    ),
    entry::<flannel::Flannel>("flannel", "a network with the subnet that the flannel daemon chose"),
    entry::<loopback::Loopback>("loopback", "brings the interface lo of the container up"),
    entry::<portmap::Portmap>("portmap", "publishes ports of the container on the host"),
    entry::<sbr::Sbr>(
        "sbr",
        "routes packets by source: they leave by the interface that has their source address",
    ),
    entry::<tuning::Tuning>(
        "tuning",
        "sets sysctls of the container, and the MAC address, MTU and flags of an interface",
    ),
    entry::<vrf::Vrf>("vrf", "puts an interface of the container into a VRF"),
    ipam_entry::<host_local::HostLocal>(
        "host-local",
        "addresses from ranges, reserved in files on this host",
    ),
    ipam_entry::<static_ipam::Static>("static", "addresses written in the configuration"),
    Entry {
        needs_link: true,
        ..ipam_entry::<dhcp::Dhcp>("dhcp", "addresses from the DHCP servers of the network")
    },
];
