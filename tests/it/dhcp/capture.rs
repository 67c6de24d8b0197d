//! Packets on the cable to the host, captured by dumpcap and read by tshark.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;

use super::LIMIT_S;
use super::service::Service;
use crate::world::{Container, World};

const FILE: &str = "/run/capture.pcapng";
const FILTER: &str =
    "arp or udp port 67 or udp port 68 or udp port 546 or udp port 547 or udp port 9";

/// The names of the fields in the order in which tshark prints them.
const FIELDS: [&str; 19] = [
    "frame.time_epoch",
    "eth.src",
    "eth.dst",
    "ip.src",
    "ip.dst",
    "dhcp.id",
    "dhcp.flags",
    "dhcp.ip.client",
    "dhcp.ip.your",
    "dhcp.option.type",
    "dhcp.option.value",
    "arp.opcode",
    "arp.src.proto_ipv4",
    "arp.dst.proto_ipv4",
    "ipv6.dst",
    "dhcpv6.msgtype",
    "dhcpv6.xid",
    "dhcpv6.duid.type",
    "dhcpv6.option.type",
];

pub struct Capture<'w> {
    service: Service<'w>,
    place: String,
}

/// A packet, as tshark reads it.
#[derive(Debug, Clone)]
pub struct Packet(Vec<String>);

impl<'w> Capture<'w> {
    /// Captures on the link `port` of `outside`, through which everything from and to the host goes.
    pub fn start(outside: &Container<'w>) -> Self {
        let words = ["dumpcap", "-q", "-i", "port", "-f", FILTER, "-w", FILE];
        let place = outside.netns();
        let mut service = Service::new(outside.world, "dumpcap", Some(place.clone()), &words);
        service.start("File: ");
        Self { service, place }
    }

    /// Ends the capture after all packets that were sent before, and returns the packets of DHCP, DHCPv6 and ARP.
    pub fn finish(mut self) -> Vec<Packet> {
        let world = self.service.world;
        // A packet that no other process sends is the last one.
        let end = "echo the-end-of-the-capture | socat -t 0 - UDP-DATAGRAM:10.1.0.255:9,broadcast";
        let is_written = || {
            world.tool(&["sh", "-c", end], Some(&self.place)).run().output();
            let bytes = std::fs::read(world.path(FILE)).unwrap();
            bytes.windows(22).any(|window| window == b"the-end-of-the-capture")
        };
        world.within(LIMIT_S, "the capture is written", is_written);
        self.service.end(Signal::SIGTERM);
        read(world, "dhcp or arp or dhcpv6")
    }
}

/// The packets of the capture that this display filter passes.
fn read(world: &World, filter: &str) -> Vec<Packet> {
    let mut words = vec!["tshark", "-n", "-r", FILE, "-Y", filter, "-T", "fields"];
    for field in FIELDS {
        words.extend(["-e", field]);
    }
    let text = world.tool(&words, None).env("HOME", "/run").run().output();
    text.lines().map(|line| Packet(line.split('\t').map(str::to_owned).collect())).collect()
}

impl Packet {
    /// The text of a field of tshark; empty if the packet does not have it.
    pub fn get(&self, field: &str) -> &str {
        let at = FIELDS.iter().position(|name| *name == field).expect("the field is in FIELDS");
        self.0.get(at).map_or("", String::as_str)
    }

    /// The id of the transaction; empty for other protocols.
    pub fn xid(&self) -> &str {
        match self.get("dhcp.id") {
            "" => self.get("dhcpv6.xid"),
            id => id,
        }
    }

    /// Seconds since 1970.
    pub fn time_s(&self) -> f64 {
        self.get("frame.time_epoch").parse().unwrap()
    }

    /// The content of a DHCP option in hexadecimal.
    pub fn option(&self, code: u8) -> Option<&str> {
        let codes = self.get("dhcp.option.type").split(',');
        let mut both = codes.zip(self.get("dhcp.option.value").split(','));
        both.find(|(other, _)| *other == code.to_string()).map(|(_, value)| value)
    }

    /// The name of the message type (RFC 8415, section 7.3) in DHCPv6.
    pub fn kind6(&self) -> &'static str {
        match self.get("dhcpv6.msgtype") {
            "1" => "SOLICIT",
            "2" => "ADVERTISE",
            "3" => "REQUEST",
            "4" => "CONFIRM",
            "5" => "RENEW",
            "6" => "REBIND",
            "7" => "REPLY",
            "8" => "RELEASE",
            "9" => "DECLINE",
            _ => "",
        }
    }

    /// The name of the message type (RFC 2132, section 9.6); empty for other protocols.
    pub fn kind(&self) -> &'static str {
        match self.option(53) {
            Some("01") => "DISCOVER",
            Some("02") => "OFFER",
            Some("03") => "REQUEST",
            Some("04") => "DECLINE",
            Some("05") => "ACK",
            Some("06") => "NAK",
            Some("07") => "RELEASE",
            Some("08") => "INFORM",
            _ => "",
        }
    }
}

/// The packets of one kind.
pub fn of_kind<'p>(packets: &'p [Packet], kind: &str) -> Vec<&'p Packet> {
    packets.iter().filter(|packet| packet.kind() == kind).collect()
}

/// The packets of one kind of DHCPv6.
pub fn of_kind6<'p>(packets: &'p [Packet], kind: &str) -> Vec<&'p Packet> {
    packets.iter().filter(|packet| packet.kind6() == kind).collect()
}

/// How many transactions these packets have. A client sends a packet again, with the same id, if the answer is late.
pub fn transactions(packets: &[&Packet]) -> usize {
    packets.iter().map(|packet| packet.xid()).collect::<BTreeSet<_>>().len()
}

/// The kinds of DHCPv6 in their order.
pub fn kinds6(packets: &[Packet]) -> Vec<&'static str> {
    packets.iter().map(Packet::kind6).filter(|kind| !kind.is_empty()).collect()
}

/// The kinds in their order, without other protocols.
pub fn kinds(packets: &[Packet]) -> Vec<&'static str> {
    packets.iter().map(Packet::kind).filter(|kind| !kind.is_empty()).collect()
}
