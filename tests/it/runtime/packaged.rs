//! The scripts and units of packaging: namespaces, and the DHCP daemon.

use std::fs;
use std::os::unix::net::UnixStream;

use super::reconciled::host_with_two;
use super::{Host, network};
use crate::world::state::assert_same;
use crate::world::{Call, Scratch, World, executable};

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging");

/// `programs` are installed in a directory that this machine may lack, so existing ones replace them.
#[track_caller]
fn is_valid(units: &[&str], programs: [&str; 2]) {
    let scratch = Scratch::new();
    let mut args = vec!["verify".to_owned(), "--man=no".to_owned()];
    for name in units {
        let unit = fs::read_to_string(format!("{PACKAGING}/systemd/{name}")).unwrap();
        let [installed, existing] = programs;
        assert!(unit.contains(installed) || !name.ends_with(".service"), "{name}");
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
    is_valid(&units, ["/opt/cni/bin/dhcp", executable()]);
    let units = ["cnibox-gc.timer", "cnibox-gc.service"];
    is_valid(&units, ["/opt/cni/bin/cnibox", executable()]);
    is_valid(&["cnibox-reconcile.service"], ["/opt/cni/bin/cnibox", executable()]);
}

/// The unit has fewer capabilities than root.
#[test]
fn the_watcher_of_systemd_has_the_capabilities_to_restore_everything() {
    let host = Host::new();
    let [_, _, _] = host_with_two(&host);
    host.cnibox(&["networks", "create", "shop", "--names"]).run().output();
    host.cnibox(&["add", "shop", "web", "--create"]).run().output();
    let lines = || {
        let mut lines = host.lines();
        lines.retain(|line| !line.contains("aardvark.pid"));
        lines
    };
    let before = lines();
    let end = host.world.ports_of("cni0").remove(0);
    let change = format!(
        "pkill -9 -x aardvark-dns; nft flush ruleset; echo 0 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/{end}/accept_ra
         ip address del 10.1.0.1/24 dev cni0; tc qdisc del dev {end} root"
    );
    host.world.host(["sh", "-ec", &change]);
    let unit = fs::read_to_string(format!("{PACKAGING}/systemd/cnibox-reconcile.service")).unwrap();
    let bounding =
        unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let bounding = bounding.to_lowercase().replace("cap_", "+").replace(' ', ",");
    let bounding = format!("--bounding-set=-all,{bounding}");
    let call = host.cnibox(&["reconcile"]);
    let said =
        call.under(&["setpriv", &bounding, "--inh-caps=-all", "--no-new-privs"]).run().output();
    assert!(
        said.lines().all(|line| line.starts_with("restored ") || line.starts_with("    ")),
        "{said}"
    );
    assert_same(&before, &lines(), "reconcile with the capabilities of the unit");
    let asked = host.cnibox(&["exec", "web", "--", "getent", "hosts", "web.dns.podman"]).run();
    assert_eq!(asked.status, 0, "{}", asked.report());
}

#[test]
fn the_script_of_busybox_starts_and_stops_the_watcher() {
    let host = Host::new();
    host_with_two(&host);
    let script = fs::read_to_string(format!("{PACKAGING}/busybox/S80cnibox-reconcile")).unwrap();
    host.world.write("/run/S80cnibox-reconcile", script);
    let run = |action: &str| {
        let call = host
            .cnibox(&[])
            .env("CNIBOX", "/run/bin/cnibox")
            .env("CNIBOX_RECONCILE_LOG", "/run/watch.log");
        call.under(&["busybox", "sh", "/run/S80cnibox-reconcile", action]).run()
    };
    let processes = || {
        host.world.tool(&["pgrep", "-fx", "/run/bin/cnibox reconcile --watch"], None).run().stdout
    };
    let rules = || {
        let list = ["nft", "list", "map", "ip", "cnibox", "portmap-published"];
        host.world.tool(&list, None).run().stdout
    };
    for _ in 0..2 {
        run("start").output();
        host.world.host(["nft", "flush", "ruleset"]);
        host.world.within(60, "it restores the rules", || rules().contains("net c1 eth0"));
        assert_eq!(processes().lines().count(), 1, "the second start does nothing");
    }
    // The lines of a look follow its last repair.
    host.world.within(60, "the log has the repair", || {
        host.world.read("/run/watch.log").contains("restored eth0 of container c1 in network net: ")
    });
    let first = processes();
    run("restart").output();
    assert_ne!(processes(), first);
    run("stop").output();
    assert_eq!(processes(), "", "the script waits for the end");
    assert_eq!((run("stop").status, run("go").status), (0, 2));
}

/// A host with the attachment of a container that has ended, and gc-loop, which calls gc every second.
fn host_with_loop() -> Host {
    let host = Host::new();
    host.configure("1.conflist", &network());
    let container = host.world.container("c1");
    host.cnibox(&["add", "net", "c1", "--container-id", "c1"]).run().success();
    container.destroy();
    host.world.host(["install", "-D", &format!("{PACKAGING}/gc-loop"), "/run/bin/gc-loop"]);
    // There is no syslog here.
    let logger = "#!/bin/sh\necho \"$@\" >>/run/logged\nexec cat >>/run/logged\n";
    host.world.write("/run/bin/logger", logger);
    host.world.host(["chmod", "755", "/run/bin/logger"]);
    host
}

impl Host {
    fn logged(&self, text: &str) -> bool {
        let path = self.world.path("/run/logged");
        fs::read_to_string(path).is_ok_and(|logged| logged.contains(text))
    }
}

#[test]
fn the_script_of_busybox_starts_and_stops_the_timer_of_gc() {
    let host = host_with_loop();
    let script = fs::read_to_string(format!("{PACKAGING}/busybox/S70cnibox-gc")).unwrap();
    host.world.write("/run/S70cnibox-gc", script);
    let run = |action: &str| {
        let call = host.cnibox(&[]).env("PATH", "/run/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        let call = call.env("CNIBOX_GC_LOOP", "/run/bin/gc-loop").env("CNIBOX_GC_INTERVAL", "1");
        call.under(&["busybox", "sh", "/run/S70cnibox-gc", action]).run()
    };
    for _ in 0..2 {
        run("start").output();
    }
    let waits = "-t cnibox-gc\neth0 of container c1 in network net waits for a run in ";
    host.world.within(60, "gc runs", || host.logged(waits));
    let processes = || host.world.tool(&["pgrep", "-f", "/run/bin/gc-loop"], None).run().stdout;
    // The shell of the loop has a child of the same name while gc runs.
    host.world.within(60, "the second start does nothing", || processes().lines().count() == 1);
    let first = host.world.read("/run/cnibox-gc.pid");
    run("restart").output();
    assert_ne!(host.world.read("/run/cnibox-gc.pid"), first);
    let removed = "removed eth0 of container c1 from network net: ";
    host.world.within(60, "gc removes it", || {
        // A run that is in progress may write the old times again.
        host.wait(700);
        host.logged(removed)
    });
    run("stop").output();
    assert_eq!(processes(), "", "the script waits for the end");
    assert_eq!((run("stop").status, run("go").status), (0, 2));
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
        world.within(60, "the daemon listens", || UnixStream::connect(&socket).is_ok());
        let first = world.read("/run/cnibox-dhcp.pid");
        run("restart").output();
        world.within(60, "the next daemon listens", || UnixStream::connect(&socket).is_ok());
        assert_ne!(world.read("/run/cnibox-dhcp.pid"), first);
        run("stop").output();
        assert!(!socket.exists(), "the script waits for the end of the daemon");
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

#[test]
fn openrc_starts_the_namespace_before_the_service_that_needs_it() {
    let host = Host::new();
    // OpenRC is unpacked there by tests/install, since it cannot be installed beside another init system.
    let openrc = concat!(env!("CARGO_MANIFEST_DIR"), "/.cache/openrc");
    assert!(
        fs::exists(format!("{openrc}/sbin/openrc-run")).unwrap(),
        "tests/install unpacks OpenRC"
    );
    let script = r#"
        install -D -m 755 $PACKAGING/netns /run/stage/libexec/cnibox/netns
        mount -t overlay -o "lowerdir=/run/stage:$OPENRC:/usr" overlay /usr
        rm -rf /etc/init.d /etc/conf.d /etc/runlevels /etc/insserv.conf
        mkdir -p /etc/init.d /etc/conf.d /etc/runlevels/default /etc/cnibox/netns /run/openrc /www
        touch /etc/insserv.conf /run/openrc/softlevel
        cp "$OPENRC/etc/rc.conf" /etc
        # OpenRC would make control groups on the machine.
        mount -t tmpfs tmpfs /sys/fs/cgroup
        ip link set lo up

        cnibox networks create dbnet
        echo 'dbnet -p 8080:80' >/etc/cnibox/netns/web
        install -m 755 $PACKAGING/openrc/cnibox-netns /etc/init.d
        ln -s cnibox-netns /etc/init.d/cnibox-netns.web
        ln -s cnibox-netns /etc/init.d/cnibox-netns.missing
        cat >/etc/init.d/page <<'END'
#!/sbin/openrc-run
supervisor=supervise-daemon
command=/opt/cni/bin/cnibox
command_args="exec web -- busybox httpd -f -p 80 -h /www"
depend() {
    need cnibox-netns.web
}
END
        chmod 755 /etc/init.d/page
        echo hello >/www/index.html
        rc-update add page default
        for round in 1 2; do
            openrc default
            rc-service cnibox-netns.web status
            eventually page >/run/page
            [ "$(page)" = hello ]
            # The service ends before its namespace.
            rc-service cnibox-netns.web stop
            eventually is_gone
            [ ! -e /run/netns/web ]
            nothing_is_left
        done
        if rc-service cnibox-netns.missing start; then exit 9; fi
        if rc-service cnibox-netns.missing status; then exit 9; fi
    "#;
    let call = host.rooted(script).env("OPENRC", openrc).env("PACKAGING", PACKAGING);
    let text = call.run().output();
    for (part, count) in [
        ("service page added to runlevel default", 1),
        ("Creating network namespace web ... [ ok ]", 2),
        ("Removing network namespace web ... [ ok ]", 2),
        ("Creating network namespace missing ... [ !! ]", 1),
    ] {
        assert_eq!(text.matches(part).count(), count, "{part}: {text}");
    }
}

#[test]
fn openrc_runs_the_watcher_until_it_stops_it() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    let openrc = concat!(env!("CARGO_MANIFEST_DIR"), "/.cache/openrc");
    let script = r#"
        mkdir -p /run/stage
        mount -t overlay -o "lowerdir=/run/stage:$OPENRC:/usr" overlay /usr
        mount -t tmpfs tmpfs /var/log
        rm -rf /etc/init.d /etc/conf.d /etc/runlevels /etc/insserv.conf
        mkdir -p /etc/init.d /etc/conf.d /etc/runlevels/default /run/openrc
        touch /etc/insserv.conf /run/openrc/softlevel
        cp "$OPENRC/etc/rc.conf" /etc
        mount -t tmpfs tmpfs /sys/fs/cgroup
        install -m 755 $PACKAGING/openrc/cnibox-reconcile /etc/init.d
        rc-update add cnibox-reconcile default
        # The watcher sees what was attached in this PID namespace.
        ip netns add c1
        cnibox add net c1 --container-id c1 >/run/added
        nft flush ruleset
        openrc default
        rc-service cnibox-reconcile status
        eventually grep -sq 'restored eth0 of container c1 in network net: ' /var/log/cnibox-reconcile.log
        rc-service cnibox-reconcile stop
        if pgrep -fx '/opt/cni/bin/cnibox reconcile --watch'; then exit 9; fi
        if rc-service cnibox-reconcile status; then exit 9; fi
    "#;
    let call = host.rooted(script).env("OPENRC", openrc).env("PACKAGING", PACKAGING);
    let text = call.env("NETCONFPATH", super::CONFIGURATIONS).run().output();
    assert!(text.contains("service cnibox-reconcile added to runlevel default"), "{text}");
}

#[test]
fn openrc_runs_the_timer_of_gc_until_it_stops_it() {
    let host = host_with_loop();
    let openrc = concat!(env!("CARGO_MANIFEST_DIR"), "/.cache/openrc");
    let script = r#"
        install -D -m 755 /run/bin/gc-loop /run/stage/libexec/cnibox/gc-loop
        install -D -m 755 /run/bin/logger /run/stage/bin/logger
        mount -t overlay -o "lowerdir=/run/stage:$OPENRC:/usr" overlay /usr
        rm -rf /etc/init.d /etc/conf.d /etc/runlevels /etc/insserv.conf
        mkdir -p /etc/init.d /etc/conf.d /etc/runlevels/default /run/openrc
        touch /etc/insserv.conf /run/openrc/softlevel
        cp "$OPENRC/etc/rc.conf" /etc
        mount -t tmpfs tmpfs /sys/fs/cgroup
        # gc sees what was attached in this PID namespace.
        ip netns add c2
        cnibox add net c2 --container-id c2 >/run/added
        ip netns del c2
        install -m 755 $PACKAGING/openrc/cnibox-gc /etc/init.d
        rc-update add cnibox-gc default
        openrc default
        rc-service cnibox-gc status
        eventually grep -sq 'c2 in network net waits for a run in' /run/logged
        pgrep -fx '/bin/sh /usr/libexec/cnibox/gc-loop' >/run/process
        rc-service cnibox-gc stop
        if pgrep -fx '/bin/sh /usr/libexec/cnibox/gc-loop'; then exit 9; fi
        if rc-service cnibox-gc status; then exit 9; fi
    "#;
    let call = host.rooted(script).env("OPENRC", openrc).env("PACKAGING", PACKAGING);
    let text = call.env("NETCONFPATH", super::CONFIGURATIONS).run().output();
    assert!(text.contains("service cnibox-gc added to runlevel default"), "{text}");
}
