//! Files: the cache, reservations, plugins and configurations; and daemons.

use super::Breaks::Command;
use super::By::Plain;
use super::Mend::{Printed, Undone};
use super::{Fault, judge, judge_apart};
use crate::tool::probe::Host;

/// The state of attachments. `$entry` is the cache entry of container one.
pub(super) const STATE: &[Fault] = &[
    Fault {
        name: "a cache entry is damaged",
        make: "entry=$(grep -l netns/one /var/lib/cni/results/*) && cp $entry /run/kept && echo $entry >/run/entry && echo { >$entry",
        breaks: Command("cnibox check a one"),
        found: &[(
            Plain,
            &[
                "broken: cannot use cache entry /var/lib/cni/results/a-",
                "EOF while parsing an object",
            ],
        )],
        mend: Undone("cp /run/kept $(cat /run/entry)", "nobody else has the file"),
        end: "",
    },
    Fault {
        name: "a cache entry is a directory",
        make: "entry=$(grep -l netns/one /var/lib/cni/results/*) && mv $entry /run/kept && echo $entry >/run/entry && mkdir $entry",
        breaks: Command("cnibox check a one"),
        found: &[(
            Plain,
            &["broken: cannot use cache entry /var/lib/cni/results/a-", "it is a directory"],
        )],
        mend: Undone(
            "rmdir $(cat /run/entry) && cp /run/kept $(cat /run/entry)",
            "nobody else has the file",
        ),
        end: "",
    },
    Fault {
        name: "a cache entry is removed",
        make: "entry=$(grep -l netns/one /var/lib/cni/results/*) && mv $entry /run/kept && echo $entry >/run/entry",
        breaks: Command("cnibox check a one"),
        found: &[(Plain, &["in network a lives, and the cache has no entry of it"])],
        mend: Undone("cp /run/kept $(cat /run/entry)", "nobody else has the file"),
        end: "",
    },
    Fault {
        name: "the directory of cache entries is a file",
        make: "mv /var/lib/cni/results /run/results && echo >/var/lib/cni/results",
        breaks: Command("cnibox check a one"),
        found: &[(Plain, &["cannot read directory /var/lib/cni/results: Not a directory"])],
        mend: Undone(
            "rm /var/lib/cni/results && mv /run/results /var/lib/cni/results",
            "the directory is lost, and gc would remove what it named",
        ),
        end: "",
    },
    Fault {
        name: "a record is damaged",
        make: "record=$(grep -l netns/one /var/lib/cni/attachments/a+*) && cp $record /run/kept && echo $record >/run/entry && echo { >$record",
        breaks: Command("cnibox check a one"),
        found: &[(
            Plain,
            &[
                "broken: cannot read record /var/lib/cni/attachments/a+",
                "start the container again",
            ],
        )],
        mend: Undone("cp /run/kept $(cat /run/entry)", "nobody else has the file"),
        end: "",
    },
    Fault {
        name: "a reservation is removed",
        make: "rm /var/lib/cni/networks/a/10.1.0.2",
        breaks: Command("cnibox check a one"),
        found: &[(Plain, &["its address 10.1.0.2 is not reserved"])],
        mend: Printed,
        end: "chmod 600 /var/lib/cni/networks/a/10.* /var/lib/cni/networks/a/fd00*",
    },
    Fault {
        name: "all reservations are removed",
        make: "rm /var/lib/cni/networks/a/10.* /var/lib/cni/networks/a/fd00*",
        breaks: Command("cnibox check a one"),
        found: &[(
            Plain,
            &["its address 10.1.0.2 is not reserved", "its address fd00:1::3 is not reserved"],
        )],
        mend: Printed,
        end: "chmod 600 /var/lib/cni/networks/a/10.* /var/lib/cni/networks/a/fd00*",
    },
    Fault {
        name: "a reservation has another owner",
        make: "echo garbage >/var/lib/cni/networks/a/10.1.0.2",
        breaks: Command("cnibox check a one"),
        found: &[(Plain, &["its address 10.1.0.2 is reserved for another owner"])],
        mend: Printed,
        end: "chmod 600 /var/lib/cni/networks/a/10.* /var/lib/cni/networks/a/fd00*",
    },
    Fault {
        name: "a reservation is a directory",
        make: "mv /var/lib/cni/networks/a/10.1.0.2 /run/kept && mkdir /var/lib/cni/networks/a/10.1.0.2",
        breaks: Command("cnibox check a one"),
        found: &[(Plain, &["cannot read /var/lib/cni/networks/a/10.1.0.2: it is a directory"])],
        mend: Undone(
            "rmdir /var/lib/cni/networks/a/10.1.0.2 && mv /run/kept /var/lib/cni/networks/a/10.1.0.2",
            "what the directory holds is unknown",
        ),
        end: "",
    },
];

/// Plugins, configurations and daemons.
pub(super) const INSTALLATION: &[Fault] = &[
    Fault {
        name: "the file of a plugin is empty",
        make: "rm /run/plugins/portmap && : >/run/plugins/portmap && chmod 755 /run/plugins/portmap",
        breaks: Command("CNI_COMMAND=VERSION /run/plugins/portmap </dev/null | grep -q cniVersion"),
        found: &[(Plain, &["portmap in /run/plugins: it is empty"])],
        mend: Printed,
        end: "rm -r /run/plugins/.cnibox* /run/plugins/cnibox /run/plugins/portmap && ln -s /run/bin/cnibox /run/plugins/portmap",
    },
    Fault {
        name: "a plugin is misspelt",
        make: "sed -i.kept 's/\"portmap\"/\"portmpa\"/' /run/net.d/a.conflist",
        breaks: Command("cnibox lint"),
        found: &[(
            Plain,
            &[
                "a.conflist: lint finds mistakes: 1: there is no plugin \"portmpa\"; did you mean portmap?",
            ],
        )],
        mend: Undone("mv /run/net.d/a.conflist.kept /run/net.d/a.conflist", "an editor has to"),
        end: "",
    },
    Fault {
        name: "a configuration is no JSON",
        make: "echo { >/run/net.d/b.conflist",
        breaks: Command("cnibox lint"),
        found: &[(Plain, &["b.conflist: lint finds mistakes: 1: cannot read JSON"])],
        mend: Undone("rm /run/net.d/b.conflist", "an editor has to"),
        end: "",
    },
    Fault {
        name: "two networks have the same addresses",
        make: "sed 's/\"name\":\"a\"/\"name\":\"b\"/; s/cni-a/cni-b/' /run/net.d/a.conflist >/run/net.d/b.conflist",
        breaks: Command("cnibox lint"),
        found: &[(
            Plain,
            &["b.conflist: 10.1.0.0/16 overlaps the range 10.1.0.0/16 of network a in a.conflist"],
        )],
        mend: Undone("rm /run/net.d/b.conflist", "an editor has to"),
        end: "",
    },
    Fault {
        name: "the DHCP daemon does not run",
        make: r#"echo '{"cniVersion": "1.0.0", "name": "d", "plugins": [{"type": "macvlan", "master": "wan", "ipam": {"type": "dhcp"}}]}' >/run/net.d/d.conflist"#,
        breaks: Command("cnibox dhcp leases"),
        found: &[(Plain, &["no dhcp daemon listens at /run/cni/dhcp.sock, for d"])],
        mend: Printed,
        end: "rm /run/net.d/d.conflist; kill $(pgrep -x dhcp); while pgrep -x dhcp >/dev/null; do sleep 0.1; done; rm -rf /run/cni/dhcp*",
    },
    Fault {
        name: "a link ignores router advertisements",
        make: "sysctl -qw net.ipv6.conf.wan.accept_ra=1 && ip address add fd03::5/64 dev wan nodad valid_lft 1000 preferred_lft 0",
        breaks: Command("test $(sysctl -n net.ipv6.conf.wan.accept_ra) = 2"),
        found: &[(
            Plain,
            &["wan ignores router advertisements: it forwards, and its accept_ra is 1"],
        )],
        mend: Printed,
        end: "ip address delete fd03::5/64 dev wan",
    },
];

/// A container that ended.
pub(super) const ENDED: &[Fault] = &[Fault {
    name: "a container ended without a DEL",
    make: "cnibox add a three --create -p 8083:80 >/dev/null && umount /run/netns/three && rm /run/netns/three &&
        until cnibox attachments | grep -q ' gone '; do sleep 0.1; done",
    breaks: Command("! nft list table ip cnibox | grep -q 8083"),
    found: &[(Plain, &["leaked: eth0 of container ", "has ended: its network namespace has ended"])],
    mend: Printed,
    end: "",
}];

#[test]
fn state() {
    judge(Host::new, STATE);
}

#[test]
fn installation() {
    judge(Host::new, INSTALLATION);
}

#[test]
fn ended() {
    judge_apart(Host::new, ENDED);
}
