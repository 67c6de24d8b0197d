//! With the Go plugin: the same results, and the DEL of each returns the card that the ADD of the other took.

use serde_json::{Value, json};

use super::{card, config, plain, world};
use crate::parity::reference;
use crate::world::{Container, with};

fn call<'w>(c: &Container<'w>, who: &str, verb: &str, config: &Value) -> crate::world::Call<'w> {
    let call = c.call("host-device", verb, config);
    if who == "theirs" { call.of_directory(&reference()) } else { call }
}

fn old(config: &Value) -> Value {
    with(config, json!({"cniVersion": "1.0.0"}))
}

#[test]
fn both_return_the_same() {
    for config in [old(&config()), old(&plain())] {
        let results = ["ours", "theirs"].map(|who| {
            let world = world();
            let c1 = world.container("c1");
            let result = call(&c1, who, "ADD", &config).run().success();
            let link = &c1.json(["ip", "-j", "link", "show", "eth0"])[0];
            assert_eq!(link["ifalias"], "nic0", "{who}");
            // Empty, where the reference has it.
            crate::world::without(&result, "dns")
        });
        assert_eq!(results[0], results[1]);
    }
}

#[test]
fn each_returns_the_card_that_the_other_took() {
    for (adding, deleting) in [("ours", "theirs"), ("theirs", "ours"), ("ours", "ours")] {
        let world = world();
        let c1 = world.container("c1");
        world.host(["ip", "link", "set", "nic0", "down"]);
        let config = old(&config());
        let before = card(&world, "nic0");
        let result = call(&c1, adding, "ADD", &config).run().success();
        let checked = with(&config, json!({"prevResult": result}));
        call(&c1, "ours", "CHECK", &checked).run().silence();
        call(&c1, deleting, "DEL", &checked).run().silence();
        let after = card(&world, "nic0");
        if deleting == "theirs" {
            assert!(after.starts_with(r#""nic0" mac="02:00:00:00:07:01" mtu=1400"#), "{after}");
        } else {
            assert_eq!(after, before, "{adding}, then {deleting}");
        }
        // Leftovers of the other plugin do not matter.
        call(&c1, "ours", "ADD", &config).run().success();
        call(&c1, "ours", "DEL", &config).run().silence();
        assert_eq!(card(&world, "nic0"), before, "{adding}, then {deleting}, then ours");
    }
}
