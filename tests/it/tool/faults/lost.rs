//! What other programs removed of the rules that the plugins made.

use serde_json::json;

use super::Breaks::Traffic;
use super::By::{Plain, Probe};
use super::Flow::{Port, Port6, World, World6};
use super::Mend::Printed;
use super::{Fault, judge};
use crate::tool::probe::Host;

pub(super) const LOST: &[Fault] = &[
    Fault {
        name: "the ruleset is flushed",
        make: "nft flush ruleset",
        breaks: Traffic(&[World, World6, Port, Port6]),
        found: &[
            (
                Plain,
                &[
                    "bridge: what it made for 2 attachments of a is missing",
                    "masquerading of 10.1.0.3 is missing",
                ],
            ),
            (Plain, &["portmap: what it made", "host port tcp 8080 is missing"]),
            (
                Probe,
                &["over IPv6) are not translated to the container: they go to the host itself"],
            ),
        ],
        mend: Printed,
        end: "",
    },
    Fault {
        name: "iptables-restore of the tables that iptables-save knows",
        make: "iptables-save >/run/saved; nft flush ruleset; iptables-restore </run/saved",
        breaks: Traffic(&[World, World6, Port, Port6]),
        found: &[(
            Plain,
            &["masquerading of 10.1.0.3 is missing", "host port tcp 8080 is missing"],
        )],
        mend: Printed,
        end: "",
    },
    Fault {
        name: "a table is flushed",
        make: "nft flush table ip cnibox",
        breaks: Traffic(&[World, Port]),
        found: &[(Plain, &["masquerading of 10.1.0.3 is missing"])],
        mend: Printed,
        end: "",
    },
    Fault {
        name: "the jump to the published ports is missing",
        make: "nft flush chain ip cnibox portmap-dstnat",
        breaks: Traffic(&[Port]),
        found: &[(Plain, &["rules of chain portmap-dstnat of table ip cnibox are missing"])],
        mend: Printed,
        end: "",
    },
    Fault {
        name: "elements of masquerading are lost",
        make: "nft flush map ip cnibox masquerade-sources",
        breaks: Traffic(&[World]),
        found: &[(Plain, &["masquerading of 10.1.0.3 is missing (and 1 more)"])],
        mend: Printed,
        end: "",
    },
];

/// With the plugin `firewall`.
pub(super) const FIREWALL: &[Fault] = &[
    Fault {
        name: "the jump to CNI-FORWARD is missing",
        make: "iptables-nft -F FORWARD",
        breaks: Traffic(&[World, Port]),
        found: &[(Plain, &["the jump from FORWARD to CNI-FORWARD is missing in table ip filter"])],
        mend: Printed,
        end: "",
    },
    Fault {
        name: "an address is missing from the set of the plugin firewall",
        make: "nft delete element ip cnibox firewall-addresses '{ 10.1.0.2 }'",
        breaks: Traffic(&[World]),
        found: &[(Plain, &["address 10.1.0.2 is not in the firewall"])],
        mend: Printed,
        end: "",
    },
    Fault {
        name: "the ruleset is flushed, and the policy is DROP again",
        make: "nft flush ruleset; iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP",
        breaks: Traffic(&[World, World6, Port, Port6]),
        found: &[(Plain, &["firewall: what it made for 2 attachments of a is missing"])],
        mend: Printed,
        end: "",
    },
];

/// A host with the plugin `firewall`, and the policy of Docker.
pub(super) fn with_firewall() -> Host {
    let host = Host::with_plugins(&[json!({"type": "firewall", "acceptPublished": true})]);
    host.world.host(["sh", "-c", "iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP"]);
    host
}

#[test]
fn lost_rules() {
    judge(Host::new, LOST);
}

#[test]
fn lost_rules_of_the_firewall() {
    judge(with_firewall, FIREWALL);
}
