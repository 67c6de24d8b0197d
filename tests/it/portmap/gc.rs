//! GC removes stale elements. STATUS tells whether ADD can work.

use serde_json::{Value, json};

use super::{elements, portmap, publish, tcp, udp};
use crate::world::{World, with};

fn gc(valid: Value) -> Value {
    with(&portmap(json!(null)), json!({"cni.dev/valid-attachments": valid}))
}

fn owners(world: &World) -> Vec<String> {
    let lines = elements(world);
    let mut owners: Vec<String> =
        lines.iter().map(|line| line.rsplit(", ").next().unwrap().to_owned()).collect();
    // A port that several publish on different addresses.
    owners.retain(|owner| owner != "nobody");
    owners.sort();
    owners.dedup();
    owners
}

#[test]
fn gc_keeps_valid_attachments_and_other_networks() {
    let world = World::new();
    let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
    let on = |ip: &str| with(&tcp(8080, 80), json!({"hostIP": ip}));
    publish(&c1, 1, &portmap(json!([on("192.0.2.1"), udp(53, 53)])));
    publish(&c2, 2, &portmap(json!([on("192.0.2.2")])));
    // A network; its name begins with the name of the other.
    publish(&c1, 3, &with(&portmap(json!([tcp(9000, 80)])), json!({"name": "net2"})));
    let conditional = with(
        &portmap(json!([tcp(9001, 80)])),
        json!({"name": "net2", "conditionsV4": ["-i", "lo"]}),
    );
    publish(&c2, 4, &conditional);
    let all = ["net c1 eth0", "net c2 eth0", "net2 c1 eth0", "net2 c2 eth0"];
    assert_eq!(owners(&world), all);
    let both =
        json!([{"containerID": "c1", "ifname": "eth0"}, {"containerID": "c2", "ifname": "eth0"}]);
    world.call("portmap", "GC", &gc(both)).run().silence();
    assert_eq!(owners(&world), all);
    let other_interface =
        json!([{"containerID": "c1", "ifname": "eth1"}, {"containerID": "c2", "ifname": "eth0"}]);
    world.call("portmap", "GC", &gc(other_interface)).run().silence();
    assert_eq!(owners(&world), all[1..]);
    world.call("portmap", "GC", &gc(json!([]))).run().silence();
    assert_eq!(owners(&world), all[2..]);
    let rest = with(&gc(json!([])), json!({"name": "net2"}));
    world.call("portmap", "GC", &rest).run().silence();
    assert_eq!(elements(&world), [""; 0]);
    assert!(!world.host(["nft", "list", "ruleset"]).contains("jump portmap-published-"));
    world.call("portmap", "GC", &rest).run().silence();
}

#[test]
fn status_is_about_the_configuration_and_the_kernel() {
    let world = World::new();
    let before = world.state();
    let config = portmap(json!(null));
    world.call("portmap", "STATUS", &config).run().silence();
    before.assert_same(&world.state(), "after STATUS");
    let wrong = with(&config, json!({"backend": "ipfw"}));
    world.call("portmap", "STATUS", &wrong).run().fails(7, &["backend"]);
}
