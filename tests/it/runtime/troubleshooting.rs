//! docs/troubleshooting.md: each fault is made, the commands are executed as they are written there, and print what is written there.

use super::Host;
use super::recipes::{recipe_of, session};

const PAGE: &str = "docs/troubleshooting.md";
const TEXT: &str = include_str!("../../../docs/troubleshooting.md");

/// What the page has in place of text that differs, also of whole lines.
const LEFT_OUT: char = '…';

/// A host with the uplink eth0, the network mynet and its container web, which publishes a port. The page leaves the notes of
/// `doctor` out.
const NODE: &str = r#"
chmod 755 /
mount -t tmpfs -o mode=755 tmpfs /var/log
ip netns add outside
ip link show eth0 >/run/link 2>&1 || ip link add eth0 type bridge
ip link set eth0 up
ip address add 192.0.2.1/24 dev eth0
ip route add default via 192.0.2.254
cnibox() {
    if [ "$1" = doctor ]; then command cnibox "$@" 2>/run/notes-of-doctor; else command cnibox "$@"; fi
}
# network NAME BRIDGE SUBNET [KEYS [PLUGINS]]
network() {
    cat >/etc/cni/net.d/$1.conflist <<END
{"cniVersion": "1.0.0", "name": "$1", "plugins": [{"type": "bridge", "bridge": "$2"${4:-},
  "ipam": {"type": "host-local", "subnet": "$3", "routes": [{"dst": "0.0.0.0/0"}]}}${5:-}]}
END
}
inside() { local name=$1; shift; nsenter --net=/run/netns/$name "$@"; }
cnibox networks create mynet >/run/said
cnibox add mynet web --create -p 8080:80 >/run/said
has_ended() { cnibox attachments | grep -q ' gone '; }
end() { ip netns delete $1; eventually has_ended; }
"#;

/// Executes the block after the line that begins with `title` on a host that has the fault, and compares what it prints.
#[track_caller]
fn prints_what_the_page_has(title: &str, fault: &str) {
    let host = Host::new();
    let (commands, expected) = session(&recipe_of(PAGE, title));
    let printed = host.rooted(&format!("{NODE}{fault}\n{commands}")).run().output();
    let lines: Vec<&str> = printed.lines().map(str::trim_end).collect();
    let printed = lines.join("\n");
    assert!(is_like(&printed, &expected), "the page has:\n{expected}\n\nprinted:\n{printed}");
}

/// Whether a text is this one, which has some parts left out.
fn is_like(text: &str, shortened: &str) -> bool {
    let mut parts = shortened.split(LEFT_OUT);
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let mut last = "";
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { return false };
        (rest, last) = (after, part);
    }
    rest.is_empty() || shortened.contains(LEFT_OUT) && last.is_empty()
}

/// The cells of the rows of the table below the line that begins with `title`.
fn table(title: &str) -> Vec<Vec<&'static str>> {
    let after = TEXT.lines().skip_while(|line| !line.starts_with(title));
    let rows = after.skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches(['|', ' ']).split(" | ").collect()).collect()
}

/// The first text in backticks.
fn code(cell: &str) -> &str {
    cell.split('`').nth(1).unwrap_or("")
}

#[test]
fn a_node_without_a_fault() {
    prints_what_the_page_has("# Why does", "");
}

#[test]
fn a_misspelt_plugin() {
    prints_what_the_page_has(
        "**A plugin or key is misspelt**",
        r#"cat >/etc/cni/net.d/typo.conflist <<END
{"cniVersion": "1.0.0", "name": "typo", "plugins": [
  {"type": "brigde", "bridge": "cni1", "isGateway": true}
]}
END"#,
    );
}

#[test]
fn the_log_of_calls_that_fail() {
    prints_what_the_page_has("**The runtime hides", "");
}

#[test]
fn a_range_that_is_full() {
    prints_what_the_page_has(
        "**The range is full**",
        "rm /etc/cni/net.d/mynet.conflist; cnibox del mynet web --delete
        rm -r /var/lib/cni/networks/mynet
        network small cni3 10.3.0.0/29
        for number in 1 2 3 4 5; do cnibox add small s$number --create >/run/said; done",
    );
}

#[test]
fn a_policy_that_drops() {
    prints_what_the_page_has(
        "**The host drops forwarded",
        r#"cnibox del mynet web --delete; cnibox networks rm mynet >/run/said
        network plain cni2 10.3.0.0/24 ', "isGateway": true'
        cnibox add plain p --create >/run/said
        iptables-nft -P FORWARD DROP"#,
    );
}

#[test]
fn rules_that_were_flushed() {
    prints_what_the_page_has("## A firewall", "");
}

#[test]
fn a_reboot() {
    prints_what_the_page_has(
        "## The host was rebooted, or",
        "end web
        echo 00000001-e6cd-4471-bb46-39adcacd0000 >/run/boot_id
        export CNIBOX_BOOT_FILE=/run/boot_id",
    );
}

#[test]
fn names_of_the_network() {
    prints_what_the_page_has(
        "## Addresses answer",
        r#"cnibox del mynet web --delete
        network names cni9 10.9.0.0/24 ', "dns": {"nameservers": ["10.9.0.1"], "search": ["lan"]}'
        cnibox add names web --create >/run/said"#,
    );
}

#[test]
fn a_link_that_ignores_advertisements() {
    prints_what_the_page_has(
        "## IPv6 of the host",
        "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
        echo 1 >/proc/sys/net/ipv6/conf/eth0/accept_ra
        ip address add fd00:2::1/64 dev eth0 nodad valid_lft 1000 preferred_lft 500",
    );
}

/// Each fault of a table, which the rows of the page name in this order: what is printed contains the text of the row.
#[track_caller]
fn are_the_rows_of(title: &str, faults: &[&str]) {
    let rows = table(title);
    assert_eq!(rows.len(), faults.len(), "{rows:#?}");
    let mut script = NODE.to_owned();
    for fault in faults {
        script += &format!("echo '== fault'\n{{\n{fault}\n}} 2>&1 || true\n");
    }
    let printed = Host::new().rooted(&script).run().output();
    let parts: Vec<&str> = printed.split("== fault\n").skip(1).collect();
    assert_eq!(parts.len(), faults.len(), "{printed}");
    for (row, part) in rows.iter().zip(parts) {
        assert!(part.contains(code(row[0])), "{row:?}: {part}");
    }
}

#[test]
fn each_error_of_the_table() {
    are_the_rows_of(
        "## The runtime prints",
        &[
            r#"network typo cni1 10.2.0.0/24; sed -i s/bridge/brigde/ /etc/cni/net.d/typo.conflist
            cnibox add typo x --create; rm /etc/cni/net.d/typo.conflist"#,
            "ln -s cnibox /opt/cni/bin/brigde; code=0
            CNI_COMMAND=VERSION brigde </dev/null || code=$?; [ $code = 127 ] || exit 9
            rm /opt/cni/bin/brigde",
            "cnibox add nonet web",
            "echo '{' >/etc/cni/net.d/00.conflist; cnibox lint; rm /etc/cni/net.d/00.conflist",
            "network small cni3 10.3.0.0/30; cnibox add small s1 --create >/run/said
            cnibox add small s2 --create",
            "cnibox add mynet db --create --ip 10.89.0.2",
            "cnibox add mynet db --create -p 8080:80",
            "network plain cni2 10.6.0.0/24; cnibox add plain db --create -p 8081:80",
            "cnibox add mynet web; cnibox del mynet web >&2 || exit 9
            cnibox add mynet web -p 8080:80 >/run/said || exit 9",
            r#"ip link add br9 type bridge; ip address add 10.5.0.254/24 dev br9
            network br9 br9 10.5.0.0/24 ', "isGateway": true'; cnibox add br9 b --create
            ip address delete 10.5.0.254/24 dev br9; cnibox add br9 b --create >/run/said || exit 9"#,
            r#"network card cni4 10.7.0.0/24 ', "master": "eth9"'
            sed -i s/\"bridge\",/\"macvlan\",/ /etc/cni/net.d/card.conflist
            cnibox add card m --create"#,
            "network lan cni6 10.8.0.0/24; sed -i s/host-local/dhcp/ /etc/cni/net.d/lan.conflist
            cnibox add lan d --create",
            r#"network cards cni7 10.9.0.0/24 ', "master": "eth0"'
            sed -i s/\"bridge\",/\"ipvlan\",/ /etc/cni/net.d/cards.conflist
            if ip link add probe link eth0 type ipvlan 2>/run/said; then
                echo 'not here: the kernel lacks CONFIG_IPVLAN'
            else
                cnibox add cards i --create
                cnibox status cards || exit 9
                sed -i s/1.0.0/1.1.0/ /etc/cni/net.d/cards.conflist
                if cnibox status cards; then exit 9; fi
            fi"#,
        ],
    );
}

#[test]
fn each_finding_of_the_table() {
    let rows = table("| `attachments --check` or");
    // The commands of the page restore it.
    let restored = |row: usize| {
        let command = code(rows[row][1]);
        format!("{command} >/run/said; cnibox attachments --check >/run/said || exit 9")
    };
    let check = "cnibox attachments --check || true";
    are_the_rows_of(
        "| `attachments --check` or",
        &[
            &format!("echo 0 >/proc/sys/net/ipv4/ip_forward; {check}; {}", restored(0)),
            &format!("nft flush ruleset; {check}; {}", restored(1)),
            &format!("iptables-nft -F FORWARD; {check}; {}", restored(2)),
            &format!("ip link set cnibox0 down; {check}; {}", restored(3)),
            "ip route add 10.89.0.2/32 dev eth0; cnibox doctor; ip route delete 10.89.0.2/32 dev eth0",
            &format!(
                "ip link delete cnibox0; {check}
                cnibox del mynet web; cnibox add mynet web --ip 10.89.0.2 >/run/said; {check}"
            ),
            &format!("inside web ip address delete 10.89.0.2/24 dev eth0; {check}"),
            "for number in 1 2; do
                ip link add up$number up type veth peer name up${number}p
                ip link set up${number}p up
                ip address add 198.18.$number.1/24 dev up$number
                ip route add default via 198.18.$number.9 metric $number
            done
            echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter; echo 1 >/proc/sys/net/ipv4/conf/up2/rp_filter
            cnibox doctor; cat /run/notes-of-doctor",
        ],
    );
}

/// Another host, which fetches pages of this one.
const OUTSIDE: &str = r#"
ip link delete eth0
ip link add eth0 type veth peer name eth0 netns outside
ip link set eth0 up
ip address add 192.0.2.1/24 dev eth0
ip route add default via 192.0.2.254
inside outside ip link set eth0 up
inside outside ip address add 192.0.2.9/24 dev eth0
mkdir /www; echo hello >/www/index.html
ln -s "$(command -v busybox)" /opt/cni/bin/httpd
serve() { cnibox exec "$1" -- httpd -p "$2" -h /www; }
# gets WORD...: whether a program with these words before it reaches the page.
gets() { [ "$("$@" timeout 1 busybox wget -q -O - "$page" 2>/run/said)" = hello ]; }
not() { if "$@"; then echo "not expected: $*, $page" >&2; exit 9; fi; }
"#;

#[test]
fn faults_that_no_command_finds() {
    let rows = table("Neither finds these faults");
    let columns = |row: &[&'static str]| {
        row.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect::<Vec<_>>()
    };
    let (route, gateway, ping) = (columns(&rows[0]), columns(&rows[1]), columns(&rows[2]));
    let script = format!(
        r#"{NODE}{OUTSIDE}
        cnibox del mynet web
        network bare cni6 10.6.0.0/24
        sed -i 's/, "routes": \[[^]]*\]//' /etc/cni/net.d/bare.conflist
        cnibox add bare web >/run/said
        {} >/run/routes; [ -s /run/routes ]; not grep {} /run/routes
        cnibox del bare web
        network bare cni6 10.6.0.0/24
        cnibox add bare web >/run/said
        {} | grep -q '{}'
        not sh -c 'ip address | grep -w 10.6.0.1'
        cnibox attachments --check >/run/said
        cnibox del bare web
        cnibox add mynet web >/run/said
        cnibox exec web -- ping -c 1 -w 9 192.0.2.9 >/run/said
        ip link set eth0 mtu 1400; inside outside ip link set eth0 mtu 1400
        {} -c 1 >/run/said && exit 9
        grep -q '{}' /run/said
        cnibox del mynet web; cnibox networks rm mynet
        cnibox networks create -o mtu=1400 mynet
        cnibox add mynet web >/run/said
        cnibox exec web -- ping -c 1 -w 9 -s 1472 192.0.2.9 >/run/said"#,
        route[0], route[1], route[0], gateway[0], ping[0], ping[1]
    );
    assert_eq!(Host::new().rooted(&script).run().output(), "mynet\nmynet\n");
}

#[test]
fn the_default_route_is_that_of_the_last_network_without_a_metric() {
    let script = format!(
        r#"{NODE}
        defaults() {{ cnibox exec web -- ip route | grep default | sed 's/ *$//'; }}
        network lan cni5 10.5.0.0/24 ', "isGateway": true'
        cnibox add lan web -i eth1 >/run/said
        defaults
        cnibox del lan web -i eth1
        sed -i 's|"0.0.0.0/0"|"0.0.0.0/0", "priority": 100|' /etc/cni/net.d/lan.conflist
        cnibox add lan web -i eth1 >/run/said
        defaults"#
    );
    let expected = "default via 10.5.0.1 dev eth1\ndefault via 10.89.0.1 dev eth0\n\
        default via 10.89.0.1 dev eth0\ndefault via 10.5.0.1 dev eth1 metric 100\n";
    assert_eq!(Host::new().rooted(&script).run().output(), expected);
    assert!(TEXT.contains(r#"`{"dst": "0.0.0.0/0", "priority": 100}`"#));
}

#[test]
fn a_macvlan_reaches_its_host_over_another_macvlan_only() {
    let script = format!(
        r#"{NODE}{OUTSIDE}
        network lan cni5 192.0.2.0/24 ', "master": "eth0"'
        sed -i s/\"bridge\",/\"macvlan\",/ /etc/cni/net.d/lan.conflist
        cnibox add lan mac --create >/run/said
        answers() {{ cnibox exec mac -- ping -c 1 -w "$2" "$1" >/run/said; }}
        answers 192.0.2.9 9
        not answers 192.0.2.1 1
        ip link add host0 link eth0 type macvlan mode bridge
        ip link set host0 up
        ip address add 192.0.2.77/32 dev host0
        ip route add "$(cnibox exec mac -- hostname -I | tr -d ' ')" dev host0
        answers 192.0.2.77 9
        echo done"#
    );
    assert_eq!(Host::new().rooted(&script).run().output(), "done\n");
}

#[test]
fn ports_that_do_not_answer() {
    let rows = table("## A published port");
    let finding = rows[2][1].split('`').nth(3).unwrap();
    let of_policy = code(rows[2][2]);
    let script = format!(
        r#"{NODE}{OUTSIDE}
        page=http://192.0.2.1:8080/
        serve web 127.0.0.1:80
        not gets; not gets inside outside
        cnibox exec web -- ss -ltn | grep -q 127.0.0.1:80
        cnibox del mynet web --delete
        sed -i 's/"acceptPublished": true/"acceptPublished": false/' /etc/cni/net.d/mynet.conflist
        cnibox add mynet web --create -p 8080:80 >/run/said
        serve web 80
        eventually gets; gets cnibox exec web --; gets inside outside
        iptables-nft -P FORWARD DROP
        not gets inside outside; gets
        cnibox doctor >/run/findings || true
        grep -qF '{finding}' /run/findings
        {of_policy}
        gets inside outside
        iptables-nft -P FORWARD ACCEPT
        page=http://[::1]:8080/; not gets
        page=http://127.0.0.1:8080/; gets
        network plain cni2 10.3.0.0/24 ', "isGateway": true' ', {{"type": "portmap", "snat": false, "capabilities": {{"portMappings": true}}}}'
        cnibox add plain db --create -p 8081:80 >/run/said
        serve db 80
        page=http://192.0.2.1:8081/; eventually gets; gets inside outside
        not gets cnibox exec db --
        page=http://127.0.0.1:8081/; not gets
        echo done"#
    );
    assert_eq!(Host::new().rooted(&script).run().output(), "done\n");
}
