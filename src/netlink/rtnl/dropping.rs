//! Filters of traffic control that can drop packets, or do more with them, of any program.

use super::Rtnl;
use super::traffic::{
    CLSACT_EGRESS, INGRESS, ROOT, TCA_ACT_KIND, TCA_ACT_OPTIONS, TCA_U32_ACT, Traffic, header,
};
use crate::error::Result;
use crate::netlink::{attribute, attributes, text, u32_at};

impl Rtnl {
    /// Whether a filter of received or sent packets can drop packets: it has the action `drop`, or it is a BPF program.
    pub fn has_dropping_filter(&self, link: u32) -> Result<bool> {
        for parent in [INGRESS, CLSACT_INGRESS, CLSACT_EGRESS, ROOT] {
            if self.list_filters(header(link, 0, parent, 0))?.iter().any(Traffic::can_drop) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a filter of received packets can copy, redirect or change them: it has an action that does more than accept, drop
    /// or limit, or it is a BPF program.
    pub fn can_send_received(&self, link: u32) -> Result<bool> {
        for parent in [INGRESS, CLSACT_INGRESS] {
            if self.list_filters(header(link, 0, parent, 0))?.iter().any(Traffic::can_send) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Traffic {
    /// The actions of the filter. `None` if they are unknown.
    fn actions(&self) -> Option<&[u8]> {
        // The attribute with the actions (linux/pkt_cls.h: TCA_U32_ACT, TCA_MATCHALL_ACT, TCA_FLOWER_ACT, TCA_BASIC_ACT).
        let actions = match self.kind.as_str() {
            "u32" => TCA_U32_ACT,
            "matchall" => 2,
            "flower" | "basic" => 3,
            _ => return None,
        };
        Some(attribute(&self.options, actions).unwrap_or_default())
    }

    fn can_send(&self) -> bool {
        let is_harmless = |action: &[u8]| {
            let kind = attribute(action, TCA_ACT_KIND).map(text);
            matches!(kind.as_deref(), Some("gact" | "police"))
        };
        self.actions()
            .is_none_or(|actions| !attributes(actions).all(|(_, action)| is_harmless(action)))
    }

    fn can_drop(&self) -> bool {
        let Some(actions) = self.actions() else { return self.kind == "bpf" };
        attributes(actions).any(|(_, action)| {
            let options = attribute(action, TCA_ACT_OPTIONS).unwrap_or_default();
            let kind = attribute(action, TCA_ACT_KIND).map(text);
            let parameters = attribute(options, TCA_GACT_PARMS).unwrap_or_default();
            kind.as_deref() == Some("gact") && u32_at(parameters, 8) == Some(TC_ACT_SHOT)
        })
    }
}

/// The parent of the filters of clsact for received packets (linux/pkt_sched.h: TC_H_MIN_INGRESS).
const CLSACT_INGRESS: u32 = 0xffff_fff2;
/// Source: linux/pkt_cls.h, linux/tc_act/tc_gact.h.
const TC_ACT_SHOT: u32 = 2;
const TCA_GACT_PARMS: u16 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Attrs;

    #[test]
    fn a_filter_with_the_action_drop_can_drop() {
        for (kind, actions, action, result, expected) in [
            ("u32", TCA_U32_ACT, "gact", TC_ACT_SHOT, true),
            ("matchall", 2, "gact", TC_ACT_SHOT, true),
            ("flower", 3, "gact", 4, false),
            ("u32", TCA_U32_ACT, "mirred", TC_ACT_SHOT, false),
            ("bpf", 9, "", 0, true),
            ("fw", 2, "gact", TC_ACT_SHOT, false),
        ] {
            let can_send = ["mirred", ""].contains(&action) || kind == "fw";
            let mut options = Attrs::default();
            options.nested(actions, |list| {
                list.nested(1, |one| {
                    one.string(TCA_ACT_KIND, action);
                    one.nested(TCA_ACT_OPTIONS, |options| {
                        options.bytes(
                            TCA_GACT_PARMS,
                            &[1, 0, result, 0, 0].map(u32::to_ne_bytes).concat(),
                        );
                    });
                });
            });
            let options = options.as_slice().to_vec();
            let filter = Traffic { kind: kind.into(), handle: 1, parent: 1, info: 0, options };
            assert_eq!(filter.can_drop(), expected, "{kind} {action} {result}");
            assert_eq!(filter.can_send(), can_send, "{kind} {action} {result}");
        }
    }
}
