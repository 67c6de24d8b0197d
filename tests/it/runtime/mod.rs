//! The runtime: `cnibox add`, `check`, `del`, `gc` and `status`, and what plugins see of it.

mod arguments;
mod attachments;
mod beside_gc;
mod cached;
mod configurations;
mod confirmed;
mod control_characters;
mod covered;
mod evidence;
mod failed_reads;
mod faults;
mod gc_by_owner;
mod gc_of_ended;
mod injected;
mod inputs;
mod killed;
mod lifecycle;
mod limits;
mod liveness;
mod locks;
mod makers;
mod named_namespaces;
mod names;
mod names_by_dns;
mod namespaces_of_podman;
mod netavark;
mod networks;
mod not_regular;
mod oci_hook;
mod packaged;
mod podman_words;
mod reattached;
mod recipes;
mod reconciled;
mod recorded;
mod reused_numbers;
mod run;
mod signals;
mod specification;
mod taken_over;
mod troubleshooting;
mod unreadable;
mod versions;
mod watched;

use std::fs;

use serde_json::{Value, json};

use crate::world::{Call, State, VERSIONS, World};

/// Where the configurations of these tests are, and the plugins that are not ours.
const CONFIGURATIONS: &str = "/run/net.d";
const OWN: &str = "/run/own";
const NOTES: &str = "/run/notes";
/// A shell starts background processes with SIGINT ignored, nohup those with SIGHUP ignored, and cnibox keeps that.
const NOT_IGNORED: [&str; 2] = ["env", "--default-signal"];

/// A host with configurations and recording plugins.
struct Host {
    world: World,
}

/// One call that a recording plugin got.
#[derive(Debug)]
struct Seen {
    plugin: String,
    command: String,
    /// The variables of the environment with the prefix CNI_, and those of the test.
    env: Vec<String>,
    /// The configuration, byte for byte.
    stdin: String,
}

impl Seen {
    fn config(&self) -> Value {
        serde_json::from_str(&self.stdin).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// `PLUGIN COMMAND`.
    fn title(&self) -> String {
        format!("{} {}", self.plugin, self.command)
    }

    fn variable(&self, name: &str) -> Option<&str> {
        self.env.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }
}

impl Host {
    fn new() -> Self {
        let world = World::new();
        world.host(["mkdir", "-p", CONFIGURATIONS, OWN, NOTES]);
        Self { world }
    }

    /// Writes a configuration.
    fn configure(&self, file: &str, config: &Value) {
        self.world.write(&format!("{CONFIGURATIONS}/{file}"), config.to_string());
    }

    /// A plugin that notes each call but VERSION, and then does `body`. It speaks every version.
    fn recorder(&self, name: &str, body: &str) {
        let all = VERSIONS.map(|version| format!("\"{version}\"")).join(",");
        let answer = format!(r#"{{"cniVersion":"1.1.0","supportedVersions":[{all}]}}"#);
        self.recorder_speaking(name, &format!("echo '{answer}'"), body);
    }

    /// The same with another answer to VERSION.
    fn recorder_speaking(&self, name: &str, version: &str, body: &str) {
        let script = format!(
            "#!/bin/sh\nset -e\nif [ $CNI_COMMAND = VERSION ]; then echo >> {NOTES}/versions; {version}; exit; fi\n\
             number=$(ls {NOTES} | grep -c stdin || true); number=$(printf %03d $number)\n\
             env | grep -E '^(CNI_|TEST_)' | sort > {NOTES}/$number.env\n\
             echo {name} > {NOTES}/$number.name\ncat > {NOTES}/$number.stdin\n{body}\n"
        );
        let path = format!("{OWN}/{name}");
        // Another process writes it: see `Scratch::copy`.
        self.world.tool(&["tee", &path], None).stdin(script).run().output();
        self.world.host(["chmod", "755", &path]);
    }

    /// `cnibox` with these arguments, and the recording plugins before ours.
    fn cnibox(&self, args: &[&str]) -> Call<'_> {
        let words = [&["/run/bin/cnibox"], args].concat();
        self.world
            .tool(&words, None)
            .env("NETCONFPATH", CONFIGURATIONS)
            .env("CNI_PATH", &format!("{OWN}:/run/plugins"))
    }

    /// All that the recording plugins have seen since the last time, in order.
    fn seen(&self) -> Vec<Seen> {
        let mut seen = Vec::new();
        let read = |number: usize, kind: &str| {
            let path = self.world.path(format!("{NOTES}/{number:03}.{kind}"));
            fs::read_to_string(path).ok()
        };
        while let Some(stdin) = read(seen.len(), "stdin") {
            let number = seen.len();
            let env: Vec<String> =
                read(number, "env").unwrap().lines().map(str::to_owned).collect();
            let command = env.iter().find_map(|line| line.strip_prefix("CNI_COMMAND="));
            let command = command.unwrap().to_owned();
            let plugin = read(number, "name").unwrap().trim().to_owned();
            seen.push(Seen { plugin, command, env, stdin });
        }
        self.world.host(["sh", "-c", "rm -f /run/notes/*"]);
        seen
    }

    fn titles(&self) -> Vec<String> {
        self.seen().iter().map(Seen::title).collect()
    }

    /// The state of the runtime: cache entries, pending records, namespaces, locks of containers.
    fn kept(&self) -> Vec<String> {
        let find = "find /run/cnibox /var/lib/cni '(' -type f -o -type l ')' ! -path '*/networks/*' ! -name 'network-*' 2>/dev/null | sort";
        let files = self.world.tool(&["sh", "-c", find], None).run().stdout;
        files.lines().map(str::to_owned).collect()
    }

    /// Whether a record is of an ADD or DEL of the runtime that is not complete.
    fn has_interrupted(&self) -> bool {
        let all = "cd /var/lib/cni/attachments && for file in [!@]*; do test ! -f \"$file\" || tr '\\n' ' ' <\"$file\"; echo; done";
        let records = self.world.tool(&["sh", "-c", all], None).run().stdout;
        let is_interrupted = |record: &str| {
            let has = |note: &str| record.contains(note);
            has(r#"{"kind":"#) && (has(r#""added":false"#) || !has(r#""added":true"#))
        };
        records.lines().any(is_interrupted)
    }

    /// Removes the requests of the runtime from all records, as if only plugins had been called.
    fn forget_requests(&self) {
        let all = "sed -i '/^{\"kind\":/d' /var/lib/cni/attachments/[!@]*";
        self.world.host(["sh", "-c", all]);
    }

    /// Calls gc until nothing is kept: the kernel ends a namespace a moment after the last process that used it.
    #[track_caller]
    fn gc_until_nothing_is_kept(&self) {
        self.world.eventually("gc leaves nothing", || {
            self.cnibox(&["gc"]).run().output();
            self.kept().is_empty()
        });
    }

    /// The record of an attachment, `eth0`.
    fn record_of(&self, network: &str, id: &str) -> String {
        format!("/var/lib/cni/attachments/{network}+{id}+eth0")
    }

    /// The world without what survives a DEL in the network `net` with the bridge cni0.
    fn state(&self) -> State {
        self.world.state().apart_from("cni0", "net")
    }

    /// Writes the cache entry of an attachment of `eth0` to the network `net`, as libcni does after the ADD of a list.
    fn remember(&self, id: &str, netns: &str, list: &Value, result: &Value) {
        let text = self.world.tool(&["base64", "-w0"], None).stdin(list.to_string());
        let entry = json!({
            "kind": "cniCacheV1", "containerId": id, "config": text.run().output(), "ifName": "eth0",
            "networkName": "net", "netns": netns, "result": result,
        });
        self.world.host(["mkdir", "-p", "-m", "700", "/var/lib/cni/results"]);
        self.world.write(&format!("/var/lib/cni/results/net-{id}-eth0"), entry.to_string());
    }

    fn cached(&self, name: &str) -> Value {
        let text = self.world.read(&format!("/var/lib/cni/results/{name}"));
        serde_json::from_str(&text).unwrap()
    }
}

/// The body of a plugin that prints this in ADD.
fn printing(result: &Value) -> String {
    format!("if [ $CNI_COMMAND = ADD ]; then cat <<'END'\n{result}\nEND\nfi")
}

/// A list of plugins of these types.
fn list(version: &str, kinds: &[&str]) -> Value {
    let plugins: Vec<Value> = kinds.iter().map(|kind| json!({"type": kind})).collect();
    json!({"cniVersion": version, "name": "net", "plugins": plugins})
}

/// A network of our own plugins with everything that a DEL can forget.
fn network() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall"},
            {"type": "tuning", "capabilities": {"mac": true}, "sysctl": {"net.core.somaxconn": "500"}},
        ],
    })
}
