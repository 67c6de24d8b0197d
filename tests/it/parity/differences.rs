//! Where we differ from the reference on purpose, or from the release of it that Debian has.

/// A difference that is known: in which scenarios, what its lines look like (`-` is of the reference only, `+` of ours
/// only, `*` stands for anything), and why it is right so.
pub(super) struct Difference {
    pub(super) name: &'static str,
    scenario: &'static str,
    lines: &'static [&'static str],
}

const fn known(
    name: &'static str,
    scenario: &'static str,
    lines: &'static [&'static str],
) -> Difference {
    Difference { name, scenario, lines }
}

pub(super) const DIFFERENCES: &[Difference] = &[
    known("the specification wants cniVersion in errors", "*", &["+ * *.cniVersion = *"]),
    known(
        "an ADD records the identity of the namespace",
        "*",
        &["+ after *: dir /var/lib/cni mode=*", "+ after *: * /var/lib/cni/attachments*"],
    ),
    known(
        "on one link, an address has one container",
        "bridge, static",
        &[
            "- after ADD: c2 *",
            "- after ADD: host link veth* *",
            "- c2 ADD*",
            "+ c2 ADD.code = 999",
            "+ c2 ADD: exit 1",
        ],
    ),
    known(
        "our sentences are our own; texts that others match on are kept",
        "*",
        &["- * *.msg = *", "+ * *.msg = *"],
    ),
    known("details follow the reference's message", "failure, *", &["+ * ADD.details = *"]),
    known(
        "the container that has a requested address is named",
        "host-local, *",
        &["+ * ADD.details = \"it is taken by *"],
    ),
    known(
        "a value that makes no sense is an invalid configuration",
        "failure, *",
        &["- * *.code = 999", "+ * *.code = 7"],
    ),
    known("Debian's release prints empty dns in 1.0.0", "*", &["- * ADD.dns = {}"]),
    known(
        "Debian's release lets everybody read the files",
        "*",
        &["- after *: mode of *: 644", "+ after *: mode of *: 600"],
    ),
    known(
        "Debian's release does not speak 1.1.0",
        "failure, bad version",
        &["- * *.details = *", "+ * *.details = *"],
    ),
    known(
        "loopback has the shape of the version",
        "loopback, 0.3.1",
        &["+ * ADD.ips[*].version = *"],
    ),
    known(
        "a failed ADD takes back its links",
        "failure, *",
        &["- after ADD: c* link eth0 kind=veth *", "- after ADD: host link veth* kind=veth *"],
    ),
    known(
        "a failed ADD takes back addresses and routes",
        "failure, another address*",
        &["- after ADD: c* address *", "- after ADD: c* route *"],
    ),
    known(
        "a failed ADD takes back the bridge that it made",
        "failure, *",
        &["- after *: host link cni0 kind=bridge *"],
    ),
    known(
        "IPAM comes before the pair",
        "failure, *",
        &[
            "+ after *: dir *",
            "+ after *: file */last_reserved_ip.0 *",
            "+ after *: file */lock *",
            "+ after *: mode of *",
        ],
    ),
    known(
        "DEL makes no directory",
        "failure, hairpin*",
        &["- after DEL: dir *", "- after DEL: file */lock *", "- after DEL: mode of */lock: *"],
    ),
    known(
        "the bridge comes before IPAM, and DEL makes no directory",
        "failure, cni0 is no bridge",
        &["- after DEL: dir *", "- after DEL: file */lock *", "- after DEL: mode of */lock: *"],
    ),
    known(
        "DEL leaves an interface of another kind",
        "failure, eth0 is there",
        &["+ after DEL: c* link eth0 kind=bridge *"],
    ),
    known(
        "DEL makes no directory, and leaves an interface of another kind",
        "failure, macvlan, eth0 is there",
        &[
            "- after DEL: dir *",
            "- after DEL: file */lock *",
            "- after DEL: mode of */lock: *",
            "+ after DEL: c* link eth0 kind=bridge *",
        ],
    ),
    known(
        "a failed ADD takes back its link, and frees the name",
        "failure, macvlan, no such ipam",
        &["- after *: c* link eth0 kind=macvlan *"],
    ),
    known(
        "a MAC address that is in use has a holder, and the kernel's text is a detail",
        "macvlan, mac",
        &["+ c2 ADD.details = *"],
    ),
    known(
        "DEL needs no sense in the ranges",
        "failure, *",
        &["- * DEL: documents 1", "- * DEL: exit 1", "+ * DEL: exit 0"],
    ),
];

impl Difference {
    /// The number of the first pattern that fits.
    pub(super) fn covers(&self, scenario: &str, line: &str) -> Option<usize> {
        if !fits(self.scenario, scenario) {
            return None;
        }
        self.lines.iter().position(|pattern| fits(pattern, line))
    }

    pub(super) fn patterns(&self) -> &[&'static str] {
        self.lines
    }
}

/// Whether `*`s in the pattern can be replaced so that it becomes the text.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(start) else { return false };
    (0..=text.len()).filter(|&at| text.is_char_boundary(at)).any(|at| fits(rest, &text[at..]))
}

#[test]
fn stars_stand_for_anything() {
    for (pattern, text, expected) in [
        ("*", "", true),
        ("a*", "abc", true),
        ("a*c", "abc", true),
        ("a*c", "abcd", false),
        ("*b*", "abc", true),
        ("a", "ab", false),
        ("+ * x", "+ c1 x", true),
        ("- a*", "+ a", false),
    ] {
        assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
    }
}
