//! Extensions of iptables. iptables calls a chain with an unknown expression "incompatible", and prints a lookup in a set as a
//! rule without a condition.

use super::condition::CtState;
use super::expr::{Expr, XtExtension};
use super::packet::{Fit, Packet, equal};
use crate::netlink::{fixed, u16_at, u32_of};

/// `-m conntrack --ctstate RELATED,ESTABLISHED`: `ct state` in the form of iptables. It needs
/// CONFIG_NFT_COMPAT and CONFIG_NETFILTER_XT_MATCH_CONNTRACK.
pub fn xt_ct_state(state: CtState) -> Expr {
    let mut info = vec![0; MTINFO3_BYTES.next_multiple_of(align_of::<u64>())];
    write(&mut info, MTINFO3_MATCH_FLAGS, XT_CONNTRACK_STATE);
    write(&mut info, MTINFO3_STATE_MASK, state.0);
    Expr::XtMatch(XtExtension { name: "conntrack".into(), revision: 3, info })
}

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
    pub(super) fn mark(&self) -> Option<(u32, u32)> {
        let word = |index: usize| u32_of(self.info.get(index * 4..)?.get(..4)?);
        match self.name.as_str() {
            "mark" | "MARK" => Some((word(0)?, word(1)?)),
            // Source: linux/netfilter/xt_connmark.h, `nfmask`.
            "CONNMARK" => Some((0, word(2)?)),
            _ => None,
        }
    }
}

fn write(info: &mut [u8], at: usize, value: u16) {
    info[at..at + 2].copy_from_slice(&value.to_ne_bytes());
}

/// `struct xt_conntrack_mtinfo3`: its length in bytes before the padding at its end, and the offsets of its fields. Source:
/// linux/netfilter/xt_conntrack.h.
const MTINFO3_BYTES: usize = 164;
const MTINFO3_MATCH_FLAGS: usize = 146;
const MTINFO3_INVERT_FLAGS: usize = 148;
const MTINFO3_STATE_MASK: usize = 150;
const XT_CONNTRACK_STATE: u16 = 1;
const XT_CONNTRACK_STATUS: u16 = 1 << 6;
const STATE_ALIAS: u16 = 1 << 13;
/// States in addition to those of `CtState`: the source or the destination was translated.
const XT_CONNTRACK_STATE_SNAT: u16 = 1 << 6;
const XT_CONNTRACK_STATE_DNAT: u16 = 1 << 7;
/// Source: linux/netfilter/xt_tcpudp.h.
const XT_TCP_INV_FLAGS: u8 = 4;

/// Whether a packet fulfils a match of iptables (`-m`).
pub(super) fn fit(name: &str, revision: u32, info: &[u8], packet: &Packet) -> Fit {
    match (name, revision) {
        ("comment", _) => Some(Fit::Yes),
        // Revision 2 of this match differs from revision 3 in the ports only.
        ("conntrack", 2 | 3) => conntrack(info, packet),
        // Source: linux/netfilter/xt_state.h.
        ("state", _) => u32_of(info).map(|mask| Fit::of(mask & u32::from(packet.state.0) != 0)),
        ("tcp", _) => tcp(info, packet),
        _ => None,
    }
    .unwrap_or(Fit::Maybe)
}

fn conntrack(info: &[u8], packet: &Packet) -> Option<Fit> {
    let number = |at| u16_at(info, at);
    let (flags, inverted) = (number(MTINFO3_MATCH_FLAGS)?, number(MTINFO3_INVERT_FLAGS)?);
    let is_met = |flag: u16, holds: bool| Fit::of(holds != (inverted & flag != 0));
    let mut fit = match flags & !(XT_CONNTRACK_STATE | XT_CONNTRACK_STATUS | STATE_ALIAS) {
        0 => Fit::Yes,
        _ => Fit::Maybe,
    };
    if flags & XT_CONNTRACK_STATE != 0 {
        let mask = number(MTINFO3_STATE_MASK)?;
        let dnat = if packet.is_dnat { XT_CONNTRACK_STATE_DNAT } else { 0 };
        let state_fit = is_met(XT_CONNTRACK_STATE, mask & (packet.state.0 | dnat) != 0);
        // It is unknown whether the source was translated.
        let is_known = mask & XT_CONNTRACK_STATE_SNAT == 0 || mask & (packet.state.0 | dnat) != 0;
        fit = fit.and(if is_known { state_fit } else { Fit::Maybe });
    }
    if flags & XT_CONNTRACK_STATUS != 0 {
        fit = fit.and(Fit::Maybe);
    }
    Some(fit)
}

/// Whether the packet fulfils the match `tcp`; `None` if `info` is too short. Source: linux/netfilter/xt_tcpudp.h, `struct
/// xt_tcp`.
fn tcp(info: &[u8], packet: &Packet) -> Option<Fit> {
    let port = |at| u16_at(info, at);
    let [option, mask, flags, inverted] = fixed(info, 8)?;
    let mut fit = if option == 0 { Fit::Yes } else { Fit::Maybe };
    for at in [0, 4] {
        // The ports of the packet are unknown, so only a condition on all ports is met for sure.
        let is_any = (port(at)?, port(at + 2)?) == (0, u16::MAX) && inverted & 0x3 == 0;
        fit = fit.and(if is_any { Fit::Yes } else { Fit::Maybe });
    }
    let flags_fit = equal(&[packet.tcp_flags().masked(mask, 0)], &[flags]);
    Some(fit.and(if inverted & XT_TCP_INV_FLAGS == 0 { flags_fit } else { flags_fit.not() }))
}

/// The effect of an iptables target on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum XtEffect {
    GoesOn,
    Drops,
    Unknown,
}

/// The effect of a target with this name.
pub(super) fn effect(target: &str) -> XtEffect {
    match target {
        "DROP" | "REJECT" => XtEffect::Drops,
        "AUDIT" | "CHECKSUM" | "CLASSIFY" | "CONNMARK" | "CONNSECMARK" | "CT" | "DSCP" | "HL"
        | "IDLETIMER" | "LED" | "LOG" | "MARK" | "NFLOG" | "NOTRACK" | "RATEEST" | "SECMARK"
        | "SET" | "TCPMSS" | "TCPOPTSTRIP" | "TEE" | "TOS" | "TRACE" | "TTL" => XtEffect::GoesOn,
        _ => XtEffect::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::IpFamily;

    /// The bytes that iptables 1.8.9 sends.
    #[test]
    fn the_state_stands_where_iptables_puts_it() {
        let state = xt_ct_state(CtState::ESTABLISHED.or(CtState::RELATED));
        let Expr::XtMatch(XtExtension { info, .. }) = state else { panic!("it is a match") };
        let set = info.iter().enumerate().filter(|(_, byte)| **byte != 0);
        let expected: &[(usize, &u8)] = &[(146, &1), (150, &6)];
        assert_eq!(set.collect::<Vec<_>>(), expected);
        assert_eq!(info.len(), 168);
    }

    #[test]
    fn states_of_connections_are_evaluated() {
        let mut packet = Packet {
            family: IpFamily::V4,
            from: Default::default(),
            to: Default::default(),
            state: CtState::NEW,
            is_dnat: false,
        };
        let info = |state: u16, inverted: u16| {
            let mut info = vec![0; 168];
            write(&mut info, MTINFO3_MATCH_FLAGS, XT_CONNTRACK_STATE);
            write(&mut info, MTINFO3_INVERT_FLAGS, inverted);
            write(&mut info, MTINFO3_STATE_MASK, state);
            info
        };
        let fit_of = |packet: &Packet, info: &[u8]| fit("conntrack", 3, info, packet);
        assert_eq!(fit_of(&packet, &info(CtState::NEW.0, 0)), Fit::Yes);
        assert_eq!(fit_of(&packet, &info(CtState::NEW.0, 1)), Fit::No);
        assert_eq!(fit_of(&packet, &info(CtState::ESTABLISHED.0, 0)), Fit::No);
        assert_eq!(fit_of(&packet, &info(XT_CONNTRACK_STATE_DNAT, 0)), Fit::No);
        packet.is_dnat = true;
        assert_eq!(fit_of(&packet, &info(XT_CONNTRACK_STATE_DNAT, 0)), Fit::Yes);
        assert_eq!(fit_of(&packet, &info(XT_CONNTRACK_STATE_SNAT, 0)), Fit::Maybe);
        assert_eq!(fit_of(&packet, &[0; 9]), Fit::Maybe);
        assert_eq!(fit("limit", 0, &[], &packet), Fit::Maybe);
    }

    #[test]
    fn ports_and_flags_of_tcp_are_evaluated() {
        let packet = Packet {
            family: IpFamily::V4,
            from: Default::default(),
            to: Default::default(),
            state: CtState::NEW,
            is_dnat: false,
        };
        let any = [0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff];
        let info = |ports: [u8; 8], rest: [u8; 4]| [&ports[..], &rest].concat();
        // `--syn`
        assert_eq!(fit("tcp", 0, &info(any, [0, 0x17, 2, 0]), &packet), Fit::Yes);
        assert_eq!(fit("tcp", 0, &info(any, [0, 0x17, 2, 4]), &packet), Fit::No);
        let one = [0, 0, 0xff, 0xff, 80, 0, 80, 0];
        assert_eq!(fit("tcp", 0, &info(one, [0; 4]), &packet), Fit::Maybe);
    }
}
