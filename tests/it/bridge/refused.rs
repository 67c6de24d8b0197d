//! Keys that come with a later release are refused, never ignored: a container without its VLAN would be
//! worse than none.

use serde_json::json;

use super::dbnet_with;
use crate::world::World;

#[test]
fn what_is_not_there_yet_is_refused() {
    let world = World::new();
    let c1 = world.container("c1");
    let before = world.state_with(&[&c1]);
    let cases = [
        ("vlan", json!({"vlan": 100})),
        ("vlanTrunk", json!({"vlanTrunk": [{"id": 100}]})),
        ("vlanTrunk", json!({"vlanTrunk": [{"minID": 100, "maxID": 200}]})),
        ("preserveDefaultVlan", json!({"preserveDefaultVlan": true})),
    ];
    for (key, keys) in cases {
        c1.call("bridge", "ADD", &dbnet_with(keys)).run().fails(7, &[key]);
    }
    before.assert_same(&world.state_with(&[&c1]), "after refused calls");
}

#[test]
fn what_asks_for_nothing_is_fine() {
    let cases = [
        json!({"ipMasq": false, "macspoofchk": false, "preserveDefaultVlan": false, "vlan": 0}),
        json!({"ipMasq": null, "macspoofchk": null, "preserveDefaultVlan": null, "vlan": null, "vlanTrunk": null}),
        json!({"ipMasqBackend": "nftables"}),
        json!({"ipMasqBackend": "iptables", "ipMasq": false}),
        json!({"someKeyOfTheFuture": true, "mac": "02:00:00:00:00:01", "activeInterface": true}),
    ];
    let world = World::new();
    for (number, keys) in cases.into_iter().enumerate() {
        let container = world.container(&format!("c{number}"));
        container.add("bridge", &dbnet_with(keys.clone()));
        container.del("bridge", &dbnet_with(keys));
    }
}
