//! Extensions of iptables. iptables calls a chain with an unknown expression "incompatible", and prints a lookup in a set as a
//! rule without a condition.

use super::condition::CtState;
use super::expr::Expr;

/// `-m conntrack --ctstate RELATED,ESTABLISHED`: `ct state` in the form of iptables. It needs
/// CONFIG_NFT_COMPAT and CONFIG_NETFILTER_XT_MATCH_CONNTRACK.
pub fn xt_ct_state(state: CtState) -> Expr {
    let mut info = vec![0; MTINFO3_BYTES.next_multiple_of(align_of::<u64>())];
    write(&mut info, MTINFO3_MATCH_FLAGS, XT_CONNTRACK_STATE);
    write(&mut info, MTINFO3_STATE_MASK, state.0);
    Expr::XtMatch { name: "conntrack".into(), revision: 3, info }
}

fn write(info: &mut [u8], at: usize, value: u16) {
    info[at..at + 2].copy_from_slice(&value.to_ne_bytes());
}

/// Source: linux/netfilter/xt_conntrack.h, `struct xt_conntrack_mtinfo3`; its size, in bytes, is then aligned.
const MTINFO3_BYTES: usize = 164;
const MTINFO3_MATCH_FLAGS: usize = 146;
const MTINFO3_STATE_MASK: usize = 150;
const XT_CONNTRACK_STATE: u16 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that iptables 1.8.9 sends.
    #[test]
    fn the_state_stands_where_iptables_puts_it() {
        let Expr::XtMatch { info, .. } = xt_ct_state(CtState::ESTABLISHED.or(CtState::RELATED))
        else {
            panic!("it is a match");
        };
        let set = info.iter().enumerate().filter(|(_, byte)| **byte != 0);
        let expected: &[(usize, &u8)] = &[(146, &1), (150, &6)];
        assert_eq!(set.collect::<Vec<_>>(), expected);
        assert_eq!(info.len(), 168);
    }
}
