//! Releases a lease after the container's link is gone: sends the RELEASE on the host, through the bridge or the master of
//! that link.

use std::net::Ipv6Addr;
use std::time::Duration;

use crate::dhcp::clients::ReleasePacket;
use crate::dhcp::journal::Uplink;
use crate::error::{Error, Result};
use crate::kernel::inet::wait_until_sent;
use crate::kernel::packet::{ETH_P_IP, ETH_P_IPV6, PacketSocket};
use crate::kernel::sys;
use crate::names::Mac;
use crate::netlink::rtnl::{
    Batch, Link, LinkChange, LinkProperty, NewLink, Nsid, PortState, Rtnl, VETH, VlanRange,
};

/// The longest wait until a new port of a bridge forwards. With the spanning tree protocol that takes half a minute.
const PORT_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest wait until receivers on this host have taken the packet.
const SEND_TIMEOUT: Duration = Duration::from_millis(500);

/// Returns the uplink of a container's link: its master on the host, or for a veth pair the bridge of the host's end. `None`
/// for a device that was moved from the host, for a pair without a bridge, and if the peer is in a third namespace.
/// `host_id` is the id of the host's namespace in that of the container.
pub fn of(host: &Rtnl, host_id: Option<Nsid>, link: &Link) -> Result<Option<Uplink>> {
    let is_on_host = link.peer_netns.is_some() && link.peer_netns == host_id;
    let Some(index) = link.peer.filter(|_| is_on_host) else { return Ok(None) };
    let Some(peer) = host.link_at(index)? else { return Ok(None) };
    if link.kind.as_deref() != Some(VETH) {
        let vlan = link.vlan_id().unwrap_or_default();
        return Ok(Some(Uplink { link: peer.name, vlan }));
    }
    let Some(master) = peer.master.filter(|_| peer.port.is_some()) else {
        return Ok(None);
    };
    let Some(bridge) = host.link_at(master)? else { return Ok(None) };
    let mut vlan = 0;
    if bridge.filters_vlans() {
        let ports = host.bridge_ports()?;
        let port = ports.iter().find(|port| port.index == peer.index);
        vlan = port.and_then(|port| port.pvid()).unwrap_or_default();
    }
    Ok(Some(Uplink { link: bridge.name, vlan }))
}

/// Sends a RELEASE on the host with the source address of a container whose link is gone.
pub fn release(
    host: &Rtnl,
    uplink: Option<&Uplink>,
    mac: Mac,
    release: &ReleasePacket,
) -> Result<()> {
    let packet = release.with_headers(link_local(mac))?;
    let send = |index, vlan| send(index, vlan, &packet, release.is_v6());
    let Some(uplink) = uplink else {
        // A device that was moved from the host is on the host again, with its MAC address.
        let links = host.links()?;
        let own = links.iter().find(|link| link.mac == Some(mac) && link.up);
        let own = own.ok_or_else(|| Error::internal("no link leads to the server"))?;
        return send(own.index, 0);
    };
    let link = host.link(&uplink.link)?.ok_or_else(|| {
        Error::internal(format_args!("the link {} to the server is gone", uplink.link))
    })?;
    if link.kind.as_deref() != Some("bridge") {
        return send(link.index, uplink.vlan);
    }
    let (port, end) = add_port(host, &link, uplink.vlan, mac)?;
    let forwards = |link: &Link| link.port.is_some_and(|port| port.state == PortState::Forwarding);
    let waited = host.wait_for_link(port, PORT_TIMEOUT, forwards);
    let sent = waited.and_then(|link_of_port| {
        // A packet that is sent on the bridge itself leaves through its ports, and does not reach a server on this host.
        let index = if link_of_port.as_ref().is_some_and(forwards) { end } else { link.index };
        send(index, 0)
    });
    host.del_link(port).and(sent)
}

/// Adds a veth pair with one end as a port of the bridge. Returns the indexes of the port and of the other end. A packet that
/// is sent on the other end enters the bridge like a packet of a container, so it also reaches a server on this host.
fn add_port(host: &Rtnl, bridge: &Link, vlan: u16, mac: Mac) -> Result<(u32, u32)> {
    let number = u32::from_ne_bytes(sys::random_bytes()?);
    let (name, end) = (format!("dhcp{number:08x}a"), format!("dhcp{number:08x}b"));
    let peer = NewLink { name: &end, mac: Some(mac), ..NewLink::default() };
    let port = NewLink { name: &name, master: Some(bridge.index), ..NewLink::default() };
    let port = host.add_link(&port, VETH, &[LinkProperty::VethPeer(peer)])?;
    let finish = || -> Result<u32> {
        let end_index =
            port.peer.ok_or_else(|| Error::internal(format_args!("cannot find link {end}")))?;
        let mut batch = Batch::new();
        if vlan != 0 {
            let range = VlanRange { first: vlan, last: vlan, is_pvid: true, untagged: true };
            batch.add_vlans(port.index, &name, &[range]);
        }
        let up = LinkChange { up: Some(true), ..LinkChange::default() };
        batch.change_link(port.index, &name, &up);
        batch.change_link(end_index, &end, &up);
        host.commit(batch)?;
        Ok(end_index)
    };
    // After an error the link is removed. An error of the removal is not reported.
    let finished = finish().inspect_err(|_| drop(host.del_link(port.index)));
    Ok((port.index, finished?))
}

/// The link-local address with the interface identifier that is made from a MAC address (RFC 4291, appendix A).
fn link_local(Mac([a, b, c, d, e, f]): Mac) -> Ipv6Addr {
    let word = |high, low| u16::from_be_bytes([high, low]);
    Ipv6Addr::new(0xfe80, 0, 0, 0, word(a ^ 2, b), word(c, 0xff), word(0xfe, d), word(e, f))
}

fn send(index: u32, vlan: u16, packet: &[u8], is_v6: bool) -> Result<()> {
    let send = || {
        let ethertype = if is_v6 { ETH_P_IPV6 } else { ETH_P_IP };
        let socket = PacketSocket::for_sending(index, ethertype)?;
        match vlan {
            0 => socket.broadcast(packet)?,
            vlan => socket.broadcast_in_vlan(packet, vlan)?,
        }
        // The removal of the port would drop a packet that is still in the socket.
        wait_until_sent(&socket, SEND_TIMEOUT).map(drop)
    };
    send().map_err(sys::failed("cannot send"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_local_address_is_made_of_the_mac_address() {
        let mac = Mac([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        assert_eq!(link_local(mac).to_string(), "fe80::5054:ff:fe12:3456");
    }
}
