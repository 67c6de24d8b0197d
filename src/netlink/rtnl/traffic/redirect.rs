//! Filters that redirect packets to another link, which sends or receives them.

use std::net::IpAddr;

use ipnet::IpNet;
use nix::libc;

use super::{
    AddressField, CLSACT_EGRESS, INGRESS, ROOT, TC_H_INGRESS, TCA_ACT_KIND, TCA_ACT_OPTIONS,
    TCA_MIRRED_PARMS, TCA_U32_ACT, TCA_U32_CLASSID, TCA_U32_SEL, filter_info, header, keys,
    u32_selector, words,
};
use crate::netlink::Attrs;
use crate::netlink::rtnl::Batch;

/// linux/pkt_cls.h and linux/tc_act/tc_mirred.h
const TC_ACT_STOLEN: u32 = 4;
const TCA_INGRESS_REDIR: u32 = 3;

impl Batch {
    /// Puts packets that a link would send into the receive path of other links. Each item has the source address of the
    /// packets, and the index of the link that receives them.
    pub fn receive_sent(&mut self, link: u32, name: &str, receivers: &[(IpAddr, u32)]) {
        let doing = format!("cannot redirect packets from link {name}");
        let at = header(link, INGRESS, TC_H_INGRESS, 0);
        self.push_traffic(libc::RTM_NEWQDISC, doing.clone(), at, "clsact", |_| {});
        for (source, to) in receivers {
            let source = IpNet::from(*source);
            let at = header(link, 0, CLSACT_EGRESS, filter_info(source));
            self.push_traffic(libc::RTM_NEWTFILTER, doing.clone(), at, "u32", |attrs| {
                attrs.u32(TCA_U32_CLASSID, ROOT | 1);
                let keys = keys(source, AddressField::Source);
                attrs.bytes(TCA_U32_SEL, &u32_selector(&keys));
                write(attrs, TCA_INGRESS_REDIR, *to);
            });
        }
    }
}

/// The action of a filter that redirects packets to a link, which sends or receives them.
pub(super) fn write(attrs: &mut Attrs, direction: u32, to: u32) {
    attrs.nested(TCA_U32_ACT, |actions| {
        actions.nested(1, |action| {
            action.string(TCA_ACT_KIND, "mirred");
            action.nested(TCA_ACT_OPTIONS, |options| {
                // struct tc_mirred: index, capabilities, action, two counters, egress or ingress, link.
                let mirred = words(&[0, 0, TC_ACT_STOLEN, 0, 0, direction, to]);
                options.bytes(TCA_MIRRED_PARMS, &mirred);
            });
        });
    });
}
