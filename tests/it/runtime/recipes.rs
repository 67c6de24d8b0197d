//! Blocks of documents, executed as they are written there: the recipes of docs/run.md for hosts without a container manager, and
//! the networks of README.md, docs/networks.md and docs/runtime.md.

use std::fs;

use serde_json::{Value, json};

use super::Host;
use super::oci_hook::{BUNDLE, RUNTIMES};
use crate::world::Call;

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");

/// A root directory with the directories of the host and an own /opt, in a process namespace of its own. cnibox is
/// installed there.
const ROOT: &str = r#"set -eu
mkdir -p /run/root
mount -t tmpfs tmpfs /run/root
for entry in /*; do
    if [ -L "$entry" ]; then cp -P "$entry" /run/root; continue; fi
    [ -d "$entry" ] || continue
    mkdir "/run/root$entry"
    [ "$entry" = /opt ] || mount --rbind "$entry" "/run/root$entry"
done
mkdir -p /run/root/opt/cni/bin /run/root/.old
cd /run/root
pivot_root . .old
umount -l /.old
cd /
/run/bin/cnibox --install /opt/cni/bin >/run/installed
PATH=/opt/cni/bin:$PATH
eventually() {
    local tries=1200
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || { echo "not within 60 s: $*" >&2; exit 9; }
        sleep 0.05
    done
}
page() { busybox wget -q -O - http://127.0.0.1:8080/ 2>/dev/null; }
is_gone() { ! pgrep --runstates D,R,S,T busybox >/dev/null; }
leaves_nothing() {
    cnibox gc >/run/collected
    [ -z "$(find /run/cnibox /var/lib/cni/results -type f ! -name 'network-*'; ip -o link show type veth)" ]
}
nothing_is_left() { eventually leaves_nothing; }
"#;

impl Host {
    /// A script in the root directory of `ROOT`.
    pub(super) fn rooted(&self, script: &str) -> Call<'_> {
        let script = format!("{ROOT}{script}");
        let words =
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"];
        self.world.tool(&[&words[..], &[&script]].concat(), None)
    }
}

/// The indented lines of docs/run.md after a line that begins like this, up to the next line that begins with `**` or `#`.
fn recipe(title: &str) -> String {
    recipe_of("docs/run.md", title)
}

pub(super) fn recipe_of(page: &str, title: &str) -> String {
    let text = fs::read_to_string(format!("{REPOSITORY}/{page}")).unwrap();
    let after = text.lines().skip_while(|line| !line.starts_with(title)).skip(1);
    let own = after.take_while(|line| !line.starts_with("**") && !line.starts_with('#'));
    let lines: Vec<&str> = own.filter_map(|line| line.strip_prefix("    ")).collect();
    assert!(!lines.is_empty(), "{page} has no recipe {title}");
    lines.join("\n")
}

/// The commands of a block as a script, and the lines that they print. A command that fails is in the block with its message.
pub(super) fn session(block: &str) -> (String, String) {
    let (mut script, mut printed) = (String::new(), Vec::new());
    for line in block.lines() {
        match line.strip_prefix("# ") {
            Some(command) => script += &format!("{{ {command}; }} 2>&1 || true\n"),
            None => printed.push(line),
        }
    }
    (script, printed.join("\n"))
}

#[test]
fn the_first_network_of_the_readme_is_made_by_its_lines() {
    let host = Host::new();
    let block = recipe_of("README.md", "## A network and a container");
    let commands: Vec<&str> = block.lines().filter_map(|line| line.strip_prefix("# ")).collect();
    let printed: Vec<&str> = block.lines().filter(|line| !line.starts_with("# ")).collect();
    let [create, page, run, fetch, list] = commands[..] else { panic!("{block}") };
    let script = format!(
        "{create}
        {page}
        {run}
        runner=$!
        eventually page >/run/page
        {fetch}
        {list}
        kill $runner
        wait $runner || true
        nothing_is_left"
    );
    assert_eq!(host.rooted(&script).run().output().trim_end(), printed.join("\n"));
}

#[test]
fn a_network_is_made_listed_and_removed_as_the_document_shows() {
    let host = Host::new();
    let block = recipe_of("docs/networks.md", "# How is a network made");
    let (commands, printed) = session(&block);
    let script = format!(
        "ln -s \"$(command -v busybox)\" /opt/cni/bin/httpd
        mkdir /www; cd /www
        ip link show eth0 >/run/link 2>&1 || ip link add eth0 type bridge
        {commands}"
    );
    assert_eq!(host.rooted(&script).run().output().trim_end(), printed);
}

#[test]
fn attachments_are_made_checked_and_removed_as_the_document_shows() {
    let host = Host::new();
    let block = recipe_of("docs/runtime.md", "# How are attachments made");
    // No other runtime has a container here.
    let (of_others, lines): (Vec<_>, Vec<_>) =
        block.lines().partition(|line| line.contains("--container-id"));
    assert_eq!((of_others.len(), lines.len()), (1, 5), "{block}");
    let script = format!(
        "cnibox networks create mynet
        {}
        nothing_is_left",
        lines.join("\n")
    );
    assert!(host.rooted(&script).run().output().contains("10.89.0.2/24"));
}

#[test]
fn an_empty_host_serves_a_page_with_the_lines_of_the_document() {
    let host = Host::new();
    let recipe = recipe("From an empty busybox host");
    let (lines, fetch) = recipe.rsplit_once('\n').unwrap();
    assert!(lines.lines().count() <= 5, "{lines}");
    let script = format!(
        "{lines}\nrunner=$!\neventually page >/run/page\n[ \"$({fetch})\" = hello ]\nkill $runner\nwait $runner || true\nnothing_is_left"
    );
    assert_eq!(host.rooted(&script).run().output(), "dbnet\n");
}

#[test]
fn bubblewrap_and_unshare_end_with_cnibox() {
    let host = Host::new();
    let recipes = recipe("**bubblewrap** and **unshare**");
    assert_eq!(recipes.lines().count(), 2, "{recipes}");
    for line in recipes.lines() {
        for (signal, code) in [("TERM", 143), ("KILL", 137)] {
            let script = format!(
                "cnibox networks create dbnet >/run/network
                mkdir /www; echo hello >/www/index.html; cd /www
                {line} &
                runner=$!
                eventually page >/run/page
                [ \"$(page)\" = hello ]
                kill -s {signal} $runner
                code=0; wait $runner || code=$?
                [ $code = {code} ] || {{ echo \"exit code $code\" >&2; exit 9; }}
                eventually is_gone
                nothing_is_left
                cnibox networks rm dbnet"
            );
            host.rooted(&script).run().output();
        }
    }
}

#[test]
fn runc_and_crun_start_containers_with_the_lines_of_the_document() {
    let lines: Value =
        serde_json::from_str(&format!("{{{}}}", recipe("**runc and crun**"))).unwrap();
    assert_eq!(lines["annotations"]["cnibox.networks"], json!("dbnet,lan:eth9"));
    for runtime in RUNTIMES {
        let host = Host::new();
        host.bundle_with(&lines);
        // Nothing here may manage cgroups.
        let own = if runtime == "crun" { "--cgroup-manager=disabled" } else { "" };
        let script = format!(
            "cnibox networks create dbnet >/run/network
            cnibox networks create lan --subnet 192.168.1.0/24 >/run/network
            for round in 1 2; do
                {runtime} --root /run/oci {own} run --detach --bundle {BUNDLE} web </dev/null >/run/said 2>&1 || {{ cat /run/said >&2; exit 9; }}
                eventually page >/run/page
                [ \"$(page)\" = 'a page' ]
                cnibox attachments
                {runtime} --root /run/oci {own} kill web KILL
                eventually is_gone
                {runtime} --root /run/oci {own} delete --force web
                nothing_is_left
            done"
        );
        let rows = host.rooted(&script).run().output();
        for part in ["10.89.0.7/24", "8080->80/tcp", " eth9 "] {
            assert_eq!(rows.matches(part).count(), 2, "{runtime}: {part} is not in {rows}");
        }
    }
}

/// The lines of a block between fences, after a line of docs/runtimes.md that begins like this.
fn fenced(title: &str) -> String {
    let text = fs::read_to_string(format!("{REPOSITORY}/docs/runtimes.md")).unwrap();
    let after = text.lines().skip_while(|line| !line.starts_with(title));
    let lines = after.skip_while(|line| !line.starts_with("```")).skip(1);
    lines.take_while(|line| !line.starts_with("```")).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_plugins_of_k3s_are_replaced_and_its_network_is_found() {
    let host = Host::new();
    let network: Value = serde_json::from_str(&fenced("k3s writes the network itself")).unwrap();
    let lines = recipe_of("docs/runtimes.md", "**k3s**");
    let script = format!(
        "k3s=/var/lib/rancher/k3s
        mkdir -p $k3s/data/cni $k3s/data/current/bin $k3s/agent/etc/cni/net.d /run/flannel
        cp /bin/true $k3s/data/current/bin/cni
        for name in bandwidth bridge cni firewall flannel host-local loopback portmap; do
            ln -s $k3s/data/current/bin/cni $k3s/data/cni/$name
        done
        echo '{network}' >$k3s/agent/etc/cni/net.d/10-flannel.conflist
        printf 'FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n' >/run/flannel/subnet.env
        {lines} | tr -s ' '
        cnibox add cbr0 web --create -p 8080:80 >/run/result.json
        cnibox attachments --check | tr -s ' '
        cnibox del cbr0 web --delete
        nothing_is_left
        cnibox uninstall $k3s/data/cni >/run/uninstalled
        [ $(readlink $k3s/data/cni/bridge) = $k3s/data/current/bin/cni ]"
    );
    let printed = host.rooted(&script).run().output();
    for part in [
        "\ncbr0 - flannel,portmap,bandwidth - 1 1 1 ",
        " eth0 10.42.1.2/24 8080->80/tcp alive ok /run/netns/web\n",
    ] {
        assert!(printed.contains(part), "{part:?} is not in {printed}");
    }
}

#[test]
fn the_directories_of_nomad_have_plugins_with_versions_and_a_network() {
    let host = Host::new();
    let lines = recipe_of("docs/runtimes.md", "**Nomad**");
    let client = fenced("**Nomad**");
    for (key, directory) in
        [("cni_path      ", "/opt/cni/bin"), ("cni_config_dir", "/opt/cni/config")]
    {
        assert!(client.contains(&format!("{key} = \"{directory}\"")), "{client}");
    }
    // Nomad reads the versions of all plugins without arguments, and takes the first list that has the name.
    let script = format!(
        "{lines}
        for plugin in bridge firewall host-local loopback portmap; do /opt/cni/bin/$plugin 2>&1 | grep -o 'plugin v1[0-9.]*'; done
        export NETCONFPATH=/opt/cni/config
        cnibox add mynet job --create -p 8080:80 >/run/result.json
        cnibox check mynet job
        cnibox del mynet job --delete
        nothing_is_left"
    );
    let printed = host.rooted(&script).run().output();
    assert_eq!(printed.matches("plugin v1.").count(), 5, "{printed}");
}
