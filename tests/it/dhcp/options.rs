//! The configuration of the plugin: options for the server and from it, and the result.

use serde_json::{Value, json};

use super::capture::{Capture, Packet, of_kind};
use super::scripted::{Scripted, plan_with};
use super::servers::{Kea, long_lease};
use super::{Daemon, Site, address, asking, bridge};
use crate::world::{World, with};

const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAME=pod-7;K8S_POD_NAMESPACE=default";

/// The DISCOVER, the REQUEST and the RELEASE of an attachment, and its result.
type Exchange = (Vec<Packet>, Value);

/// Attachments one after the other with these keys in `ipam`, in a network of this version.
fn exchanges_in(version: &str, ipams: &[Value], subnet: Value, flags: &[&str]) -> Vec<Exchange> {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", subnet);
    let capture = Capture::start(&site.outside);
    let _daemon = Daemon::with(&world, flags);
    let network = with(&bridge(), json!({"cniVersion": version}));
    let attach = |ipam: &Value| {
        let config = asking(&network, ipam.clone());
        let c1 = world.container("c1");
        let result = c1.call("bridge", "ADD", &config).env("CNI_ARGS", ARGS).run().success();
        let mac = site.mac(&c1);
        let table = c1.exec(["ip", "route"]);
        if let Some(priority) = ipam.get("priority").filter(|priority| **priority != 0) {
            assert!(table.contains(&format!("metric {priority}")), "{table}");
        }
        c1.del("bridge", &config);
        kea.wait_for_release(&address(&result));
        c1.destroy();
        (mac, result)
    };
    let attached: Vec<(String, Value)> = ipams.iter().map(attach).collect();
    let packets = capture.finish();
    let of = |mac: &str, kind| {
        let mut all = of_kind(&packets, kind).into_iter();
        all.find(|packet| packet.get("eth.src") == mac).unwrap().clone()
    };
    let exchange = |(mac, result): (String, Value)| {
        (["DISCOVER", "REQUEST", "RELEASE"].map(|kind| of(&mac, kind)).to_vec(), result)
    };
    attached.into_iter().map(exchange).collect()
}

fn exchanges<const N: usize>(ipams: [Value; N], subnet: Value, flags: &[&str]) -> [Exchange; N] {
    exchanges_in("1.0.0", &ipams, subnet, flags).try_into().unwrap()
}

fn exchange(ipam: Value, subnet: Value, flags: &[&str]) -> Exchange {
    let [exchange] = exchanges([ipam], subnet, flags);
    exchange
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn without_keys_the_packets_have_what_the_reference_sends() {
    let (packets, result) = exchange(json!({}), long_lease(), &[]);
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
    let (packets, _) = exchange(json!({"provide": provide}), long_lease(), &[]);
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
    let requests = [
        json!([{"option": "42"}, {"option": "host-name"}]),
        json!([{"skipDefault": true}, {"option": "routers"}, {"option": "subnet-mask"}, {"option": "42"}]),
        json!([{"skipDefault": true}]),
    ];
    let ipams = requests.map(|request| json!({"request": request}));
    let lists = exchanges(ipams, long_lease(), &[])
        .map(|(packets, _)| packets[0].option(55).unwrap().to_owned());
    assert!(lists[0].starts_with("2a0c"), "{lists:?}");
    let pairs: Vec<&[u8]> = lists[0].as_bytes().chunks(2).collect();
    assert!(pairs.contains(&&b"03"[..]) && pairs.contains(&&b"01"[..]), "{lists:?}");
    assert_eq!(lists[1], "03012a");
    assert_eq!(lists[2], "01030f06", "the list of the reference's library");
}

#[test]
fn priority_is_in_each_route_of_the_result() {
    let [(_, result)] =
        exchanges_in("1.1.0", &[json!({"priority": 42})], long_lease(), &[]).try_into().unwrap();
    let routes = result["routes"].as_array().unwrap();
    assert!(!routes.is_empty() && routes.iter().all(|route| route["priority"] == 42), "{result}");
}

#[test]
fn the_broadcast_flag_is_set_by_the_daemon_or_the_configuration() {
    for (ipam, flags) in [(json!({}), &["-broadcast"][..]), (json!({"broadcast": true}), &[])] {
        let (packets, _) = exchange(ipam, long_lease(), flags);
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
    let (_, result) =
        exchange(json!({}), with(&long_lease(), json!({"option-data": options})), &[]);
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
    for (packets, result) in exchanges([path, request, provide], long_lease(), &[]) {
        assert_eq!(packets.len(), 3, "{result}");
        assert!(result["ips"][0]["address"].as_str().unwrap().starts_with("10.1.0."), "{result}");
    }
}

#[test]
fn a_router_outside_of_the_subnet_is_reached_on_the_link() {
    // 10.9.0.1, and as the first of two the client itself.
    reaches_router(&json!({"3": "0a0100140a090001"}));
}

/// As clouds give it: an address without a subnet.
#[test]
fn a_classless_route_via_a_router_outside_of_the_subnet_works() {
    let host = json!({"1": "ffffffff", "121": "000a090001"});
    let result = reaches_router(&host);
    assert_eq!(result["ips"][0]["address"], "10.1.0.20/32");
}

fn reaches_router(options: &Value) -> Value {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let _server = Scripted::start(&site.outside, &plan_with(json!({"options": options})));
    site.outside.exec(["ip", "address", "add", "10.9.0.1/32", "dev", "sw"]);
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge());
    let routes = c1.exec(["ip", "route"]);
    assert!(routes.contains("10.9.0.1 dev eth0 scope link"), "{routes}");
    assert!(routes.contains("default via 10.9.0.1 dev eth0"), "{routes}");
    c1.ping("10.9.0.1");
    c1.check("bridge", &bridge(), &result);
    c1.del("bridge", &bridge());
    result
}

/// As Windows servers give it.
#[test]
fn several_domain_names_in_one_option_are_searched() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let names = json!({"options": {"15": hex("a.example b.example")}});
    let _server = Scripted::start(&site.outside, &plan_with(names));
    let _daemon = Daemon::new(&world);
    let result = world.container("c1").add("bridge", &bridge());
    assert_eq!(result["dns"]["domain"], "a.example");
    assert_eq!(result["dns"]["search"], json!(["a.example", "b.example"]));
}

#[test]
fn options_that_no_packet_holds_are_refused() {
    let world = World::new();
    let _site = Site::with_bridge(&world);
    let _daemon = Daemon::new(&world);
    let option = |number: u32| json!({"option": number.to_string(), "value": "x".repeat(200)});
    let provide: Vec<Value> = (224..232).map(option).collect();
    let config = asking(&bridge(), json!({"provide": provide}));
    let c1 = world.container("c1");
    let before = world.state_with(&[&c1]);
    let text = "cannot send the options: the packet has ";
    c1.call("bridge", "ADD", &config).run().fails(7, &[text, "1472 are possible"]);
    before.assert_same(&world.state_with(&[&c1]), "after the ADD");
}
