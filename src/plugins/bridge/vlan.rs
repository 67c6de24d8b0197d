//! VLANs of containers: those of the configuration, and VLAN filtering of the bridge.
//!
//! A port is in the configured VLANs only, as on a switch. The kernel puts every new port into the default VLAN of the
//! bridge, usually VLAN 1. ADD removes the port from it before the port is up.

use std::fmt;

use crate::cni::json::keys;
use crate::error::{Error, Result};
use crate::netlink::rtnl::{Batch, Link, PortVlans, Rtnl, VlanRange};

/// The highest VLAN ID (IEEE 802.1Q, section 9.6). 0 means no VLAN, and 4095 is reserved.
const VLAN_MAX: u16 = 4094;

keys! {
    /// An item of `vlanTrunk`: a range, a single VLAN, or both.
    pub(super) struct Trunk {
        "minID" => min_id: Option<i32>,
        "maxID" => max_id: Option<i32>,
        "id" => id: Option<i32>,
    }
}

/// The configured VLANs of a port.
#[derive(Default)]
pub(super) struct Vlans {
    /// The untagged VLAN.
    pub(super) access: Option<u16>,
    /// Ranges of tagged VLANs, each with its first and last VLAN.
    trunk: Vec<(u16, u16)>,
    /// The port stays in the default VLAN of the bridge, untagged.
    keeps_default: bool,
}

impl Vlans {
    pub(super) fn new(access: i32, trunk: &[Trunk], keeps_default: bool) -> Result<Self> {
        let mut vlans = Self { keeps_default, ..Self::default() };
        if access != 0 {
            let message = format_args!("invalid VLAN ID {access} (must be between 0 and 4094)");
            vlans.access = Some(vlan_id("vlan", access, message)?);
        }
        for Trunk { min_id, max_id, id } in trunk {
            let range = match (min_id, max_id) {
                (Some(min), Some(max)) => {
                    Some((trunk_vlan_id("minID", *min)?, trunk_vlan_id("maxID", *max)?))
                }
                (None, None) => None,
                (None, Some(_)) => return Err(missing("minID")),
                (Some(_), None) => return Err(missing("maxID")),
            };
            if let Some((min, max)) = range.filter(|(min, max)| min > max) {
                let details = format_args!("vlanTrunk: minID is {min}, maxID is {max}");
                return Err(Error::config("minID is greater than maxID in trunk parameter")
                    .with_details(details));
            }
            vlans.trunk.extend(range);
            if let Some(id) = id {
                let id = trunk_vlan_id("id", *id)?;
                vlans.trunk.push((id, id));
            }
        }
        Ok(vlans)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.access.is_none() && self.trunk.is_empty()
    }

    /// Only the untagged VLAN, for the port of a VLAN gateway.
    pub(super) fn access_only(&self) -> Self {
        Self { access: self.access, ..Self::default() }
    }

    /// Puts a new port of the bridge into these VLANs. The port must be down.
    pub(super) fn set(&self, batch: &mut Batch, bridge: &Link, index: u32, name: &str) {
        if self.is_empty() {
            return;
        }
        let default = default_vlan(bridge);
        let wanted = self.ranges_of_port(default);
        batch.add_vlans(index, name, &wanted);
        if default != 0 && !wanted.iter().any(|range| (range.first..=range.last).contains(&default))
        {
            batch.del_vlan(index, name, default);
        }
    }

    /// For CHECK: fails if the port is not in exactly these VLANs.
    pub(super) fn check(&self, bridge: &Link, port: &Link, ports: &[PortVlans]) -> Result<()> {
        let found =
            ports.iter().find(|other| other.index == port.index && other.bridge == bridge.index);
        let found = found.map_or(&[][..], |port| &port.vlans);
        let wanted = self.ranges_of_port(default_vlan(bridge));
        if self.is_empty() || found == wanted {
            return Ok(());
        }
        let (port, bridge) = (&port.name, &bridge.name);
        let msg = format!("port {port} of bridge {bridge} has VLANs {}", text(found));
        Err(Error::internal(msg).with_details(format_args!("expected: {}", text(&wanted))))
    }

    fn ranges_of_port(&self, default: u16) -> Vec<VlanRange> {
        // For each VLAN of the port: whether it is the PVID, and whether it is untagged.
        let mut table = [None; VLAN_MAX as usize + 1];
        for (first, last) in &self.trunk {
            table[usize::from(*first)..=usize::from(*last)].fill(Some((false, false)));
        }
        if self.keeps_default && default != 0 {
            table[usize::from(default)] = Some((self.access.is_none(), true));
        }
        if let Some(vlan) = self.access {
            table[usize::from(vlan)] = Some((true, true));
        }
        let mut ranges: Vec<VlanRange> = Vec::new();
        for (vlan, flags) in (0..).zip(table) {
            let Some((is_pvid, untagged)) = flags else { continue };
            let new = VlanRange { first: vlan, last: vlan, is_pvid, untagged };
            match ranges.last_mut() {
                Some(range)
                    if *range == (VlanRange { first: range.first, last: vlan - 1, ..new }) =>
                {
                    range.last = vlan;
                }
                _ => ranges.push(new),
            }
        }
        ranges
    }
}

/// Validates a VLAN ID of `vlanTrunk`.
fn trunk_vlan_id(key: &str, value: i32) -> Result<u16> {
    vlan_id("vlanTrunk", value, format_args!("incorrect trunk {key} parameter"))
}

/// Validates a VLAN ID. `message` is the error text, which is that of the reference.
fn vlan_id(key: &str, value: i32, message: fmt::Arguments<'_>) -> Result<u16> {
    u16::try_from(value).ok().filter(|vlan| (1..=VLAN_MAX).contains(vlan)).ok_or_else(|| {
        let details = format_args!("{key}: {value} is not a VLAN (1 to {VLAN_MAX})");
        Error::config(message).with_details(details)
    })
}

fn missing(key: &str) -> Error {
    let msg = "minID and maxID should be configured simultaneously";
    Error::config(format_args!("{msg}, {key} is missing")).with_details("vlanTrunk")
}

/// The VLANs as `bridge vlan` shows them: `10 PVID untagged, 20-30`.
fn text(ranges: &[VlanRange]) -> String {
    if ranges.is_empty() {
        return "none".into();
    }
    let text = |VlanRange { first, last, is_pvid, untagged }: &VlanRange| {
        let last = if last == first { String::new() } else { format!("-{last}") };
        let pvid = if *is_pvid { " PVID" } else { "" };
        let untagged = if *untagged { " untagged" } else { "" };
        format!("{first}{last}{pvid}{untagged}")
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Fails if VLAN filtering of the bridge is off. Such a bridge forwards frames of a VLAN to all ports.
pub(super) fn require_filtering(bridge: &Link) -> Result<()> {
    if bridge.filters_vlans() {
        return Ok(());
    }
    // A kernel without VLAN filtering reports it as off, too, but has no default VLAN.
    if bridge.default_vlan().is_none() {
        return Err(unsupported());
    }
    let name = &bridge.name;
    Err(Error::config(format_args!("cannot use VLANs on bridge {name}: its VLAN filtering is off"))
        .with_details(format_args!(
            "`ip link set {name} type bridge vlan_filtering 1` turns it on. If the bridge is removed, \
             the next ADD makes one with VLAN filtering"
        )))
}

/// For STATUS, if the bridge does not exist: fails if the kernel lacks VLAN filtering.
pub(super) fn require_kernel(host: &Rtnl) -> Result<()> {
    if host.can_filter_vlans() { Ok(()) } else { Err(unsupported()) }
}

pub(super) fn unsupported() -> Error {
    Error::internal("cannot use VLANs: the kernel lacks CONFIG_BRIDGE_VLAN_FILTERING")
}

/// The VLAN that the kernel puts new ports of the bridge into. 0 means no VLAN.
fn default_vlan(bridge: &Link) -> u16 {
    bridge.default_vlan().filter(|vlan| *vlan <= VLAN_MAX).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trunk(min_id: Option<i32>, max_id: Option<i32>, id: Option<i32>) -> Trunk {
        Trunk { min_id, max_id, id }
    }

    fn range(first: i32, last: i32) -> Trunk {
        trunk(Some(first), Some(last), None)
    }

    fn single(id: i32) -> Trunk {
        trunk(None, None, Some(id))
    }

    /// The VLANs of a port of a bridge with the default VLAN 1.
    fn port(access: i32, trunk: &[Trunk], keeps_default: bool) -> String {
        text(&Vlans::new(access, trunk, keeps_default).unwrap().ranges_of_port(1))
    }

    #[test]
    fn a_port_is_in_the_configured_vlans_only() {
        for (access, trunk, expected) in [
            (10, vec![], "10 PVID untagged"),
            (0, vec![single(10)], "10"),
            (0, vec![range(1, 4094)], "1-4094"),
            (4094, vec![range(4093, 4094)], "4093, 4094 PVID untagged"),
            (10, vec![range(5, 15)], "5-9, 10 PVID untagged, 11-15"),
            (0, vec![range(20, 29), range(25, 35), single(36), single(20)], "20-36"),
            (0, vec![single(40), range(30, 31), single(38)], "30-31, 38, 40"),
            (
                7,
                vec![trunk(Some(20), Some(21), Some(30)), Trunk::default()],
                "7 PVID untagged, 20-21, 30",
            ),
        ] {
            assert_eq!(port(access, &trunk, false), expected);
        }
    }

    #[test]
    fn the_default_vlan_is_preserved_untagged() {
        assert_eq!(port(10, &[], true), "1 untagged, 10 PVID untagged");
        assert_eq!(port(0, &[range(1, 9)], true), "1 PVID untagged, 2-9");
        assert_eq!(port(1, &[], true), "1 PVID untagged");
        let vlans = Vlans::new(10, &[], true).unwrap();
        assert_eq!(
            text(&vlans.ranges_of_port(0)),
            "10 PVID untagged",
            "a bridge without a default"
        );
        assert_eq!(text(&vlans.access_only().ranges_of_port(1)), "10 PVID untagged");
    }
}
