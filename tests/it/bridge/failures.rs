//! ADD is all or nothing.

use serde_json::{Value, json};

use super::{dbnet_with, dual_stack, layer2};
use crate::world::{World, with};

/// A preparation on the host, one in the container, the keys of the ADD, and what its error must say.
struct Case {
    host: &'static str,
    container: &'static str,
    keys: Value,
    says: &'static str,
}

fn case(host: &'static str, container: &'static str, keys: Value, says: &'static str) -> Case {
    Case { host, container, keys, says }
}

fn cases() -> Vec<Case> {
    // The kernel refuses a gateway for a destination of the scope host.
    let route =
        |dst: &str, gw: &str| json!({"ipam": {"routes": [{"dst": dst, "gw": gw, "scope": 254}]}});
    vec![
        case("", "ip link add eth0 type bridge", json!({}), "eth0"),
        case("", "ip link add eth0 type bridge", json!({"isGateway": true}), "eth0"),
        case("", "", route("10.99.0.0/16", "192.168.77.1"), "10.99.0.0/16"),
        case("", "", route("fd99::/32", "ff02::1"), "fd99::/32"),
        case("", "", json!({"ipam": {"subnet": "10.1.0.0/31"}}), "10.1.0.0/31"),
        case("", "", json!({"ipam": {"ranges": [[{"subnet": "10.2.0.5/24"}]]}}), "10.2.0.0"),
        case("", "", json!({"ipam": {"type": "none-such"}}), "failed to find plugin"),
        case("", "", json!({"ipam": {"resolvConf": "/none/resolv.conf"}}), "/none/resolv.conf"),
        case("", "", json!({"mtu": 20}), "mtu"),
        case("", "", json!({"runtimeConfig": {"mac": "nonsense"}}), "invalid MAC address"),
        case("", "", json!({"runtimeConfig": {"mac": "01:00:5e:00:00:01"}}), "cannot "),
        case("", "", json!({"hairpinMode": true, "promiscMode": true}), "hairpin"),
        case("", "", json!({"disableContainerInterface": true}), "disableContainerInterface"),
        case("", "", json!({"bridge": ""}), "bridge"),
        case("", "", json!({"bridge": "abcdefghijklmnop"}), "abcdefghijklmnop"),
        case("", "", json!({"bridge": "a/b"}), "a/b"),
        case("ip link add v0 type veth peer name v1", "", json!({"bridge": "v0"}), "v0"),
        case("", "", json!({"bridge": "lo"}), "lo"),
        case(FULL_BRIDGE, "", json!({"bridge": "full"}), "the bridge has 1023 ports"),
    ]
}

/// A bridge with the most ports that the kernel allows.
const FULL_BRIDGE: &str = "
    ip link add full up type bridge
    for i in $(seq 512); do
        echo link add a$i type veth peer name b$i
        echo link set a$i master full
        test $i = 512 || echo link set b$i master full
    done | ip -batch -";

#[test]
fn a_failed_add_leaves_nothing() {
    for Case { host, container, keys, says } in cases() {
        let world = World::new();
        world.host(["sh", "-c", host]);
        let c1 = world.container("c1");
        c1.exec(["sh", "-c", container]);
        let before = world.state_with(&[&c1]).apart_from("cni0", "dbnet");
        let links = world.links();
        let config = dbnet_with(keys);
        let error = c1.call("bridge", "ADD", &config).run().error();
        let said = format!("{}: {}", error.msg, error.details);
        assert!(said.to_lowercase().contains(&says.to_lowercase()), "{says} expected: {error:?}");
        let after = world.state_with(&[&c1]).apart_from("cni0", "dbnet");
        before.assert_same(&after, &format!("after a failed ADD of {config}"));
        assert_eq!(world.links(), links, "a bridge that nobody uses is taken back");
    }
}

#[test]
fn a_failed_add_on_a_bridge_in_use_leaves_nothing_at_all() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let config = dbnet_with(json!({"isGateway": true, "ipam": {"subnet": "10.1.0.0/30"}}));
    c1.add("bridge", &config);
    let before = world.state_with(&[&c1, &c2]);
    let error = c2.call("bridge", "ADD", &config).run().error();
    assert!(
        error.msg.contains("no IP addresses available in range set: 10.1.0.1-10.1.0.2"),
        "{error:?}"
    );
    before.assert_same(&world.state_with(&[&c1, &c2]), "after a failed ADD");
}

#[test]
fn an_existing_interface_and_its_attachment_survive_a_second_add() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &dual_stack());
    let before = world.state_with(&[&c1]);
    c1.call("bridge", "ADD", &dual_stack()).run().error();
    before.assert_same(&world.state_with(&[&c1]), "after a second ADD");
    c1.check("bridge", &dual_stack(), &result);
}

#[test]
fn an_interface_of_another_network_survives_a_second_add() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &dual_stack());
    let other = with(
        &dual_stack(),
        json!({"name": "other", "bridge": "cni1", "ipam": {
        "ranges": [[{"subnet": "10.2.0.0/16"}]]}}),
    );
    let before = world.state_with(&[&c1]).apart_from("cni1", "other");
    c1.call("bridge", "ADD", &other).run().fails(999, &["eth0"]);
    let after = world.state_with(&[&c1]).apart_from("cni1", "other");
    before.assert_same(&after, "after an ADD of another network");
    c1.check("bridge", &dual_stack(), &result);
}

/// Otherwise the container can become the default gateway of the host (CVE-2020-10749).
#[test]
fn a_host_that_cannot_refuse_router_advertisements_is_an_error() {
    let read_only =
        "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; exec \"$0\"";
    for plugin in ["bridge", "veth"] {
        let world = World::new();
        let c1 = world.container("c1");
        let config = json!({"cniVersion": "1.1.0", "name": "net", "type": plugin});
        let state = || world.state_with(&[&c1]).apart_from("cni0", "net");
        let before = state();
        let add = || {
            let call = c1.call(plugin, "ADD", &config);
            call.under(&["unshare", "-m", "sh", "-ec", read_only]).run()
        };
        add().fails(999, &[".accept_ra to 0: Read-only file system"]);
        before.assert_same(&state(), plugin);
        // Then there is nothing to write.
        world.host(["sysctl", "-qw", "net.ipv6.conf.default.accept_ra=0"]);
        add().success();
        c1.del(plugin, &config);
    }
}

#[test]
fn ipam_without_addresses_is_an_error() {
    let world = World::new();
    let c1 = world.container("c1");
    let before = world.state_with(&[&c1]).apart_from("cni0", "l2");
    let config = with(&layer2(), json!({"ipam": {"type": "static"}}));
    c1.call("bridge", "ADD", &config).run().error();
    before.assert_same(&world.state_with(&[&c1]).apart_from("cni0", "l2"), "after a failed ADD");
}

#[test]
fn an_ipam_without_a_type_is_no_ipam() {
    let world = World::new();
    let c1 = world.container("c1");
    // podman writes this for `--ipam-driver none`.
    let config = with(&layer2(), json!({"ipam": {"type": ""}}));
    let result = c1.add("bridge", &config);
    assert_eq!(result.get("ips"), None, "{result}");
    c1.check("bridge", &config, &result);
    c1.del("bridge", &config);
}
