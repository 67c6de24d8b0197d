//! A network outside of the host, for interfaces that are to be in it: the host has the link `lan`, the other end is
//! the port of a switch, and the switch has addresses.

use serde_json::Value;

use super::{Call, Container, World, half_for, kernel_has};

/// The addresses of `outside`.
pub const OUTSIDE: [&str; 2] = ["10.1.0.254", "fd00:1::fe"];

/// The namespace `outside` with the bridge `sw`, a port of which is the other end of the host's `lan`.
pub fn lan(world: &World) -> Container<'_> {
    let outside = world.container("outside");
    for command in [
        "ip link add sw type bridge",
        "ip link set sw up",
        "ip address add 10.1.0.254/24 dev sw",
        "ip address add fd00:1::fe/64 dev sw nodad",
    ] {
        outside.exec(["sh", "-c", command]);
    }
    world.host(["ip", "link", "add", "lan", "type", "veth", "peer", "name", "port"]);
    world.host(["ip", "link", "set", "port", "netns", &outside.netns()]);
    outside.exec(["ip", "link", "set", "port", "master", "sw", "up"]);
    world.host(["ip", "link", "set", "lan", "up"]);
    world.eventually("the switch forwards", || {
        outside.exec(["ip", "-d", "link", "show", "port"]).contains("state forwarding")
    });
    outside
}

/// A script for a host: a link `lan` that leads nowhere, and the default route leads to it.
pub const LAN: &str = "ip link add lan type bridge; ip link set lan up
    ip address add 10.20.0.1/24 dev lan; ip route add default via 10.20.0.9";

/// A kernel that has the link of a plugin makes it, and CHECK finds it; without it the error names the option. In
/// either case a DEL leaves nothing.
#[track_caller]
pub fn is_made_or_missed(world: &World, config: &Value, option: &str) {
    let c1 = world.container("c1");
    let state = || world.state_with(&[&c1]).apart_from("", "net");
    let before = state();
    let plugin = config["type"].as_str().unwrap();
    let outcome = c1.call(plugin, "ADD", config).run();
    if half_for(option, kernel_has(option)) {
        c1.check(plugin, config, &outcome.success());
    } else {
        let made = format!("cannot add {plugin} link eth0");
        outcome.fails(999, &[&made, &format!("the kernel lacks {option}")]);
    }
    c1.del(plugin, config);
    before.assert_same(&state(), "after DEL");
}

/// The call with an IPAM plugin called dhcp, which like that one needs the container's `eth0`, up, on ADD, and on DEL to
/// give the address 10.1.0.7 back.
pub fn through_dhcp(call: Call<'_>) -> Call<'_> {
    let look = r#"nsenter --net="$CNI_NETNS" ip link show up | grep -q " eth0""#;
    let script = format!(
        "#!/bin/sh\n[ $CNI_COMMAND = VERSION ] || {look} || exit 7\n\
         echo '{{\"cniVersion\": \"1.0.0\", \"ips\": [{{\"address\": \"10.1.0.7/24\"}}]}}'\n"
    );
    let world = call.world().unwrap();
    world.write("/run/ipam/dhcp", script);
    world.host(["chmod", "755", "/run/ipam/dhcp"]);
    call.env("CNI_PATH", "/run/ipam").env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
}
