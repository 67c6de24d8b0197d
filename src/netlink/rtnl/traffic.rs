//! Traffic control: limits the rate of a link, and redirects the packets that it receives.
//!
//! At the root of a link is the queueing discipline `1:`: tbf, a token bucket for all packets that the link sends, or
//! htb with a class `1:30` for some of them. Both can contain fq_codel, which shares the rate among flows.

mod redirect;

use ipnet::IpNet;
use neli::consts::nl::NlmF;
use nix::libc::{self, TCA_KIND, TCA_OPTIONS};

use super::consts::AF_UNSPEC;
use super::{Batch, Rtnl};
use crate::error::Result;
use crate::kernel::packet::{ETH_P_IP, ETH_P_IPV6};
use crate::netlink::{Attrs, Requests, attribute, fixed, found, octets, text, u32_at};

/// Handles that the kernel defines (linux/pkt_sched.h), and those that cnibox chooses.
const TC_H_ROOT: u32 = 0xffff_ffff;
const TC_H_INGRESS: u32 = 0xffff_fff1;
pub(super) const INGRESS: u32 = 0xffff_0000;
/// The parent of the filters of clsact for sent packets (TC_H_MIN_EGRESS).
pub(super) const CLSACT_EGRESS: u32 = 0xffff_fff3;
pub(super) const ROOT: u32 = 0x0001_0000;
/// The classes that contain the queue of the bucket: `1:1` of tbf, `1:30` of htb.
const BUCKET_CLASS: u32 = ROOT | 1;
const SHAPED_CLASS: u32 = ROOT | 0x30;
/// The handles of the queue of the bucket: that of bfifo, and that of fq_codel, which replaces bfifo.
const QUEUE: u32 = 0x0002_0000;
const FAIR: u32 = 0x0003_0000;

/// The index of `lo` in every namespace (LOOPBACK_IFINDEX in linux/netdevice.h).
const LOOPBACK: u32 = 1;
/// linux/pkt_sched.h
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
/// The longest frame: the largest MTU of the kernel and the Ethernet header (linux/if_ether.h).
const FRAME_BYTES_MAX: u32 = 65_535 + 14;
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_DIRECT_QLEN: u16 = 5;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
const HTB_VERSION: u32 = 3;
/// linux/pkt_cls.h
const TCA_U32_CLASSID: u16 = 1;
const TCA_U32_SEL: u16 = 5;
pub(super) const TCA_U32_ACT: u16 = 7;
const TC_U32_TERMINAL: u8 = 1;
pub(super) const TCA_ACT_KIND: u16 = 1;
pub(super) const TCA_ACT_OPTIONS: u16 = 2;
/// linux/tc_act/tc_mirred.h
const TCA_MIRRED_PARMS: u16 = 2;
const TCA_EGRESS_REDIR: u32 = 1;
/// linux/if_ether.h
const ETH_P_ALL: u16 = 0x0003;

/// In the parameters of tbf and htb the kernel counts time in ticks of 64 ns (PSCHED_SHIFT in net/pkt_sched.h).
const NS_PER_TICK: u64 = 64;
/// The length of htb's queue for packets that are not shaped. The kernel's default is the queue length of the link, which can
/// be 0.
const DIRECT_QUEUE_PACKETS: u32 = 1000;

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// In bytes per second; not 0.
    pub rate: u64,
    /// In bytes: the packets that the link sends at once after an idle time.
    pub burst: u32,
    /// In bytes: the length of the queue. The kernel drops further packets.
    pub limit: u32,
}

/// Selects the packets that go through the bucket, by source or destination address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficSelector {
    pub subnets: Vec<IpNet>,
    /// Selects packets with an address in the subnets; false selects all other packets.
    pub shapes_subnets: bool,
    /// The field that is compared with the subnets.
    pub field: AddressField,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressField {
    Source,
    Destination,
}

/// A queueing discipline, a class or a filter, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    pub kind: String,
    pub handle: u32,
    pub parent: u32,
    /// tcm_info of struct tcmsg: for a filter its priority and its protocol.
    pub(super) info: u32,
    /// TCA_OPTIONS, the attributes of the kind.
    pub(super) options: Vec<u8>,
}

impl Batch {
    /// Limits the rate of all packets that a link sends, or of the selected ones. The name is for the error message.
    pub fn shape(
        &mut self,
        link: u32,
        name: &str,
        bucket: &TokenBucket,
        selector: Option<&TrafficSelector>,
    ) {
        let doing = format!("cannot limit the rate of link {name}");
        let root = header(link, ROOT, TC_H_ROOT, 0);
        let Some(selector) = selector else {
            let encode = |attrs: &mut Attrs| bucket.encode(attrs);
            return self.push_traffic(libc::RTM_NEWQDISC, doing, root, "tbf", encode);
        };
        self.push_traffic(libc::RTM_NEWQDISC, doing.clone(), root, "htb", |attrs| {
            attrs.bytes(TCA_HTB_INIT, &words(&[HTB_VERSION, 10, selector.default_class(), 0, 0]));
            attrs.u32(TCA_HTB_DIRECT_QLEN, DIRECT_QUEUE_PACKETS);
        });
        let class = header(link, SHAPED_CLASS, ROOT, 0);
        self.push_traffic(libc::RTM_NEWTCLASS, doing.clone(), class, "htb", |attrs| {
            bucket.encode_class(attrs);
        });
        // The default limit of the queue is the queue length of the link.
        self.queue(link, name, bucket, Some(selector));
        for subnet in &selector.subnets {
            let header = header(link, 0, ROOT, filter_info(*subnet));
            self.push_traffic(libc::RTM_NEWTFILTER, doing.clone(), header, "u32", |attrs| {
                attrs.u32(TCA_U32_CLASSID, selector.class());
                attrs.bytes(TCA_U32_SEL, &u32_selector(&keys(*subnet, selector.field)));
            });
        }
    }

    /// Adds the queue bfifo to the bucket. The kernel does not list the internal queue of tbf.
    pub fn queue(
        &mut self,
        link: u32,
        name: &str,
        bucket: &TokenBucket,
        selector: Option<&TrafficSelector>,
    ) {
        let doing = format!("cannot limit the queue of link {name}");
        let at = header(link, QUEUE, bucket_class(selector), 0);
        self.push_traffic(libc::RTM_NEWQDISC, doing, at, "bfifo", |attrs| {
            attrs.raw(&bucket.limit.to_ne_bytes());
        });
    }

    /// Redirects all packets that a link receives to another link, which sends them.
    pub fn redirect_incoming(&mut self, link: u32, name: &str, to: u32) {
        let doing = format!("cannot redirect packets from link {name}");
        let at = header(link, INGRESS, TC_H_INGRESS, 0);
        self.push_traffic(libc::RTM_NEWQDISC, doing.clone(), at, "ingress", |_| {});
        let at = header(link, 0, INGRESS, info(1, ETH_P_ALL));
        self.push_traffic(libc::RTM_NEWTFILTER, doing, at, "u32", |attrs| {
            attrs.u32(TCA_U32_CLASSID, ROOT | 1);
            attrs.bytes(TCA_U32_SEL, &u32_selector(&[EVERYTHING]));
            redirect::write(attrs, TCA_EGRESS_REDIR, to);
        });
    }

    fn push_traffic(
        &mut self,
        message: u16,
        doing: String,
        header: [u8; HEADER_BYTES],
        kind: &str,
        options: impl FnOnce(&mut Attrs),
    ) {
        self.requests.push(message, NlmF::CREATE | NlmF::EXCL, doing, |attrs| {
            attrs.raw(&header);
            attrs.string(TCA_KIND, kind);
            attrs.nested(TCA_OPTIONS, options);
        });
    }
}

impl Rtnl {
    /// Replaces the queue of the bucket by fq_codel. Without CONFIG_NET_SCH_FQ_CODEL nothing changes.
    pub fn share_fairly(
        &self,
        link: u32,
        name: &str,
        selector: Option<&TrafficSelector>,
    ) -> Result<()> {
        let doing = format!("cannot share the rate of link {name}");
        let flags = NlmF::CREATE | NlmF::REPLACE;
        let mut requests = Requests::one(libc::RTM_NEWQDISC, flags, doing, |attrs| {
            attrs.raw(&header(link, FAIR, bucket_class(selector), 0));
            attrs.string(TCA_KIND, "fq_codel");
        });
        // ENOENT: the kernel lacks the queueing discipline.
        requests.tolerate(libc::ENOENT);
        Ok(self.change(requests)?)
    }

    /// The queueing discipline at the root of a link.
    pub fn root_discipline(&self, link: u32) -> Result<Option<Traffic>> {
        self.get_traffic(libc::RTM_GETQDISC, header(link, 0, TC_H_ROOT, 0))
    }

    /// The queue of the bucket; `None` if that is the internal queue of tbf.
    pub fn queue(&self, link: u32, selector: Option<&TrafficSelector>) -> Result<Option<Traffic>> {
        self.get_traffic(libc::RTM_GETQDISC, header(link, 0, bucket_class(selector), 0))
    }

    /// The class of the packets that are shaped.
    pub fn shaped_class(&self, link: u32) -> Result<Option<Traffic>> {
        self.get_traffic(libc::RTM_GETTCLASS, header(link, SHAPED_CLASS, ROOT, 0))
    }

    /// The filters of received packets.
    pub fn incoming_filters(&self, link: u32) -> Result<Vec<Traffic>> {
        self.list_filters(header(link, 0, INGRESS, 0))
    }

    /// The filters of sent packets.
    pub fn outgoing_filters(&self, link: u32) -> Result<Vec<Traffic>> {
        self.list_filters(header(link, 0, ROOT, 0))
    }

    /// Fails if the kernel lacks the queueing discipline `kind`, tbf or htb. The request changes nothing: the kernel refuses
    /// tbf and htb without parameters.
    pub fn require_discipline(&self, kind: &str) -> Result<()> {
        let mut batch = Batch::new();
        let doing = format!("cannot use queueing discipline {kind}");
        let at = header(LOOPBACK, 0, TC_H_ROOT, 0);
        batch.push_traffic(libc::RTM_NEWQDISC, doing, at, kind, |_| {});
        match self.change(batch.requests) {
            // ENOENT: the kernel lacks the queueing discipline.
            Err(error) if error.errno == libc::ENOENT => {
                let option = kind.to_ascii_uppercase();
                Err(error.with_hint(format!("the kernel lacks CONFIG_NET_SCH_{option}")).into())
            }
            _ => Ok(()),
        }
    }

    /// Reverts `Batch::shape` and `Batch::redirect_incoming`. Missing objects are no error. Queueing disciplines and filters of
    /// other programs stay.
    pub fn unshape(&self, link: u32) -> Result<()> {
        self.unshape_sent(link)?;
        self.unshape_received(link)
    }

    /// Reverts `Batch::shape`.
    pub fn unshape_sent(&self, link: u32) -> Result<()> {
        self.delete_discipline(link, self.root_discipline(link)?.filter(Traffic::is_shaper))
    }

    /// Reverts `Batch::redirect_incoming`.
    pub fn unshape_received(&self, link: u32) -> Result<()> {
        // clsact has the same handle as ingress. It is not deleted, because it contains the filters of other programs.
        let ingress = self.get_traffic(libc::RTM_GETQDISC, header(link, 0, TC_H_INGRESS, 0))?;
        let mut ingress = ingress.filter(|found| found.kind == "ingress");
        if ingress.is_some() {
            let filters = self.incoming_filters(link)?;
            let is_ours =
                |filter: &Traffic| filter.is_hash_table() || filter.redirects_to().is_some();
            ingress = ingress.filter(|_| filters.iter().all(is_ours));
        }
        self.delete_discipline(link, ingress)
    }

    fn delete_discipline(&self, link: u32, found: Option<Traffic>) -> Result<()> {
        let Some(found) = found else { return Ok(()) };
        let doing = format!("cannot delete the queueing discipline {} of link {link}", found.kind);
        let header = header(link, found.handle, found.parent, 0);
        let mut requests = Requests::bare(libc::RTM_DELQDISC, NlmF::empty(), doing, &header);
        requests.tolerate(libc::ENOENT);
        Ok(self.change(requests)?)
    }

    fn get_traffic(&self, message: u16, header: [u8; HEADER_BYTES]) -> Result<Option<Traffic>> {
        let doing = "cannot read traffic control";
        // Without NLM_F_ECHO the kernel answers to multicast groups only.
        let request = Requests::bare(message, NlmF::ECHO, doing, &header);
        // The object does not exist, or the kernel does not report it.
        let object = found(self.socket.get(request, Traffic::parse), |error| {
            matches!(error.errno, libc::ENOENT | libc::EINVAL | libc::ENOMSG)
        })?;
        // The kernel's default discipline has no handle.
        Ok(object.flatten().filter(|object| object.handle != 0))
    }

    pub(super) fn list_filters(&self, header: [u8; HEADER_BYTES]) -> Result<Vec<Traffic>> {
        let doing = "cannot list the filters of traffic control";
        let request = Requests::bare(libc::RTM_GETTFILTER, NlmF::empty(), doing, &header);
        Ok(self.socket.dump(request, Traffic::parse)?)
    }
}

impl TokenBucket {
    /// The time that the burst takes at the rate, rounded down to microseconds and converted to ticks; `None` if it overflows.
    fn buffer(&self) -> Option<u32> {
        let us = u64::from(self.burst) * 1_000_000 / self.rate;
        u32::try_from(us.checked_mul(1000)? / NS_PER_TICK).ok()
    }

    /// Whether `ticks`, a buffer in the kernel, is the time of this burst: exact, or rounded as the reference rounds it.
    fn has_buffer(&self, ticks: u32) -> bool {
        let exact = u64::from(self.burst) * 1_000_000_000 / self.rate / NS_PER_TICK;
        self.buffer().is_none_or(|buffer| ticks == buffer || exact.abs_diff(ticks.into()) <= 1)
    }

    /// struct tc_tbf_qopt: rate, peakrate, limit, buffer (the burst at `rate`, in ticks), mtu (the burst at `peakrate`).
    fn encode(&self, options: &mut Attrs) {
        let mut parameters = [rate(self.rate), [0; RATE_BYTES]].concat();
        parameters.extend(words(&[self.limit, self.buffer().unwrap_or(u32::MAX), 0]));
        options.bytes(TCA_TBF_PARMS, &parameters);
        // The time of the burst is rounded down, so a frame as long as the burst would be dropped.
        if self.burst <= FRAME_BYTES_MAX || self.buffer().is_none() {
            options.u32(TCA_TBF_BURST, self.burst);
        }
        if u32::try_from(self.rate).is_err() {
            options.bytes(TCA_TBF_RATE64, &self.rate.to_ne_bytes());
        }
    }

    /// struct tc_htb_opt: rate, ceil, buffer and cbuffer (the burst at `rate` and at `ceil`, in ticks), quantum, level, prio.
    fn encode_class(&self, options: &mut Attrs) {
        let mut parameters = [rate(self.rate), rate(self.rate)].concat();
        let buffer = self.buffer().unwrap_or(u32::MAX);
        // The kernel's default quantum would be out of range, and the kernel would log a warning.
        parameters.extend(words(&[buffer, buffer, 10_000, 0, 0]));
        options.bytes(TCA_HTB_PARMS, &parameters);
        if u32::try_from(self.rate).is_err() {
            for kind in [TCA_HTB_RATE64, TCA_HTB_CEIL64] {
                options.bytes(kind, &self.rate.to_ne_bytes());
            }
        }
    }
}

impl TrafficSelector {
    /// The minor number of the class of packets that no filter matches. 0 is `1:0`, which does not shape the packets.
    fn default_class(&self) -> u32 {
        if self.shapes_subnets { 0 } else { SHAPED_CLASS & 0xffff }
    }

    /// The class that the filters select for packets of the subnets.
    fn class(&self) -> u32 {
        if self.shapes_subnets { SHAPED_CLASS } else { ROOT }
    }
}

impl Traffic {
    fn parse(payload: &[u8]) -> Option<Self> {
        let (handle, parent) = (u32_at(payload, 8)?, u32_at(payload, 12)?);
        let (info, list) = (u32_at(payload, 16)?, payload.get(HEADER_BYTES..)?);
        let kind = attribute(list, TCA_KIND).map(text).unwrap_or_default().into_owned();
        let options = attribute(list, TCA_OPTIONS).unwrap_or_default().to_vec();
        Some(Self { kind, handle, parent, info, options })
    }

    /// Whether this is a hash table of filters, which the kernel lists, too.
    fn is_hash_table(&self) -> bool {
        attribute(&self.options, TCA_U32_SEL).is_none() && self.kind == "u32"
    }

    /// Whether this is the root discipline of `Batch::shape`.
    pub fn is_shaper(&self) -> bool {
        self.handle == ROOT && matches!(self.kind.as_str(), "tbf" | "htb")
    }

    /// Whether this is tbf, or a class of htb, with the rate and the burst of the bucket, and for tbf its limit.
    pub fn is_bucket(&self, bucket: &TokenBucket) -> bool {
        let is_tbf = self.kind == "tbf";
        let Some(parameters) = attribute(&self.options, TCA_TBF_PARMS) else { return false };
        let word = |at: usize| u32_at(parameters, at);
        let rate64 = attribute(&self.options, if is_tbf { TCA_TBF_RATE64 } else { TCA_HTB_RATE64 });
        let ceiling64 = attribute(&self.options, TCA_HTB_CEIL64);
        let has_rate = |at, rate64: Option<&[u8]>| match u32::try_from(bucket.rate) {
            Ok(rate) => word(at) == Some(rate),
            Err(_) => rate64 == Some(&bucket.rate.to_ne_bytes()),
        };
        let has_burst = |at| word(at).is_some_and(|ticks| bucket.has_buffer(ticks));
        has_rate(8, rate64)
            && if is_tbf {
                word(24) == Some(bucket.limit) && has_burst(28)
            } else {
                has_rate(20, ceiling64) && has_burst(24) && has_burst(28)
            }
    }

    /// Whether this is htb with the default class of the selector.
    pub fn is_htb_for(&self, selector: &TrafficSelector) -> bool {
        let init = attribute(&self.options, TCA_HTB_INIT);
        let default = init.and_then(|init| u32_at(init, 8));
        self.is_shaper() && self.kind == "htb" && default == Some(selector.default_class())
    }

    /// Whether this is the queue of `Batch::queue`.
    pub fn is_queue(&self, bucket: &TokenBucket) -> bool {
        self.handle == QUEUE && self.kind == "bfifo" && self.options == bucket.limit.to_ne_bytes()
    }

    /// Whether this is fq_codel of `Rtnl::share_fairly`.
    pub fn is_fair(&self) -> bool {
        self.handle == FAIR && self.kind == "fq_codel"
    }

    /// Whether this is the filter of the selector for the subnet.
    pub fn is_filter_for(&self, subnet: IpNet, selector: &TrafficSelector) -> bool {
        self.info == filter_info(subnet)
            && attribute(&self.options, TCA_U32_CLASSID) == Some(&selector.class().to_ne_bytes())
            && self.selects(&keys(subnet, selector.field))
    }

    fn selects(&self, keys: &[Key]) -> bool {
        attribute(&self.options, TCA_U32_SEL) == Some(&u32_selector(keys))
    }

    /// Whether this is the filter of `Batch::redirect_incoming` to the link.
    pub fn redirects_all_to(&self, link: u32) -> bool {
        self.redirects_to() == Some(link)
            && self.info == info(1, ETH_P_ALL)
            && self.selects(&[EVERYTHING])
    }

    /// The index of the link that the filter redirects to; `None` for any other filter.
    pub fn redirects_to(&self) -> Option<u32> {
        let action = attribute(attribute(&self.options, TCA_U32_ACT)?, 1)?;
        let mirred = attribute(attribute(action, TCA_ACT_OPTIONS)?, TCA_MIRRED_PARMS)?;
        u32_at(mirred, 24).filter(|_| u32_at(mirred, 20) == Some(TCA_EGRESS_REDIR))
    }
}

pub(super) const HEADER_BYTES: usize = 20;
const RATE_BYTES: usize = 12;

/// struct tcmsg: family, link, handle, parent, and for filters priority and protocol.
pub(super) fn header(link: u32, handle: u32, parent: u32, info: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = AF_UNSPEC;
    for (at, word) in [(4, link), (8, handle), (12, parent), (16, info)] {
        header[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    header
}

fn info(priority: u32, protocol: u16) -> u32 {
    priority << 16 | u32::from(protocol.to_be())
}

/// tcm_info of the filter for a subnet: priority and protocol. Two protocols cannot have the same priority.
fn filter_info(subnet: IpNet) -> u32 {
    if subnet.addr().is_ipv4() { info(16, ETH_P_IP) } else { info(15, ETH_P_IPV6) }
}

/// The class that contains the queue of the bucket: `1:30` of htb with a selector, `1:1` of tbf without.
fn bucket_class(selector: Option<&TrafficSelector>) -> u32 {
    if selector.is_some() { SHAPED_CLASS } else { BUCKET_CLASS }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// struct tc_ratespec. Rates above 32 bits are in other attributes.
fn rate(rate: u64) -> [u8; RATE_BYTES] {
    let mut spec = [0; RATE_BYTES];
    spec[8..].copy_from_slice(&u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes());
    spec
}

/// 32 bits of a packet: mask, value, and the offset in the IP header, in bytes.
type Key = (u32, u32, u32);
const EVERYTHING: Key = (0, 0, 0);

/// struct tc_u32_sel with its keys.
fn u32_selector(keys: &[Key]) -> Vec<u8> {
    let count = u8::try_from(keys.len()).unwrap_or(u8::MAX);
    let mut bytes = vec![TC_U32_TERMINAL, 0, count, 0];
    bytes.resize(16, 0);
    for (mask, value, at) in keys {
        let key = [mask.to_be_bytes(), value.to_be_bytes(), at.to_ne_bytes(), [0; 4]];
        bytes.extend(key.concat());
    }
    bytes
}

/// The keys of a filter for packets that have an address of the subnet in the field.
fn keys(subnet: IpNet, field: AddressField) -> Vec<Key> {
    let (network, mask) = (octets(subnet.network()), octets(subnet.netmask()));
    let (of_source, of_destination) = if subnet.addr().is_ipv4() { (12, 16) } else { (8, 24) };
    let start = if field == AddressField::Source { of_source } else { of_destination };
    let word = |bytes: &[u8]| fixed(bytes, 0).map_or(0, u32::from_be_bytes);
    let words = mask.chunks_exact(4).zip(network.chunks_exact(4)).zip((start..).step_by(4));
    let mut keys: Vec<Key> =
        words.map(|((mask, network), at)| (word(mask), word(network), at)).collect();
    let last = keys.iter().rposition(|(mask, ..)| *mask != 0).unwrap_or(0);
    keys.truncate(last + 1);
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_a_time_as_in_the_reference() {
        let buffer = |rate, burst| TokenBucket { rate, burst, limit: 0 }.buffer();
        // 1 Mbit/s and 10,000 bytes: 80 ms, 15.625 ticks a microsecond.
        assert_eq!(buffer(125_000, 10_000), Some(1_250_000));
        assert_eq!(buffer(3, 1), Some(5_208_328));
        assert_eq!(buffer(125_000, u32::MAX / 8), None);
    }

    #[test]
    fn the_prefix_of_a_subnet_is_compared() {
        let keys = |net: &str, field| keys(net.parse().unwrap(), field);
        assert_eq!(keys("10.1.0.0/16", AddressField::Source), [(0xffff_0000, 0x0a01_0000, 12)]);
        assert_eq!(keys("0.0.0.0/0", AddressField::Destination), [(0, 0, 16)]);
        assert_eq!(
            keys("fd00:1::/40", AddressField::Destination),
            [(0xffff_ffff, 0xfd00_0001, 24), (0xff00_0000, 0, 28)]
        );
    }

    #[test]
    fn written_disciplines_are_recognised() {
        for rate in [125_000, 20_000_000_000] {
            let bucket = TokenBucket { rate, burst: 10_000, limit: 13_125 };
            for (kind, encode) in [
                ("tbf", TokenBucket::encode as fn(&TokenBucket, &mut Attrs)),
                ("htb", TokenBucket::encode_class),
            ] {
                let mut options = Attrs::default();
                encode(&bucket, &mut options);
                let options = options.as_slice().to_vec();
                let found = Traffic {
                    kind: kind.into(),
                    handle: ROOT,
                    parent: TC_H_ROOT,
                    info: 0,
                    options,
                };
                assert!(found.is_bucket(&bucket), "{kind} {rate}");
                assert!(
                    !found.is_bucket(&TokenBucket { rate: rate + 1, ..bucket }),
                    "{kind} {rate}"
                );
                assert!(
                    !found.is_bucket(&TokenBucket { burst: 20_000, ..bucket }),
                    "{kind} {rate}"
                );
                let cut = Traffic { options: found.options[..20].to_vec(), ..found };
                assert!(!cut.is_bucket(&bucket), "{kind} {rate}");
            }
        }
    }
}
