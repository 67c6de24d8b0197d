//! Extensions of iptables. iptables calls a chain with an unknown expression "incompatible", and prints a lookup in a set as a
//! rule without a condition.

use super::expr::{Expr, XtExtension};
use crate::netlink::{u16_at, u32_of};

/// `-m mark --mark BITS/BITS`: the packet has all these bits of the mark. It needs CONFIG_NFT_COMPAT and
/// CONFIG_NETFILTER_XT_MARK. Source: linux/netfilter/xt_mark.h, `struct xt_mark_mtinfo1`.
pub fn xt_mark(bits: u32) -> Expr {
    let [word, none] = [bits, 0].map(u32::to_ne_bytes);
    let info = [word, word, none, none].concat();
    Expr::XtMatch(XtExtension { name: "mark".into(), revision: 1, info })
}

impl XtExtension {
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

    /// The destination ports of the match `tcp` or `udp`, from the first to the last. Source: linux/netfilter/xt_tcpudp.h:
    /// `spts[2]`, `dpts[2]`.
    pub fn destination_ports(&self) -> Option<(u16, u16)> {
        let is_ports = matches!(self.name.as_str(), "tcp" | "udp");
        let ports = u16_at(&self.info, 4).zip(u16_at(&self.info, 6));
        ports.filter(|ports| is_ports && *ports != (0, u16::MAX))
    }
}

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
        let ports = XtExtension {
            name: "tcp".into(),
            revision: 0,
            info: [[0, 0xffff], [80, 90]].concat().into_iter().flat_map(u16::to_ne_bytes).collect(),
        };
        assert_eq!(ports.destination_ports(), Some((80, 90)));
    }
}
