//! The table of keys is complete: it is compared with the sources.

use std::collections::BTreeSet;

use super::subjects;
use crate::config_keys;
use crate::world::plugin_names;

/// Keys that no case toggles: the plugin, the key, and the reason.
const EXCLUDED: [(&str, &str, &str); 27] = [
    ("network", "cniVersion", "the language of one call, no part of what is made"),
    ("network", "name", "the owner of all that is made: another name is another network"),
    ("network", "type", "says which plugin is called, or which delegate"),
    ("network", "ipam", "its type says who has the state; its keys are those of the IPAM plugins"),
    ("network", "routes", "in ipam, whose keys are those of the IPAM plugins"),
    ("network", "prevResult", "the argument of a chained plugin, toggled there"),
    ("network", "cni.dev/valid-attachments", "the argument of GC"),
    ("network", "cni.dev/attachments", "the argument of GC"),
    ("network", "containerID", "in the argument of GC"),
    ("network", "ifname", "in the argument of GC"),
    ("bridge", "id", "in an entry of vlanTrunk"),
    ("bridge", "minID", "in an entry of vlanTrunk"),
    ("bridge", "maxID", "in an entry of vlanTrunk"),
    ("host-device", "pciBusID", "needs a real card: see tests/vm/host-device.sh"),
    ("host-device", "runtimeConfig", "needs a real card: see tests/vm/host-device.sh"),
    ("host-device", "deviceID", "needs a real card: see tests/vm/host-device.sh"),
    ("host-local", "dataDir", "says where state lies"),
    ("tuning", "dataDir", "says where state lies"),
    ("dhcp", "daemonSocketPath", "says where the daemon listens"),
    ("dhcp", "option", "in the entries of provide and request"),
    ("dhcp", "value", "in the entries of provide"),
    ("dhcp", "skipDefault", "in the entries of request"),
    ("flannel", "dataDir", "says where state lies"),
    ("flannel", "subnetFile", "says where the daemon's file lies"),
    ("flannel", "routes", "in ipam, which is toggled as a whole"),
    ("tap", "selinuxContext", "needs a host with SELinux"),
    ("firewall", "firewalldZone", "toggled beside a running firewalld: see firewall/firewalld.rs"),
];

/// The keys of a plugin that the table names: all parts of the paths of its cases.
fn toggled(keys_of: &str) -> BTreeSet<String> {
    let subjects = subjects();
    let cases = subjects
        .iter()
        .filter(|subject| subject.keys_of == keys_of)
        .flat_map(|subject| &subject.cases);
    cases
        .flat_map(|case| {
            let below = case.value.as_object().into_iter().flat_map(|value| value.keys().cloned());
            case.key.split('/').map(str::to_owned).chain(below).collect::<Vec<_>>()
        })
        .collect()
}

fn excluded(keys_of: &str) -> BTreeSet<String> {
    let of_plugin = EXCLUDED.iter().filter(|(plugin, ..)| *plugin == keys_of);
    of_plugin.map(|(_, key, _)| (*key).to_owned()).collect()
}

#[test]
fn every_key_in_the_sources_is_toggled_or_excluded() {
    let mut problems = Vec::new();
    for plugin in plugin_names().into_iter().chain([config_keys::NETWORK.to_owned()]) {
        let (found, excluded) = (config_keys::names(&plugin), excluded(&plugin));
        if !subjects().iter().any(|subject| subject.keys_of == plugin) {
            problems.push(format!("{plugin} is not in the table"));
        }
        let toggled = toggled(&plugin);
        for key in found.iter().filter(|key| !toggled.contains(*key) && !excluded.contains(*key)) {
            problems.push(format!("{plugin}: no case toggles {key}"));
        }
        for key in excluded.difference(&found) {
            problems.push(format!("{plugin}: {key} is excluded, but not in the sources"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
