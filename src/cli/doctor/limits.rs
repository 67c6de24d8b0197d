//! Tables of the kernel that are nearly full.

use std::fs;

use crate::error::Result;

use super::forwarding::value;
use super::host::Host;
use super::{Finding, Harm};

/// In percent of its limit.
const NEARLY_FULL: u64 = 90;

pub(super) fn limits(_: &Host<'_>) -> Result<Vec<Finding>> {
    let conntrack = "net/netfilter/nf_conntrack_";
    let number = |key: &str| value(key).parse().unwrap_or(0);
    let mut findings = Vec::new();
    let mut compare = |what: &str, key: &str, used: u64, max: u64| {
        findings.extend(finding(what, key, used, max));
    };
    let (used, max) = (number(&format!("{conntrack}count")), number(&format!("{conntrack}max")));
    compare("the table of connections", "net.netfilter.nf_conntrack_max", used, max);
    for (file, family, what) in [
        ("arp_cache", "ipv4", "the table of IPv4 neighbours"),
        ("ndisc_cache", "ipv6", "the table of IPv6 neighbours"),
    ] {
        let key = format!("net/{family}/neigh/default/gc_thresh3");
        compare(what, &key.replace('/', "."), neighbours(file), number(&key));
    }
    Ok(findings)
}

/// The neighbours of all namespaces: the first column of the first line below the header, in hexadecimal. 0 in a namespace
/// that is not the first.
fn neighbours(file: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/thread-self/net/stat/{file}")).unwrap_or_default();
    let entries = text.lines().nth(1).and_then(|line| line.split(' ').next());
    entries.and_then(|entries| u64::from_str_radix(entries, 16).ok()).unwrap_or(0)
}

fn finding(what: &str, key: &str, used: u64, max: u64) -> Option<Finding> {
    if max == 0 || used * 100 < max * NEARLY_FULL {
        return None;
    }
    Some(Finding {
        harm: Harm::Broken,
        what: format!("{what} is nearly full: {used} of {max} entries"),
        why: "The kernel drops packets of new connections when the table is full.",
        mend: format!("sysctl -w {key}={}", max * 2),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_nearly_full_is_found() {
        for (used, max, expected) in [
            (900, 1000, Some("sysctl -w a.b=2000")),
            (1000, 1000, Some("sysctl -w a.b=2000")),
            (899, 1000, None),
            (0, 0, None),
        ] {
            let found = finding("the table", "a.b", used, max);
            assert_eq!(found.as_ref().map(|it| it.mend.as_str()), expected);
            assert!(found.is_none_or(|it| it.what.contains(&format!("{used} of {max}"))));
        }
    }
}
