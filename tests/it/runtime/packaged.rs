//! The scripts and units of packaging: namespaces, and the DHCP daemon.

use std::fs;
use std::os::unix::net::UnixStream;

use super::{Host, network};
use crate::world::{Call, EXECUTABLE, Scratch, World};

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging");

/// `programs` are installed in a directory that this machine may lack, so existing ones replace them.
#[track_caller]
fn is_valid(units: &[&str], programs: [&str; 2]) {
    let scratch = Scratch::new();
    let mut args = vec!["verify".to_owned(), "--man=no".to_owned()];
    for name in units {
        let unit = fs::read_to_string(format!("{PACKAGING}/systemd/{name}")).unwrap();
        let [installed, existing] = programs;
        assert!(unit.contains(installed) || name.ends_with(".socket"), "{name}");
        scratch.write_text(name, &unit.replace(installed, existing));
        args.push(scratch.text(name));
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Call::program("/usr/bin/systemd-analyze".as_ref()).args(&args).run().silence();
}

#[test]
fn the_units_of_systemd_are_valid() {
    let netns = format!("{PACKAGING}/netns");
    is_valid(&["cnibox-netns@.service"], ["/usr/libexec/cnibox/netns", &netns]);
    let units = ["cnibox-dhcp.socket", "cnibox-dhcp.service"];
    is_valid(&units, ["/opt/cni/bin/dhcp", EXECUTABLE]);
}

#[test]
fn the_script_of_busybox_starts_and_stops_the_dhcp_daemon() {
    let world = World::new();
    let script = fs::read_to_string(format!("{PACKAGING}/busybox/S50cnibox-dhcp")).unwrap();
    world.write("/run/S50cnibox-dhcp", script);
    let run = |action: &str| {
        let words = ["busybox", "sh", "/run/S50cnibox-dhcp", action];
        world.tool(&words, None).env("CNIBOX_DHCP", "/run/plugins/dhcp").run()
    };
    let socket = world.path("/run/cni/dhcp.sock");
    for _ in 0..2 {
        run("start").output();
        world.within(20, "the daemon listens", || UnixStream::connect(&socket).is_ok());
        run("stop").output();
        world.within(20, "the daemon ends", || !socket.exists());
    }
    assert_eq!(run("stop").status, 0);
    assert_eq!(run("go").status, 2);
}

#[test]
fn the_script_creates_a_namespace_from_a_file_and_removes_it() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    host.cnibox(&["run", "-n", "net", "-p", "8080:80", "--", "true"]).run().output();
    let before = host.state();
    // The script reads another directory than /etc, which the world shares with the machine.
    let script = fs::read_to_string(format!("{PACKAGING}/netns")).unwrap();
    host.world.write("/run/netns.sh", script.replace("/etc/cnibox", "/run/own-etc"));
    let netns = |action: &str, name: &str| {
        let call = host.cnibox(&[]).env("PATH", "/run/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        call.under(&["busybox", "sh", "/run/netns.sh", action, name]).run()
    };
    host.world.write("/run/own-etc/netns/web", "# two\n\nnet -p 8080:80 --ip 10.1.0.50\nnet up1");
    host.world.write("/run/own-etc/netns/bad", "net\nmissing\n");
    host.world.write("/run/own-etc/netns/empty", "#\n");
    // The second start replaces the first.
    for _ in 0..2 {
        netns("start", "web").silence();
    }
    let text = host.cnibox(&["exec", "web", "ip", "-o", "addr"]).run().output();
    for part in ["127.0.0.1", "eth0    inet 10.1.0.50/24", "up1    inet 10.1.0."] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    for _ in 0..2 {
        netns("stop", "web").silence();
    }
    for (action, name, code) in [
        ("start", "bad", 1),
        ("start", "empty", 1),
        ("start", "none", 1),
        ("start", "", 2),
        ("go", "web", 2),
    ] {
        let outcome = netns(action, name);
        assert_eq!(outcome.status, code, "{}", outcome.report());
    }
    assert_eq!(host.kept(), [""; 0]);
    assert_eq!(host.world.host(["ls", "/run/netns"]), "");
    before.assert_same(&host.state(), "after stop");
}
