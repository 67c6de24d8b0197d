//! Converts the key of a sysctl to a path, in the notation of the reference or of sysctl(8).

use crate::error::{Error, Result};
use crate::kernel::sysctl;

/// The path of a sysctl key below /proc/sys: the first reading whose file exists, else the reading of the reference.
pub fn path(key: &str, ifname: &str) -> Result<String> {
    path_if(key, ifname, sysctl::exists)
}

fn path_if(key: &str, ifname: &str, exists: impl Fn(&str) -> bool) -> Result<String> {
    let mut readings = readings(key).map(|reading| below_net(&reading, ifname));
    // A key with `..`, `./` or `/.` could lead to another file than it shows.
    let is_safe = !key.contains("..") && !key.contains("./") && !key.contains("/.");
    let Some(of_reference) = readings[0].take().filter(|_| is_safe) else {
        return Err(
            Error::config(format_args!("invalid net sysctl key: {key:?}")).with_details("sysctl")
        );
    };
    if exists(&of_reference) {
        return Ok(of_reference);
    }
    let [_, of_sysctl] = readings;
    Ok(of_sysctl.filter(|path| exists(path)).unwrap_or(of_reference))
}

/// The two readings of a key as a path. In the reference, dots and slashes separate names. In sysctl(8), the sign that comes
/// first in the key, dot or slash, separates names, and the other sign stands for a dot in a name.
fn readings(key: &str) -> [String; 2] {
    let has_dots = key.find(['.', '/']).is_some_and(|at| key[at..].starts_with('.'));
    [key.replace('.', "/"), if has_dots { sysctl::dotted(key) } else { key.to_owned() }]
}

/// Replaces `IFNAME` in the path. `None` if the path is not below `net`.
fn below_net(path: &str, ifname: &str) -> Option<String> {
    let path = path.replacen("IFNAME", ifname, 1);
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    matches!(parts[..], ["net", _, ..]).then(|| parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_paths_of_the_reference() {
        for (key, expected) in [
            ("net.core.somaxconn", "net/core/somaxconn"),
            ("net/core/somaxconn", "net/core/somaxconn"),
            ("net.ipv4/conf.lo/forwarding", "net/ipv4/conf/lo/forwarding"),
            ("net.ipv4.conf.IFNAME.arp_notify", "net/ipv4/conf/eth0.100/arp_notify"),
            ("net/ipv4/conf/IFNAME/arp_notify", "net/ipv4/conf/eth0.100/arp_notify"),
            ("net.ipv4.conf.IFNAME.IFNAME", "net/ipv4/conf/eth0.100/IFNAME"),
            ("/net/core/somaxconn", "net/core/somaxconn"),
            ("net/ipv4/conf/a.b/x", "net/ipv4/conf/a/b/x"),
        ] {
            for exists in [true, false] {
                assert_eq!(path_if(key, "eth0.100", |_| exists).as_deref(), Ok(expected), "{key}");
            }
        }
    }

    #[test]
    fn the_notations_of_sysctl_are_used_if_only_their_file_exists() {
        let exists = |path: &str| {
            ["net/ipv4/conf/eth0.100/x", "net/ipv4/conf/a/b/x", "net/ipv4/conf/a.b/x"]
                .contains(&path)
        };
        for (key, expected) in [
            ("net/ipv4/conf/eth0.100/x", "net/ipv4/conf/eth0.100/x"),
            ("/net/ipv4/conf/eth0.100/x", "net/ipv4/conf/eth0.100/x"),
            ("net.ipv4.conf.eth0/100.x", "net/ipv4/conf/eth0.100/x"),
            // A dot in a name where dots separate.
            ("net.ipv4.conf.eth0.100.x", "net/ipv4/conf/eth0/100/x"),
            // Both files exist.
            ("net/ipv4/conf/a.b/x", "net/ipv4/conf/a/b/x"),
        ] {
            assert_eq!(path_if(key, "eth0", exists).as_deref(), Ok(expected), "{key}");
        }
    }

    #[test]
    fn keys_outside_of_net_are_refused() {
        for key in [
            "",
            "net",
            "net.",
            "kernel.hostname",
            "/kernel/hostname",
            "fs.net.x",
            "net.../kernel/x",
            "net/../kernel/hostname",
            "net.//.kernel.hostname",
            "network.core",
            "IFNAME",
            "net/./core/x",
            "../net/x",
        ] {
            let error = path_if(key, "eth0", |_| true).unwrap_err();
            assert_eq!(error.code, crate::error::Code::INVALID_CONFIG, "{key}");
        }
    }

    #[test]
    fn a_reading_outside_of_net_is_not_used() {
        let exists = |path: &str| path == "net.core/x";
        assert_eq!(path_if("net.core/x", "eth0", exists).as_deref(), Ok("net/core/x"));
        assert_eq!(path_if("/net.core/x", "eth0", exists).as_deref(), Ok("net/core/x"));
    }
}
