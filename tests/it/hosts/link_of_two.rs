//! Subnets of two addresses (RFC 3021, RFC 6164), as an administrator with few addresses gives them to single containers.

use serde_json::{Value, json};

use crate::world::World;

fn network(plugin: &str, name: &str, ranges: &Value) -> Value {
    json!({"cniVersion": "1.1.0", "name": name, "type": plugin, "bridge": name, "isGateway": true,
        "ipam": {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}})
}

#[test]
fn a_container_has_the_other_address_of_its_link() {
    let world = World::new();
    let ranges = |four: [u8; 2], six: [u8; 2]| {
        let range = |subnet: &str, [host, gateway]: [String; 2]| json!([{"subnet": subnet, "rangeStart": host, "rangeEnd": host, "gateway": gateway}]);
        json!([
            range("10.9.0.4/31", four.map(|last| format!("10.9.0.{last}"))),
            range("fd00:9::4/127", six.map(|last| format!("fd00:9::{last}")))
        ])
    };
    for plugin in ["bridge", "ptp"] {
        for (number, (four, six)) in [([5, 4], [5, 4]), ([4, 5], [4, 5])].into_iter().enumerate() {
            let container = world.container(&format!("{plugin}{number}"));
            let config = network(plugin, &container.name, &ranges(four, six));
            world.call(plugin, "STATUS", &config).run().silence();
            let result = container.add(plugin, &config);
            container.check(plugin, &config, &result);
            assert_eq!(result["ips"][0]["address"], format!("10.9.0.{}/31", four[0]));
            container.ping(&format!("10.9.0.{}", four[1]));
            container.ping(&format!("fd00:9::{}", six[1]));
            world.pinging(&format!("10.9.0.{}", four[0]), None).output_of_success();
            world.pinging(&format!("fd00:9::{}", six[0]), None).output_of_success();
            let second = world.container(&format!("{plugin}{number}b"));
            second.call(plugin, "ADD", &config).run().fails(999, &["no IP addresses available"]);
            container.del(plugin, &config);
            if plugin == "bridge" {
                world.host(["ip", "link", "del", &container.name]);
            }
        }
    }
}
