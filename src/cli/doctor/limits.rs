//! Finds kernel tables that are nearly full: conntrack and neighbours.

use crate::error::Result;
use crate::kernel::file;

use super::finding::{Findings, Harm};
use super::forwarding::value;
use super::host::Host;

/// A table is nearly full from this percentage of its limit on.
const NEARLY_FULL: u64 = 90;

pub(super) fn limits(_: &Host<'_>, found: &mut Findings) -> Result<()> {
    let conntrack = "net/netfilter/nf_conntrack_";
    let number = |key: &str| value(key).parse().unwrap_or(0);
    let (used, max) = (number(&format!("{conntrack}count")), number(&format!("{conntrack}max")));
    compare("the table of connections", "net.netfilter.nf_conntrack_max", used, max, found);
    for (file, family, what) in [
        ("arp_cache", "ipv4", "the table of IPv4 neighbours"),
        ("ndisc_cache", "ipv6", "the table of IPv6 neighbours"),
    ] {
        let key = format!("net/{family}/neigh/default/gc_thresh3");
        compare(what, &key.replace('/', "."), neighbours(file), number(&key), found);
    }
    Ok(())
}

/// The number of neighbours in all namespaces: the first column below the header, in hexadecimal. 0 in a namespace other than
/// the initial one, which does not have the file.
fn neighbours(file: &str) -> u64 {
    let text = file::read_lossy(format!("/proc/thread-self/net/stat/{file}")).unwrap_or_default();
    let entries = text.lines().nth(1).and_then(|line| line.split(' ').next());
    entries.and_then(|entries| u64::from_str_radix(entries, 16).ok()).unwrap_or(0)
}

fn compare(what: &str, key: &str, used: u64, max: u64, found: &mut Findings) {
    if max > 0 && used * 100 >= max * NEARLY_FULL {
        found.add(
            Harm::Broken,
            format_args!("{what} is nearly full: {used} of {max} entries"),
            "The kernel drops packets of new connections when the table is full.",
            format_args!("sysctl -w {key}={}", max * 2),
        );
    }
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
            let mut found = Findings::default();
            compare("the table", "a.b", used, max, &mut found);
            let found = found.list.first();
            assert_eq!(found.map(|finding| finding.fix.as_str()), expected);
            assert!(found.is_none_or(|finding| finding.what.contains(&format!("{used} of {max}"))));
        }
    }
}
