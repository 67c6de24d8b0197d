//! Extensions of iptables. iptables calls a chain with an unknown expression "incompatible", and prints a lookup in a set as a
//! rule without a condition.

use super::expr::{Expr, XtExtension};
use super::value::Transport;
use crate::netlink::{u16_at, u32_of};

/// `-m mark --mark BITS/BITS`: the packet has all these bits of the mark. It needs CONFIG_NFT_COMPAT and
/// CONFIG_NETFILTER_XT_MARK. Source: linux/netfilter/xt_mark.h, `struct xt_mark_mtinfo1`.
pub fn xt_mark(bits: u32) -> Expr {
    let [word, none] = [bits, 0].map(u32::to_ne_bytes);
    let info = [word, word, none, none].concat();
    Expr::XtMatch(XtExtension { name: "mark".into(), revision: 1, info })
}

/// `-m udp --dport PORT`, or the same of `tcp`: the packet is to this port. It needs CONFIG_NFT_COMPAT, and the rule a condition on the
/// protocol before it. Source: linux/netfilter/xt_tcpudp.h, `struct xt_udp` and `struct xt_tcp`, aligned to eight bytes.
pub fn xt_dport(transport: Transport, port: u16) -> Expr {
    let mut info = [0, u16::MAX, port, port].map(u16::to_ne_bytes).concat();
    info.resize(16, 0);
    Expr::XtMatch(XtExtension { name: transport.name().into(), revision: 0, info })
}

impl XtExtension {
    /// The protocol that the rule must have, or the kernel refuses the match.
    pub(super) fn protocol(&self) -> Option<Transport> {
        [Transport::Tcp, Transport::Udp].into_iter().find(|one| one.name() == self.name)
    }

    /// The value and the mask of the packet mark that the match or target compares or sets. `None` if it is about something
    /// else.
    pub fn mark(&self) -> Option<(u32, u32)> {
        let word = |index: usize| u32_of(self.info.get(index * 4..)?.get(..4)?);
        match self.name.as_str() {
            "mark" | "MARK" => Some((word(0)?, word(1)?)),
            // Source: linux/netfilter/xt_connmark.h, `nfmask`.
            "CONNMARK" => Some((0, word(2)?)),
            _ => None,
        }
    }

    /// The states of connections that the match `conntrack` or `state` selects, and whether it selects all others instead. The
    /// states have the bits of `CtState`, and `XT_CT_STATE_DNAT`. `None` for another match, and for one with more conditions.
    pub fn ct_states(&self) -> Option<(u16, bool)> {
        let number = |at| u16_at(&self.info, at);
        match (self.name.as_str(), self.revision) {
            // Source: linux/netfilter/xt_conntrack.h. Revision 2 differs from revision 3 in the ports only.
            ("conntrack", 2 | 3) => {
                let is_state = number(MTINFO3_MATCH_FLAGS)? & !STATE_ALIAS == XT_CONNTRACK_STATE;
                let is_inverted = number(MTINFO3_INVERT_FLAGS)? & XT_CONNTRACK_STATE != 0;
                Some((number(MTINFO3_STATE_MASK)?, is_inverted)).filter(|_| is_state)
            }
            // Source: linux/netfilter/xt_state.h.
            ("state", _) => Some((u16::try_from(u32_of(&self.info)?).ok()?, false)),
            _ => None,
        }
    }

    /// The condition of the match `tcp`, `udp` or `multiport` on destination ports. `None` if it has none, or selects all others.
    pub fn destination_ports(&self) -> Option<XtPorts> {
        let number = |at| u16_at(&self.info, at);
        let pair = |at| number(at).zip(number(at + 2));
        match self.name.as_str() {
            // Source: linux/netfilter/xt_tcpudp.h: `spts[2]`, `dpts[2]`, for TCP an option and flags, and what is inverted.
            "tcp" | "udp" => {
                let rest = self.info.get(8..if self.name == "tcp" { 12 } else { 9 })?;
                let is_inverted = rest.last().is_some_and(|flags| flags & XT_INV_DSTPT != 0);
                let is_only_condition =
                    pair(0) == Some(ALL_PORTS) && rest.iter().all(|byte| *byte == 0);
                let ranges = pair(4).filter(|ports| *ports != ALL_PORTS && !is_inverted)?;
                Some(XtPorts { ranges: vec![ranges], is_only_condition })
            }
            "multiport" => self.multiport(),
            _ => None,
        }
    }

    /// Source: linux/netfilter/xt_multiport.h, `struct xt_multiport_v1`: whether they are destinations, the count, 15 ports, for
    /// each port whether the next one ends its range, and whether it is inverted.
    fn multiport(&self) -> Option<XtPorts> {
        let [XT_MULTIPORT_DESTINATION, count, ..] = *self.info.as_slice() else { return None };
        let (mut ranges, mut ports) = (Vec::new(), 0..usize::from(count));
        while let Some(at) = ports.next() {
            let is_range = *self.info.get(32 + at)? != 0;
            let last = if is_range { ports.next()? } else { at };
            ranges.push((u16_at(&self.info, 2 + 2 * at)?, u16_at(&self.info, 2 + 2 * last)?));
        }
        let is_inverted = self.info.get(47) != Some(&0);
        (!is_inverted).then_some(XtPorts { ranges, is_only_condition: true })
    }
}

/// A condition on ports.
#[derive(Debug, PartialEq, Eq)]
pub struct XtPorts {
    /// From the first to the last of each range.
    ranges: Vec<(u16, u16)>,
    /// The match has no other conditions.
    pub is_only_condition: bool,
}

impl XtPorts {
    pub fn has(&self, port: u16) -> bool {
        self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&port))
    }
}

const ALL_PORTS: (u16, u16) = (0, u16::MAX);
/// `XT_TCP_INV_DSTPT` and `XT_UDP_INV_DSTPT`.
const XT_INV_DSTPT: u8 = 2;
/// Source: linux/netfilter/xt_multiport.h, `enum xt_multiport_flags`.
const XT_MULTIPORT_DESTINATION: u8 = 1;

/// The offsets of fields in `struct xt_conntrack_mtinfo3`.
const MTINFO3_MATCH_FLAGS: usize = 146;
const MTINFO3_INVERT_FLAGS: usize = 148;
const MTINFO3_STATE_MASK: usize = 150;
const XT_CONNTRACK_STATE: u16 = 1;
const STATE_ALIAS: u16 = 1 << 13;
/// A state of the match in addition to those of `CtState`: the destination was translated.
pub const XT_CT_STATE_DNAT: u16 = 1 << 7;

#[cfg(test)]
mod tests {
    use super::*;

    /// The offsets of the bytes that iptables 1.8.9 sends.
    #[test]
    fn the_states_of_a_match_are_read() {
        let with = |name: &str, bytes: &[(usize, u8)]| {
            let mut info = vec![0; 168];
            bytes.iter().for_each(|(at, byte)| info[*at] = *byte);
            XtExtension { name: name.into(), revision: 3, info }
        };
        let (has_state, states) =
            if cfg!(target_endian = "little") { (146, 150) } else { (147, 151) };
        let established = [(has_state, 1), (states, 6)];
        assert_eq!(with("conntrack", &established).ct_states(), Some((6, false)));
        assert_eq!(with("conntrack", &[(has_state, 5), (states, 6)]).ct_states(), None);
        assert_eq!(with("limit", &established).ct_states(), None);
    }

    #[test]
    fn the_destination_ports_of_a_match_are_read() {
        let ports =
            |ports: &[u16]| ports.iter().flat_map(|port| port.to_ne_bytes()).collect::<Vec<_>>();
        let read = |name: &str, info: &[&[u8]]| {
            let info = info.concat();
            XtExtension { name: name.into(), revision: 1, info }.destination_ports()
        };
        let found = |ranges: &[(u16, u16)], is_only_condition| {
            Some(XtPorts { ranges: ranges.into(), is_only_condition })
        };
        let one = ports(&[0, 0xffff, 80, 90]);
        assert_eq!(read("tcp", &[&one, &[0; 4]]), found(&[(80, 90)], true));
        assert_eq!(read("tcp", &[&one, &[0, 2, 2, 0]]), found(&[(80, 90)], false));
        assert_eq!(
            read("udp", &[&ports(&[1024, 0xffff, 80, 90]), &[0]]),
            found(&[(80, 90)], false)
        );
        assert_eq!(read("udp", &[&one, &[2]]), None);
        assert_eq!(read("udp", &[&ports(&[5, 5, 0, 0xffff]), &[0]]), None);

        let mut all = [0_u16; 15];
        all[..4].copy_from_slice(&[22, 80, 90, 443]);
        let (all, mut begins) = (ports(&all), [0; 15]);
        begins[1] = 1;
        let several = found(&[(22, 22), (80, 90), (443, 443)], true);
        assert_eq!(read("multiport", &[&[1, 4], &all, &begins, &[0]]), several);
        assert_eq!(read("multiport", &[&[1, 4], &all, &begins, &[1]]), None);
        assert_eq!(read("multiport", &[&[0, 4], &all, &begins, &[0]]), None);
        assert!(several.is_some_and(|ports| ports.has(85) && !ports.has(91)));
    }
}
