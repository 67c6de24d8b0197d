//! `cnibox oci-hook`, by hand and by Debian's runc and crun on a bundle of busybox.

use serde_json::{Value, json};

use super::{Host, network};
use crate::world::{Call, State, with};

pub(super) const RUNTIMES: [&str; 2] = ["runc", "crun"];
pub(super) const BUNDLE: &str = "/run/bundle";

impl Host {
    fn hook(&self, state: &Value) -> Call<'_> {
        self.cnibox(&["oci-hook"]).stdin(state.to_string())
    }

    /// A bundle with busybox that serves a page, and the hooks of these tests.
    fn bundle(&self, annotations: &Value) {
        let hook = json!({
            "path": "/run/bin/cnibox", "args": ["cnibox", "oci-hook"],
            "env": [format!("NETCONFPATH={}", super::CONFIGURATIONS), "CNI_PATH=/run/own:/run/plugins"],
        });
        self.bundle_with(&json!({"hooks": {"createRuntime": [hook], "poststop": [hook]}, "annotations": annotations}));
    }

    /// The same with other lines in its config.json.
    pub(super) fn bundle_with(&self, lines: &Value) {
        let script = format!(
            "mkdir -p {BUNDLE}/rootfs/bin {BUNDLE}/rootfs/www {BUNDLE}/rootfs/proc {BUNDLE}/rootfs/dev; cp /bin/busybox {BUNDLE}/rootfs/bin; \
             echo a page > {BUNDLE}/rootfs/www/index.html; \
             [ ! -d /sys/fs/cgroup/unified ] || mount --bind /sys/fs/cgroup/unified /sys/fs/cgroup"
        );
        self.world.host(["sh", "-c", &script]);
        let namespaces =
            ["network", "mount", "pid", "ipc", "uts"].map(|kind| json!({"type": kind}));
        let capabilities = json!(["CAP_NET_BIND_SERVICE"]);
        let capabilities =
            json!({"bounding": capabilities, "effective": capabilities, "permitted": capabilities});
        let config = json!({
            "ociVersion": "1.0.2", "root": {"path": "rootfs"},
            "process": {
                "cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"], "capabilities": capabilities,
                "args": ["/bin/busybox", "httpd", "-f", "-p", "80", "-h", "/www"],
            },
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {"namespaces": namespaces},
        });
        self.world
            .write(&format!("{BUNDLE}/config.json"), with(&config, lines.clone()).to_string());
    }

    /// An OCI runtime with these arguments. Nothing here may manage cgroups.
    fn oci(&self, runtime: &str, args: &[&str]) -> Call<'_> {
        let own = if runtime == "crun" { &["--cgroup-manager=disabled"][..] } else { &[] };
        let words = [&[runtime, "--root", "/run/oci"], own, args].concat();
        self.world.tool(&words, None)
    }

    fn serves(&self) -> bool {
        let fetch = self.world.tool(&["socat", "-T20", "-", "TCP:10.9.9.9:8080"], None);
        fetch.stdin("GET / HTTP/1.0\r\n\r\n").run().stdout.ends_with("\r\n\r\na page\n")
    }
}

/// A container that a failing test leaves ends, too: the world has no process namespace.
struct Killed<'a>(&'a Host, &'a str);

impl Drop for Killed<'_> {
    fn drop(&mut self) {
        self.0.oci(self.1, &["delete", "--force", "web"]).run();
    }
}

/// A host that has an address, and the state of it after a first attachment.
fn host() -> (Host, State) {
    let host = Host::new();
    host.configure("1.conflist", &network());
    host.world.host(["ip", "addr", "add", "10.9.9.9/32", "dev", "lo"]);
    host.cnibox(&["run", "-n", "net", "-p", "8080:80", "--", "true"]).run().output();
    let before = host.state();
    (host, before)
}

fn annotations() -> Value {
    json!({
        "cnibox.networks": "net, net:up1", "cnibox.ports": "8080:80,8081:81/udp", "cnibox.ip": "10.1.0.77",
        "cnibox.mac": "02:00:00:00:00:77",
    })
}

#[test]
fn a_container_is_attached_when_created_and_detached_when_stopped() {
    let (host, before) = host();
    let container = host.world.container("c1");
    let holder = host.world.tool(&["cat"], Some("/run/netns/c1")).keeping_stdin_open().start();
    for status in ["creating", "created"] {
        let state = json!({
            "ociVersion": "1.0.2", "id": "c1", "status": status, "pid": holder.pid_in_world(), "bundle": "/",
            "annotations": annotations(),
        });
        host.hook(&state).run().silence();
        let rows = host.cnibox(&["attachments", "--check"]).run().output();
        let rows: Vec<&str> = rows.lines().skip(1).collect();
        assert!(
            rows[0].contains("8080->80/tcp,8081->81/udp") && rows[0].contains("10.1.0.77"),
            "{rows:?}"
        );
        assert!(rows[1].contains(" up1 ") && !rows[1].contains("8080"), "{rows:?}");
        let link = container.exec(["ip", "-o", "link", "show", "eth0"]);
        assert!(link.contains("02:00:00:00:00:77"), "{link}");
        // The networks of the host are gone, and the process is.
        host.world.host(["mv", super::CONFIGURATIONS, "/run/away"]);
        let stopped = json!({"ociVersion": "1.0.2", "id": "c1", "status": "stopped", "pid": 0});
        host.hook(&stopped).run().silence();
        host.hook(&stopped).run().silence();
        host.world.host(["mv", "/run/away", super::CONFIGURATIONS]);
        assert_eq!(host.kept(), [""; 0], "{status}");
        before.assert_same(&host.state(), status);
    }
}

#[test]
fn a_state_that_cannot_be_handled_is_refused() {
    let (host, before) = host();
    let holder = host.world.tool(&["cat"], None).keeping_stdin_open().start();
    let good = json!({"id": "c1", "status": "created", "pid": holder.pid_in_world(), "annotations": annotations()});
    for (change, text) in [
        (json!({"status": "running"}), "cannot handle status \"running\""),
        (json!({"id": ""}), "container"),
        (json!({"pid": "1"}), "pid: invalid type"),
        (json!({"pid": 0}), "no pid"),
        // Otherwise the name of a namespace.
        (json!({"pid": 1.5}), "pid: invalid type"),
        (
            json!({"annotations": {"cnibox.networks": "net", "cnibox.ip": "10.1.0.7/24;GATEWAY=10.1.0.9"}}),
            "no IP address",
        ),
        (
            json!({"annotations": {"cnibox.networks": 1}}),
            "cnibox.networks: invalid type: integer `1`",
        ),
        (json!({"annotations": {"cnibox.networks": "other"}}), "other"),
        (json!({"annotations": {"cnibox.networks": ""}}), "needs a network"),
        (json!({}), "it is the namespace of the host"),
    ] {
        let outcome = host.hook(&with(&good, change)).run();
        assert!(outcome.status > 0 && outcome.stderr.contains(text), "{}", outcome.report());
    }
    let outcome = host.cnibox(&["oci-hook"]).stdin("{").run();
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    // Without the annotation there is nothing to do.
    host.hook(&json!({"id": "c1", "status": "created", "pid": holder.pid_in_world()}))
        .run()
        .silence();
    assert_eq!(host.kept(), [""; 0]);
    before.assert_same(&host.state(), "after refused states");
}

/// An image or a pod brings its annotations along. A configuration of its own would choose programs and files of the host.
#[test]
fn an_annotation_cannot_name_a_file() {
    let (host, before) = host();
    let container = host.world.container("c1");
    let holder = host.world.tool(&["cat"], Some(&container.netns())).keeping_stdin_open().start();
    host.world.write("/run/own/evil", "#!/bin/sh\n/bin/touch /run/evil/was-here\n");
    host.world.host(["chmod", "755", "/run/own/evil"]);
    let ipam = json!({"type": "host-local", "dataDir": "/run/evil/data", "subnet": "10.7.0.0/24"});
    let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"type": "bridge", "ipam": ipam}, {"type": "evil"}, {"type": "../evil/evil"},
    ]});
    host.world.write("/run/evil/evil.conflist", list.to_string());
    for name in [
        "/run/evil/evil.conflist",
        "/run/evil/evil.conflist:eth5",
        "net,../../../run/evil/evil.conflist",
        "./net",
        "net/",
    ] {
        let state = json!({"id": "c1", "status": "created", "pid": holder.pid_in_world(),
            "annotations": {"cnibox.networks": name}});
        let outcome = host.hook(&state).run();
        let said = "an annotation cannot name a file";
        assert!(outcome.status == 1 && outcome.stderr.contains(said), "{}", outcome.report());
        assert_eq!(host.kept(), [""; 0], "{name}");
        assert_eq!(host.world.host(["ls", "/run/evil"]), "evil.conflist\n", "{name}");
    }
    before.assert_same(&host.state(), "after annotations with paths");
}

#[test]
fn runc_and_crun_start_kill_and_restart_a_container_that_serves_a_page() {
    for runtime in RUNTIMES {
        let (host, before) = host();
        let _killed = Killed(&host, runtime);
        host.bundle(&json!({"cnibox.networks": "net", "cnibox.ports": "8080:80"}));
        for _ in 0..2 {
            let args = ["run", "--detach", "--bundle", BUNDLE, "web"];
            let script = "exec \"$@\" </dev/null >/run/said 2>&1";
            let detached = host.oci(runtime, &args).under(&["sh", "-c", script, "sh"]).run();
            assert_eq!(detached.status, 0, "{runtime}: {}", host.world.read("/run/said"));
            host.world.eventually("the container serves", || host.serves());
            host.world.host(["mv", super::CONFIGURATIONS, "/run/away"]);
            host.oci(runtime, &["kill", "web", "KILL"]).run().output();
            host.world.eventually("the container is gone", || {
                host.oci(runtime, &["delete", "--force", "web"]).run().status == 0
                    && host.kept().is_empty()
            });
            host.world.host(["mv", "/run/away", super::CONFIGURATIONS]);
            assert_eq!(host.kept(), [""; 0], "{runtime}");
            before.assert_same(&host.state(), runtime);
        }
    }
}

#[test]
fn a_hook_that_fails_fails_the_start_of_the_container() {
    for runtime in RUNTIMES {
        let (host, before) = host();
        let _killed = Killed(&host, runtime);
        // crun drops the stderr of a hook, unless an annotation names a file for it.
        let annotations =
            json!({"cnibox.networks": "net,missing", "run.oci.hooks.stderr": "/run/said"});
        host.world.write("/run/said", "");
        host.bundle(&annotations);
        let outcome = host.oci(runtime, &["run", "--bundle", BUNDLE, "web"]).run();
        assert!(outcome.status != 0, "{}", outcome.report());
        let text = "no net configuration with name \"missing\"";
        let said = outcome.stderr.replace('\\', "") + &host.world.read("/run/said");
        assert!(said.contains(text), "{said}: {}", outcome.report());
        assert_eq!(host.kept(), [""; 0], "{runtime}");
        before.assert_same(&host.state(), runtime);
    }
}
