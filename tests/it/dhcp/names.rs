//! The server sees the name of a container of podman.

use serde_json::json;

use super::capture::{Capture, of_kind};
use super::servers::{Kea, long_lease};
use super::{Daemon, Site};
use crate::world::World;

#[test]
fn a_request_carries_the_name_of_a_container_of_podman() {
    let world = World::new();
    let site = Site::new(&world);
    let _kea = Kea::start(&site.outside, "sw", long_lease());
    let capture = Capture::start(&site.outside);
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let network = json!({
        "name": "lan", "id": "4".repeat(64), "driver": "cnibox", "network_interface": "lan",
        "options": {"type": "macvlan"}, "ipam_options": {"driver": "dhcp"},
    });
    let long = format!("web-{}", "x".repeat(300));
    for name in ["web_1", &long] {
        let own = json!({"interface_name": "eth0"});
        let request = json!({
            "container_id": "c1", "container_name": name, "network": network, "network_options": own,
        });
        for verb in ["setup", "teardown"] {
            let words = ["/run/bin/cnibox", verb, &c1.netns()];
            world.tool(&words, None).stdin(request.to_string()).run().output();
        }
    }
    let packets = capture.finish();
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    for kind in ["DISCOVER", "REQUEST"] {
        let names: Vec<String> = of_kind(&packets, kind)
            .iter()
            .map(|packet| packet.option(12).unwrap_or_default().to_owned())
            .collect();
        assert!(names.contains(&hex("web_1")), "{kind}: {names:?}");
        assert!(names.contains(&hex(&long[..253])), "{kind}: {names:?}");
    }
}
