//! A request is read as ports and addresses before anything is made.

use serde_json::{Value, json};

use super::{asking, error_of, object, publishing, request};
use crate::runtime::Host;
use crate::world::with;

/// A port mapping with these keys changed.
fn mapping(change: Value) -> Value {
    let mapping = json!({"container_port": 80, "host_ip": "", "host_port": 8080, "protocol": "tcp", "range": 1});
    json!([with(&mapping, change)])
}

#[test]
fn a_setup_with_a_port_or_an_address_that_does_not_exist_is_refused() {
    let host = Host::new();
    let web = host.created(&object("web"));
    let c1 = host.world.container("c1");
    let good = request("c1", &web);
    let before = host.state();
    for (request, reason) in [
        (
            publishing(&good, mapping(json!({"host_port": 65535, "range": 2}))),
            "cannot publish 65535:80/tcp, range 2: a port is from 1 to 65535",
        ),
        (
            publishing(&good, mapping(json!({"protocol": "tcp,icmp"}))),
            "8080:80/tcp,icmp, range 1: ",
        ),
        (
            publishing(&good, mapping(json!({"host_port": 70000}))),
            "port_mappings[0].host_port: invalid value",
        ),
        (
            publishing(&good, mapping(json!({"host_ip": "here"}))),
            "port_mappings[0].host_ip: invalid IP address: here",
        ),
        (publishing(&good, mapping(json!({"host_port": 0}))), "cannot publish 0:80/tcp, range 1: "),
        (
            asking(&good, json!({"static_ips": ["10.89.0.300"]})),
            "network_options.static_ips: invalid IP address: 10.89.0.300",
        ),
        (
            asking(&good, json!({"static_mac": "x"})),
            "network_options.static_mac: address x: invalid MAC address",
        ),
    ] {
        let outcome = host.driver(&["setup", &c1.netns()], &request);
        let error = error_of(&outcome);
        assert!(outcome.status == 1 && error.contains(reason), "{request}: {error}");
        // A teardown reads only what it uses.
        host.tear_down(&c1.netns(), &request);
    }
    before.assert_same(&host.state(), "after refused requests");
}

/// Protocols and the number of ports can be missing, and the case of a protocol does not count.
#[test]
fn ports_have_defaults() {
    let host = Host::new();
    let web = host.created(&object("web"));
    let c1 = host.world.container("c1");
    let ports = json!([
        {"container_port": 80, "host_port": 8080},
        {"container_port": 81, "host_ip": "10.89.0.1", "host_port": 8081, "protocol": "TCP, udp", "range": 0},
    ]);
    host.set_up(&c1, &publishing(&request("c1", &web), ports));
    let listed = host.cnibox(&["attachments"]).run().output();
    for port in ["8080->80/tcp", "10.89.0.1:8081->81/tcp", "10.89.0.1:8081->81/udp"] {
        assert!(listed.contains(port), "{port} is not in {listed}");
    }
}
