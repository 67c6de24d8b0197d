//! Sysctls of the host that forwarding needs.

use crate::error::Result;
use crate::kernel::nft::{Family, Nft, Object, Table};
use crate::kernel::sysctl;
use crate::names::IpFamily;

use super::host::{Host, names};
use super::{Finding, Harm};

/// Forwarding is off. ADD enables it, so it matters for networks in use only.
pub(super) fn forwarding(host: &Host<'_>) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (family, key, dotted) in [
        (IpFamily::V4, "net/ipv4/ip_forward", "net.ipv4.ip_forward"),
        (IpFamily::V6, "net/ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding"),
    ] {
        if value(key) != "0" {
            continue;
        }
        let needing = host.networks.iter().filter(|it| it.is_routed && it.has_family(family));
        let (used, unused): (Vec<_>, Vec<_>) = needing.partition(|it| it.is_used);
        for (networks, harm, why) in [
            (used, Harm::Broken, "The host drops packets between containers and other networks."),
            (unused, Harm::Note, "The first ADD in the network sets it to 1."),
        ] {
            if !networks.is_empty() {
                findings.push(Finding {
                    harm,
                    what: format!("{dotted} is 0; it must be 1 for {}", names(networks)),
                    why,
                    mend: format!("sysctl -w {dotted}=1"),
                });
            }
        }
    }
    findings.extend(bridged_services(host)?);
    Ok(findings)
}

/// The rules of kube-proxy have to see the frames within a bridge.
fn bridged_services(host: &Host<'_>) -> Result<Option<Finding>> {
    if value(BRIDGED) == "1" || !host.networks.iter().any(|it| it.bridge.is_some()) {
        return Ok(None);
    }
    let Some(nft) = Nft::open_if_any()? else { return Ok(None) };
    let services = Object::Chain(Table { family: Family::Ip, name: "nat" }, "KUBE-SERVICES");
    let has_services = nft.is_supported()? && nft.exist(&[services])? == [true];
    Ok(has_services.then(|| Finding {
        harm: Harm::Broken,
        what: "net.bridge.bridge-nf-call-iptables is not 1, and kube-proxy runs".into(),
        why: "A container does not reach a service with a container on the same bridge.",
        mend: "modprobe br_netfilter && sysctl -w net.bridge.bridge-nf-call-iptables=1".into(),
    }))
}

/// Netfilter sees the frames between the ports of a bridge.
pub(super) const BRIDGED: &str = "net/bridge/bridge-nf-call-iptables";

/// With several default routes, an answer can arrive by another link than the host would choose for the request.
pub(super) fn reverse_path_filter(host: &Host<'_>) -> Result<Vec<Finding>> {
    let routes = host.rtnl.routes(IpFamily::V4)?;
    let mut uplinks: Vec<u32> =
        routes.iter().filter(|it| it.dst.prefix_len() == 0).filter_map(|it| it.dev).collect();
    uplinks.sort_unstable();
    uplinks.dedup();
    if uplinks.len() < 2 {
        return Ok(Vec::new());
    }
    let of_link = |link: &str| value(&sysctl::of_link(IpFamily::V4, link, "rp_filter"));
    let all = of_link("all");
    let mut findings = Vec::new();
    for index in uplinks {
        let Some(link) = host.rtnl.link_at(index)? else { continue };
        // The kernel uses the larger of both values.
        if all.clone().max(of_link(&link.name)) == "1" {
            findings.push(Finding {
                harm: Harm::Note,
                what: format!("rp_filter of {} is 1 (strict), and the host has several default routes", link.name),
                why: "The host drops packets that arrive by another link than its answers leave by.",
                mend: format!("sysctl -w net/ipv4/conf/{}/rp_filter=2", link.name),
            });
        }
    }
    Ok(findings)
}

/// Empty if the sysctl does not exist.
pub(super) fn value(key: &str) -> String {
    sysctl::get(key).ok().flatten().unwrap_or_default()
}
