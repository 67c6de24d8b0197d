//! A host with the network `net`, of both families, and containers in it.

use serde_json::{Value, json};

use crate::world::{Call, Container, Outcome, World, parse, with};

pub const DATA: &str = "/var/lib/cni/networks";
const CONFIGURATIONS: &str = "/run/net.d";

pub struct Host {
    pub world: World,
}

impl Host {
    pub fn new() -> Self {
        let world = World::new();
        world.host(["mkdir", "-p", CONFIGURATIONS]);
        let host = Self { world };
        host.configure("net", &ranges(), json!({}));
        host
    }

    /// Writes a network with a bridge. `more` are further keys of `ipam`.
    pub fn configure(&self, name: &str, ranges: &Value, more: Value) {
        let ipam = with(&json!({"type": "host-local", "ranges": ranges}), more);
        self.write_network(name, &json!({"type": "bridge", "bridge": "cni0", "ipam": ipam}));
    }

    pub fn write_network(&self, name: &str, plugin: &Value) {
        let network = json!({"cniVersion": "1.1.0", "name": name, "plugins": [plugin]});
        self.world.write(&format!("{CONFIGURATIONS}/10-{name}.conflist"), network.to_string());
    }

    pub fn cnibox(&self, args: &[&str]) -> Call<'_> {
        super::super::cnibox(&self.world, args)
            .env("NETCONFPATH", CONFIGURATIONS)
            .env("CNI_PATH", "/run/plugins")
    }

    pub fn ipam(&self, args: &[&str]) -> Outcome {
        self.cnibox(&[&["ipam"], args].concat()).run()
    }

    /// `cnibox ipam` beside processes of `script`, which starts it as `"$@"`. They end with the script.
    pub fn ipam_beside(&self, script: &str, args: &[&str]) -> Outcome {
        let script = format!("{script}\ncode=$?; kill $(jobs -p) 2>/dev/null; wait; exit $code");
        let words = ["bash", "-c", &script, "bash"];
        let words = [&words[..], &["/run/bin/cnibox", "ipam"], args].concat();
        self.world.tool(&words, None).env("NETCONFPATH", CONFIGURATIONS).run()
    }

    /// A container with the interface eth0 in `net`, attached by `cnibox add` for the pod default/page.
    pub fn attached(&self, name: &str) -> Container<'_> {
        let container = self.world.container(name);
        self.add(name);
        container
    }

    /// Ends the namespace of a container without a DEL. The kernel removes the host's end of the pair later.
    pub fn destroy(&self, container: &Container<'_>) {
        let count = self.world.ports_of("cni0").len();
        container.destroy();
        let is_gone = || self.world.ports_of("cni0").len() < count;
        self.world.eventually("the host's end is gone", is_gone);
    }

    /// An attachment of `net` without a namespace.
    pub fn dead(&self, name: &str) {
        self.destroy(&self.attached(name));
    }

    /// The result of `cnibox add`.
    pub fn add(&self, name: &str) -> String {
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=page";
        let call = self.cnibox(&["add", "net", name, "--container-id", name]).env("CNI_ARGS", args);
        call.run().output()
    }

    /// A call of a plugin's executable, without any cache.
    pub fn plugin_call(&self, executable: &str, verb: &str, id: &str) -> Call<'_> {
        let config = json!({
            "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "cni0",
            "ipam": {"type": "host-local", "ranges": ranges()},
        });
        let call = self.world.tool(&[executable], None).env("CNI_COMMAND", verb).config(&config);
        let call = call
            .env("CNI_CONTAINERID", id)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", "/run/plugins");
        call.env("CNI_NETNS", &format!("/run/netns/{id}"))
    }

    /// GC without a valid attachment.
    pub fn gc_of_plugin(&self) {
        let config = json!({
            "cniVersion": "1.1.0", "name": "net", "type": "host-local",
            "ipam": {"type": "host-local"}, "cni.dev/valid-attachments": [],
        });
        self.world.call("host-local", "GC", &config).run().silence();
    }

    /// The file of an address in `net`.
    pub fn reserve_file(&self, address: &str, content: &str) {
        self.world.write(&format!("{DATA}/net/{address}"), content);
    }

    /// Makes the file of an address in `net` older.
    pub fn set_time(&self, address: &str, time: &str) {
        self.world.host(["touch", "-d", time, &format!("{DATA}/net/{address}")]);
    }

    pub fn list(&self) -> Value {
        parse(&self.ipam(&["list", "--json"]).output())
    }

    /// The entry of an address in `net`, or null.
    pub fn find(&self, address: &str) -> Value {
        find(&self.list(), address)
    }

    pub fn state_of(&self, address: &str) -> String {
        self.find(address)["state"].as_str().unwrap_or_default().to_owned()
    }

    /// The names of the files of `net` that are addresses.
    pub fn addresses(&self) -> Vec<String> {
        let listed = self.world.host(["ls", &format!("{DATA}/net")]);
        let names = listed.lines().filter(|name| name.contains(['.', ':']) && !name.contains('_'));
        names.map(str::to_owned).collect()
    }
}

/// The entry of an address in a document of `list --json`, or null.
pub fn find(document: &Value, address: &str) -> Value {
    let networks = document["networks"].as_array().unwrap().iter();
    let mut all = networks.flat_map(|network| network["reservations"].as_array().unwrap());
    all.find(|entry| entry["address"] == address).cloned().unwrap_or_default()
}

fn ranges() -> Value {
    json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]])
}
