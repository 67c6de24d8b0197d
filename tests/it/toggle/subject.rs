//! A plugin with the configuration and the surroundings that it needs, and the keys that are toggled.

use serde_json::{Value, json};

use crate::world::{Container, World, is_for_options, kernel_has, runs_with, with};

/// The network of containers that a chained plugin follows, and that the neighbour is on.
pub const BRIDGE: &str = "cni0";

/// The addresses of the neighbour on the bridge.
pub const NEIGHBOUR: [&str; 2] = ["10.1.0.200", "fd00:1::c8"];

/// A plugin in its surroundings. Each one has a line in the tables of `first` or `chained`.
#[derive(Clone)]
pub struct Subject {
    /// The sources with these keys: a plugin, or `network`.
    pub keys_of: &'static str,
    pub plugin: &'static str,
    /// The configuration that needs none of the keys.
    pub base: Value,
    pub place: Place,
    /// The option of the kernel without which there are no such links; "" where each kernel has them.
    pub option: &'static str,
    /// Commands of the host's shell, before anything else.
    pub host: &'static str,
    /// Commands of the container's shell, in each new namespace.
    pub in_container: &'static str,
    /// Addresses that answer as soon as there is an interface; none where there is no connectivity.
    pub targets: &'static [&'static str],
    /// Commands of the host's shell that move a card to the host, as the kernel does when its namespace ends.
    pub before_gc: &'static str,
    /// Commands that print what a state of the world does not tell, on the host and in the container.
    pub look: [&'static str; 2],
    pub cases: Vec<Case>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It makes the interface.
    First,
    /// It follows a bridge.
    Chained,
    /// It follows a bridge, and part of what it did ends with the interface only.
    ChainedUntilTheEnd,
    /// It is an IPAM plugin, called directly.
    Ipam,
    /// It needs a server of another program: tests/it/dhcp shows its keys.
    Dhcp,
}

/// One key, as a JSON pointer into the configuration.
#[derive(Clone)]
pub struct Case {
    pub key: &'static str,
    pub value: Value,
    /// The other keys of the configuration, with the key and without.
    pub needs: Value,
    pub kind: Kind,
    /// The option of the kernel that the key needs, or "".
    pub option: &'static str,
    /// The interface has addresses, and its link leads to a host that answers.
    pub has_traffic: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Optional,
    /// Without the key no ADD is possible; a DEL is.
    Required,
}

impl Subject {
    pub fn new(plugin: &'static str, base: Value, cases: Vec<Case>) -> Self {
        Self {
            keys_of: plugin,
            plugin,
            base,
            place: Place::First,
            option: "",
            host: "",
            in_container: "",
            targets: &[],
            before_gc: "",
            look: ["", ""],
            cases,
        }
    }

    pub fn chained(plugin: &'static str, base: Value, cases: Vec<Case>) -> Self {
        let subject = Self::new(plugin, base, cases);
        Self { place: Place::Chained, targets: &NEIGHBOUR, ..subject }
    }

    /// Whether the tests of all plugins can call it here.
    pub fn is_runnable(&self) -> bool {
        let is_wanted = !is_for_options() || !self.option.is_empty();
        self.place != Place::Dhcp && is_wanted && runs_with(self.option)
    }

    pub fn is_chained(&self) -> bool {
        matches!(self.place, Place::Chained | Place::ChainedUntilTheEnd)
    }

    /// A host with all that the subject needs, among that the neighbour on the bridge.
    pub fn world(&self) -> World {
        let world = self.lonely_world();
        if self.targets == NEIGHBOUR {
            let neighbour = world.container("neighbour");
            neighbour.add("bridge", &neighbours_network());
        }
        world
    }

    /// The same without the neighbour and its bridge.
    pub fn lonely_world(&self) -> World {
        let world = World::new();
        world.host(["sh", "-ec", self.host]);
        world
    }

    /// The container; with its interface, if that is not what the subject makes.
    pub fn container<'w>(&self, world: &'w World) -> Container<'w> {
        let container = world.container("c1");
        // The kernel keeps 127.0.0.1 from the first time that `lo` is up.
        container.exec(["sh", "-ec", "ip link set lo up; ip link set lo down"]);
        container.exec(["sh", "-ec", self.in_container]);
        container
    }

    fn named(&self, keys: &Value) -> Value {
        let names = json!({"cniVersion": "1.1.0", "name": "net", "type": self.plugin});
        with(&with(&self.base, keys.clone()), names)
    }

    pub fn config_with(&self, case: &Case) -> Value {
        let mut config = self.named(&case.needs);
        set(&mut config, case.key, case.value.clone());
        config
    }

    pub fn config_without(&self, case: &Case) -> Value {
        let mut config = self.named(&case.needs);
        remove(&mut config, case.key);
        config
    }

    /// The plain network of the bridge before a chained plugin, always with the same addresses.
    pub fn network() -> Value {
        let ips = [("10.1.0.2/24", "10.1.0.1"), ("fd00:1::2/64", "fd00:1::1")];
        let ips = ips.map(|(address, gateway)| json!({"address": address, "gateway": gateway}));
        json!({
            "cniVersion": "1.1.0", "name": "net", "type": "bridge", "isDefaultGateway": true,
            "ipam": {"type": "static", "addresses": ips},
        })
    }
}

impl Case {
    /// More that is in the configuration; `null` takes a key out of it.
    pub fn with(self, needs: Value) -> Self {
        Self { needs, ..self }
    }

    pub fn required(self) -> Self {
        Self { kind: Kind::Required, ..self }
    }

    pub fn without_traffic(self) -> Self {
        Self { has_traffic: false, ..self }
    }

    pub fn of(self, option: &'static str) -> Self {
        Self { option, ..self }
    }

    /// Whether the subject's kernel has what the key needs.
    pub fn is_runnable(&self, subject: &Subject) -> bool {
        let is_wanted = !is_for_options() || !self.option.is_empty() || !subject.option.is_empty();
        is_wanted && runs_with(self.option)
    }
}

pub fn case(key: &'static str, value: impl Into<Value>) -> Case {
    let value = value.into();
    Case { key, value, needs: json!({}), kind: Kind::Optional, option: "", has_traffic: true }
}

pub fn dual_stack() -> Value {
    json!({
        "type": "host-local",
        "ranges": [[{"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.9"}], [{"subnet": "fd00:1::/64"}]],
    })
}

/// Its bridge filters VLANs where the kernel can.
fn neighbours_network() -> Value {
    let addresses = ["10.1.0.200/24", "fd00:1::c8/64"].map(|address| json!({"address": address}));
    let config = json!({
        "cniVersion": "1.1.0", "name": "other", "type": "bridge",
        "ipam": {"type": "static", "addresses": addresses},
    });
    let filters = if kernel_has(VLANS) { json!({"vlanTrunk": []}) } else { json!({}) };
    with(&config, filters)
}

/// The option that VLANs of a bridge need.
pub const VLANS: &str = "CONFIG_BRIDGE_VLAN_FILTERING";

/// Puts a value where a JSON pointer leads to; objects on the way are made.
pub fn set(config: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    if config.pointer(parent).is_none_or(|found| !found.is_object() && !found.is_array()) {
        set(config, parent, json!({}));
    }
    match config.pointer_mut(parent).unwrap() {
        Value::Array(items) => items[key.parse::<usize>().unwrap()] = value,
        parent => drop(parent.as_object_mut().unwrap().insert(key.into(), value)),
    }
}

pub fn remove(config: &mut Value, pointer: &str) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    if let Some(Value::Object(parent)) = config.pointer_mut(parent) {
        parent.remove(key);
    }
}
