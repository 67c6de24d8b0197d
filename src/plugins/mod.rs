//! The table of plugins. Adding one is a file beside this one, its `mod` line and its line in the table.

mod bandwidth;
mod bridge;
mod dummy;
mod firewall;
mod flannel;
mod host_device;
mod host_local;
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

/// Every plugin, in the order in which it is listed.
pub const PLUGINS: &[Entry] = &[
    entry::<bridge::Bridge>("bridge", "a veth pair whose host end is a port of a bridge"),
    entry::<veth::Veth>(
        "veth",
        "a routed veth pair between host and container; without ipam a plain one",
    ),
    entry::<veth::Veth>("ptp", "the same as veth, by the reference's name"),
    entry::<macvlan::Macvlan>(
        "macvlan",
        "an interface with a MAC address of its own on a link of the host",
    ),
    entry::<ipvlan::Ipvlan>(
        "ipvlan",
        "an interface with IP addresses of its own on a link of the host, whose MAC address it shares",
    ),
    entry::<vlan::Vlan>("vlan", "an interface that is one VLAN of a link of the host"),
    entry::<dummy::Dummy>("dummy", "an interface without a cable, to have addresses on"),
    entry::<host_device::HostDevice>(
        "host-device",
        "an interface of the host, moved into the container",
    ),
    entry::<tap::Tap>("tap", "an interface whose cable is a program, a virtual machine for one"),
    entry::<bandwidth::Bandwidth>("bandwidth", "how fast a container may receive and send"),
    entry::<firewall::Firewall>(
        "firewall",
        "lets a container's packets pass where the host drops, and keeps bridges apart",
    ),
    entry::<flannel::Flannel>("flannel", "a network whose subnet flannel's daemon has chosen"),
    entry::<loopback::Loopback>("loopback", "the container's lo interface"),
    entry::<portmap::Portmap>("portmap", "ports of the host that lead to ports of the container"),
    entry::<sbr::Sbr>(
        "sbr",
        "packets from an interface's addresses leave by that interface, whatever the others have",
    ),
    entry::<tuning::Tuning>(
        "tuning",
        "sysctls of the container; MAC address, MTU and flags of an interface that is there",
    ),
    entry::<vrf::Vrf>("vrf", "a routing domain in the container, with interfaces of its own"),
    ipam_entry::<host_local::HostLocal>(
        "host-local",
        "addresses out of ranges, reserved in files on this host",
    ),
    ipam_entry::<static_ipam::Static>("static", "addresses written in the configuration"),
];
