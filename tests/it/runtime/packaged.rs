//! The scripts and units of packaging that create namespaces.

use std::fs;

use super::{Host, network};
use crate::world::{Call, Scratch};

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging");

#[test]
fn the_unit_of_systemd_is_valid() {
    let scratch = Scratch::new();
    let unit = fs::read_to_string(format!("{PACKAGING}/systemd/cnibox-netns@.service")).unwrap();
    // The script is not installed here.
    let unit = unit.replace("/usr/libexec/cnibox/netns", &format!("{PACKAGING}/netns"));
    scratch.write_text("cnibox-netns@.service", &unit);
    let path = scratch.text("cnibox-netns@.service");
    let call = Call::program("/usr/bin/systemd-analyze".as_ref());
    call.args(&["verify", "--man=no", &path]).run().silence();
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
