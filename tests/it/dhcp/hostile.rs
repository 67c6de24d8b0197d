//! Answers that are not for the client, or that no client may believe.

use serde_json::{Value, json};

use super::scripted::{Scripted, answer, plan, plan_with};
use super::servers::{Kea, long_lease};
use super::{Daemon, Site, address, bridge};
use crate::world::World;

/// An answer with an address that the client must not take.
fn bad(kind: u8, more: Value) -> Value {
    crate::world::with(&answer(kind, json!({"yiaddr": "10.1.0.66"})), more)
}

#[test]
fn foreign_and_broken_answers_are_skipped() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let wrong = |kind: u8| {
        vec![
            bad(kind, json!({"xid": "wrong"})),
            bad(kind, json!({"chaddr": "wrong"})),
            bad(kind, json!({"op": 1})),
            bad(kind, json!({"cookie": "wrong"})),
            bad(kind, json!({"sum": "wrong"})),
            bad(kind, json!({"port": 67})),
            bad(kind, json!({"cut": 200})),
            bad(kind, json!({"cut": 250})),
            bad(kind, json!({"raw": "3501"})),
            bad(kind, json!({"raw": "3501053604"})),
            bad(kind, json!({"raw": "00000000"})),
        ]
    };
    let offers = [wrong(2), vec![answer(2, json!({}))]].concat();
    // A second server answers the REQUEST that was for the first one.
    let other = bad(5, json!({"server": "10.1.0.9"}));
    let refusal = json!({"type": 6, "server": "10.1.0.9"});
    let acks = [wrong(5), vec![other, refusal, answer(5, json!({}))]].concat();
    let server = Scripted::start(&site.outside, &json!({"discover": offers, "request": acks}));
    let daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge());
    assert_eq!(address(&result), "10.1.0.20", "{}", daemon.log());
    assert_eq!(server.transactions("discover"), 1, "the first try succeeds: {}", server.0.log());
    // The same in a renewal.
    server.wait_for_another("request");
    server.wait_for_another("request");
    assert_eq!(c1.addresses("eth0"), ["10.1.0.20/24"], "{}", daemon.log());
    assert_eq!(server.transactions("discover"), 1, "{}", server.0.log());
}

#[test]
fn an_answer_that_no_interface_can_have_is_no_lease() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let server = Scripted::start(&site.outside, &json!({}));
    let daemon = Daemon::with(&world, &["-timeout", "500ms", "-resendtimeout", "6s"]);
    let cases = [
        json!({"yiaddr": "0.0.0.0"}),
        json!({"yiaddr": "255.255.255.255"}),
        json!({"yiaddr": "127.0.0.1"}),
        json!({"yiaddr": "224.0.0.1"}),
        json!({"options": {"1": "ff00ff00"}}),
        json!({"without": [1]}),
        json!({"options": {"51": "00000000"}}),
    ];
    let answers = |kind| Value::from_iter(cases.iter().map(|more| answer(kind, more.clone())));
    // All of them as offers, and then all of them after an offer that the client can take.
    for offers in [answers(2), json!([answer(2, json!({}))])] {
        server.answer_by(&json!({"discover": offers, "request": answers(5)}));
        let c1 = world.container("c1");
        let error = c1.call("bridge", "ADD", &bridge()).run().error();
        let said = format!("{}: {}", error.msg, error.details);
        assert!(said.contains("net") && said.contains("eth0"), "{said}");
        assert_eq!(site.world.ports_of("br0"), ["lan"], "{}", daemon.log());
        c1.destroy();
    }
    assert!(server.count("request") > 0, "{}", server.0.log());
    drop(daemon);
    let _daemon = Daemon::new(&world);
    server.answer_by(&plan());
    let c1 = world.container("c1");
    assert_eq!(address(&c1.add("bridge", &bridge())), "10.1.0.20");
}

#[test]
fn options_out_of_range_are_not_believed() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let options = json!({
        // An MTU below 68 (RFC 2132, section 5.1), a router and a name server that are no hosts, times after the end.
        "26": "000a", "3": "00000000", "6": "ffffffff", "51": "0000003c", "58": "7fffffff", "59": "00000001",
        // `../../etc/$(reboot)` with a newline.
        "15": "2e2e2f2e2e2f6574632f24287265626f6f74290a", "12": "2e2e2f2e2e2f78",
        // A classless route with a prefix of 99 bits.
        "121": "630a0a0100fa",
    });
    let server = Scripted::start(&site.outside, &plan_with(json!({"options": options})));
    let daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge());
    assert_eq!(address(&result), "10.1.0.20");
    let text = result.to_string();
    for word in ["255.255.255.255", "reboot", "..", "\"0.0.0.0\""] {
        assert!(!text.contains(word), "{word} in {text}");
    }
    assert!(c1.exec(["ip", "link", "show", "eth0"]).contains("mtu 1500 "));
    assert!(!daemon.log().contains('\u{1b}'));
    c1.ping("10.1.0.254");
    c1.del("bridge", &bridge());
    server.wait_for("release", 1);
}

#[test]
fn options_in_the_fields_of_names_are_read() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    // Option 52: both fields have options. The router is in one, the domain `lab.example` in the other (RFC 2132, 9.3).
    let more = json!({"without": [3], "options": {"52": "03"}, "file": "03040a0100fbff",
        "sname": "0f0b6c61622e6578616d706c65ff"});
    let server = Scripted::start(&site.outside, &plan_with(more));
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge());
    assert_eq!(result["ips"][0]["gateway"], "10.1.0.251", "{result}");
    assert_eq!(result["dns"]["domain"], "lab.example");
    c1.del("bridge", &bridge());
    server.wait_for("release", 1);
}

#[test]
fn long_options_are_read() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    // 60 routes have more than 255 bytes: the option comes in parts (RFC 3396).
    let route = |number: u8| format!("20c0a8{number:02x}010a0100fa");
    let routes: String = (0..60).map(route).collect();
    let more = json!({"options": {"121": routes}});
    let server = Scripted::start(&site.outside, &plan_with(more));
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge());
    assert_eq!(result["routes"].as_array().unwrap().len(), 60, "{result}");
    assert!(c1.exec(["ip", "route"]).contains("192.168.59.1 via 10.1.0.250 "));
    c1.del("bridge", &bridge());
    server.wait_for("release", 1);
}

/// Reports to all listeners that eth0 is deleted. Without NLM_F_REQUEST the kernel itself ignores the message.
const DELETED: &str = "import socket, struct
sender = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
message = struct.pack('=IHHII', 32, 17, 0, 0, 0) + struct.pack('=BxHiII', 0, 1, socket.if_nametoindex('eth0'), 0, 0)
assert sender.sendto(message, (0, 1)) == 32";

#[test]
fn only_the_kernel_reports_the_end_of_a_link() {
    let world = World::new();
    let site = Site::with_bridge(&world);
    let kea = Kea::start(&site.outside, "sw", long_lease());
    let daemon = Daemon::new(&world);
    let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
    let [kept, ended] = [&c1, &c2].map(|container| address(&container.add("bridge", &bridge())));
    c1.exec(["python3", "-c", DELETED]);
    // The daemon reads this event after the forged one.
    c2.exec(["ip", "link", "del", "eth0"]);
    kea.wait_for_release(&ended);
    assert_eq!(kea.leased(), [kept], "{}", daemon.log());
    let leases = world.host(["/run/bin/cnibox", "dhcp", "leases"]);
    assert!(leases.contains(" c1 ") && !leases.contains(" c2 "), "{leases}");
}
