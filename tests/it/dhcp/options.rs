//! The configuration of the plugin: options for the server and from it, and the result.

use serde_json::{Value, json};

use super::capture::{Capture, Packet, of_kind};
use super::servers::Kea;
use super::{Daemon, Site, asking, bridge};
use crate::world::World;

const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAME=pod-7;K8S_POD_NAMESPACE=default";

/// The DISCOVER, the REQUEST and the RELEASE of an attachment with this configuration, and its result.
fn exchange(ipam: Value, subnet: Value, flags: &[&str]) -> (Vec<Packet>, Value) {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", subnet);
    let capture = Capture::start(&site.outside);
    let _daemon = Daemon::with(&world, flags);
    let config = asking(&bridge(), ipam);
    let c1 = world.container("c1");
    let result = c1.call("bridge", "ADD", &config).env("CNI_ARGS", ARGS).run().success();
    c1.del("bridge", &config);
    kea.wait_for_release("10.1.0.10");
    let packets = capture.finish();
    let first = |kind| of_kind(&packets, kind)[0].clone();
    (["DISCOVER", "REQUEST", "RELEASE"].map(first).to_vec(), result)
}

fn slow() -> Value {
    json!({"renew-timer": 20})
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn without_keys_the_packets_have_what_the_reference_sends() {
    let (packets, result) = exchange(json!({}), slow(), &[]);
    let client_id = format!("00{}", hex("c1/net/eth0"));
    for packet in &packets {
        assert_eq!(packet.option(61), Some(client_id.as_str()), "{packet:?}");
        assert_eq!(packet.get("dhcp.flags"), "0x0000");
        assert_eq!(packet.option(12), None);
    }
    for packet in &packets[..2] {
        let list = packet.option(55).unwrap();
        // Router and subnet mask.
        assert!(["01", "03"].iter().all(|code| list.contains(code)), "{packet:?}");
        assert_eq!(packet.get("dhcp.ip.client"), "0.0.0.0");
        assert_eq!(packet.get("eth.dst"), "ff:ff:ff:ff:ff:ff");
        assert_eq!((packet.get("ip.src"), packet.get("ip.dst")), ("0.0.0.0", "255.255.255.255"));
    }
    assert_eq!(packets[1].option(50), Some("0a01000a"));
    assert_eq!(packets[1].option(54), Some("0a0100fe"));
    assert_eq!(packets[0].get("dhcp.id"), packets[1].get("dhcp.id"), "RFC 2131, section 4.4.1");
    assert_eq!(result["ips"][0]["address"], "10.1.0.10/24");
    assert_eq!(result["ips"][0]["gateway"], "10.1.0.254");
    assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0", "gw": "10.1.0.254"}]));
}

#[test]
fn options_are_provided_by_name_by_number_and_from_arguments() {
    let provide = json!([
        {"option": "host-name", "fromArg": "K8S_POD_NAME"},
        {"option": "dhcp-client-identifier", "value": "lab/7"},
        {"option": "vendor-class-identifier", "value": "rack", "fromArg": "ABSENT"},
        {"option": "user-class", "value": "edge"},
        {"option": "224", "value": "private", "fromArg": "K8S_POD_NAMESPACE"},
    ]);
    let (packets, _) = exchange(json!({"provide": provide}), slow(), &[]);
    for packet in &packets[..2] {
        for (code, text) in
            [(12, "pod-7"), (61, "lab/7"), (60, "rack"), (77, "edge"), (224, "default")]
        {
            assert_eq!(packet.option(code), Some(hex(text).as_str()), "{code}: {packet:?}");
        }
    }
    assert_eq!(
        packets[2].option(61),
        Some(hex("lab/7").as_str()),
        "the server finds the lease by it"
    );
}

#[test]
fn requested_options_come_first_and_skip_default_leaves_out_the_others() {
    let request = json!([{"option": "42"}, {"option": "host-name"}]);
    let (packets, _) = exchange(json!({"request": request}), slow(), &[]);
    let list = packets[0].option(55).unwrap();
    assert!(list.starts_with("2a0c"), "{list}");
    let pairs: Vec<&str> =
        list.as_bytes().chunks(2).map(|it| str::from_utf8(it).unwrap()).collect();
    assert!(pairs.contains(&"03") && pairs.contains(&"01"), "{list}");
    let request = json!([{"skipDefault": true}, {"option": "routers"}, {"option": "subnet-mask"}, {"option": "42"}]);
    let (packets, _) = exchange(json!({"request": request}), slow(), &[]);
    assert_eq!(packets[0].option(55), Some("03012a"));
    let (packets, _) = exchange(json!({"request": [{"skipDefault": true}]}), slow(), &[]);
    assert_eq!(packets[0].option(55), Some("01030f06"), "the list of the reference's library");
}

#[test]
fn priority_is_in_each_route_of_the_result() {
    let (_, result) = exchange(json!({"priority": 42}), slow(), &[]);
    let routes = result["routes"].as_array().unwrap();
    assert!(!routes.is_empty());
    // Version 1.1.0 has the key; the container has the metric in any version.
    assert!(routes.iter().all(|route| route.get("gw").is_some()), "{result}");
    let world = World::new();
    let site = Site::with_bridge(&world);
    let _kea = Kea::start(&site.outside, "sw", slow());
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let config = asking(
        &crate::world::with(&bridge(), json!({"cniVersion": "1.1.0"})),
        json!({"priority": 42}),
    );
    let result = c1.add("bridge", &config);
    assert_eq!(result["routes"][0]["priority"], 42, "{result}");
    assert!(c1.exec(["ip", "route"]).contains("metric 42"));
}

#[test]
fn the_broadcast_flag_is_set_by_the_daemon_or_the_configuration() {
    for (ipam, flags) in [(json!({}), &["-broadcast"][..]), (json!({"broadcast": true}), &[])] {
        let (packets, _) = exchange(ipam, slow(), flags);
        assert_eq!(packets[0].get("dhcp.flags"), "0x8000");
        assert_eq!(packets[1].get("dhcp.flags"), "0x8000");
    }
}

#[test]
fn dns_domain_mtu_and_routes_of_the_server_are_in_the_result() {
    let options = json!([
        {"name": "routers", "data": "10.1.0.254"},
        {"name": "domain-name-servers", "data": "10.1.0.3, 10.1.0.4"},
        {"name": "domain-name", "data": "lab.example"},
        {"name": "domain-search", "data": "a.example, b.example"},
        {"name": "interface-mtu", "data": "1400"},
        // 192.168.7.0/24 via 10.1.0.250, and the default route.
        {"code": 121, "space": "dhcp4", "csv-format": false, "data": "18c0a8070a0100fa000a0100fd"},
    ]);
    let (_, result) = exchange(json!({}), json!({"renew-timer": 20, "option-data": options}), &[]);
    assert_eq!(result["dns"]["nameservers"], json!(["10.1.0.3", "10.1.0.4"]), "{result}");
    assert_eq!(result["dns"]["domain"], "lab.example");
    assert_eq!(result["dns"]["search"], json!(["a.example", "b.example"]));
    // RFC 3442: the router is ignored if there are classless routes.
    let routes = json!([{"dst": "192.168.7.0/24", "gw": "10.1.0.250", "mtu": 1400},
        {"dst": "0.0.0.0/0", "gw": "10.1.0.253", "mtu": 1400}]);
    assert_eq!(result["routes"], routes);
}

#[test]
fn configurations_of_the_reference_work_unchanged() {
    let path = json!({"daemonSocketPath": "/run/cni/dhcp.sock"});
    let request =
        json!({"request": [{"skipDefault": false}, {"option": "", "skipDefault": false}]});
    let provide =
        json!({"provide": [{"option": "host-name", "fromArg": "K8S_POD_NAME"}], "priority": 0});
    for ipam in [path, request, provide] {
        let (packets, result) = exchange(ipam.clone(), slow(), &[]);
        assert_eq!(packets.len(), 3, "{ipam}");
        assert_eq!(result["ips"][0]["address"], "10.1.0.10/24", "{ipam}");
    }
}
