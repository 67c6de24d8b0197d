//! `cnibox gc` goes by what is on the host: what an ended container has there goes, whatever the cache and the network list say.

use serde_json::{Value, json};

use super::Host;
use crate::portmap::elements;
use crate::world::{Container, State, parse, with};

const CACHE: &str = "/var/lib/cni/results/net-c1-eth0";
const LIST: &str = "/run/net.d/1.conflist";

/// A network with everything that can stay on the host.
fn network() -> Value {
    let rate = 80_000_000;
    json!({"cniVersion": "1.1.0", "name": "net", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "macspoofchk": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]}},
        {"type": "bandwidth", "ingressRate": rate, "ingressBurst": rate, "egressRate": rate, "egressBurst": rate},
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "firewall", "ingressPolicy": "isolated"},
    ]})
}

/// The list has lost all plugins but the first.
fn shortened() -> Value {
    with(&network(), json!({"plugins": network()["plugins"].as_array().unwrap()[..1]}))
}

/// What happened to the cache and to the list before the container ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    Cache,
    CacheDamaged,
    CacheAndPlugins,
    CacheDamagedAndPlugins,
    CacheAndList,
    /// Only the list of the cache has the plugins.
    Plugins,
}

const LOSSES: [Loss; 6] = [
    Loss::Cache,
    Loss::CacheDamaged,
    Loss::CacheAndPlugins,
    Loss::CacheDamagedAndPlugins,
    Loss::CacheAndList,
    Loss::Plugins,
];

impl Loss {
    fn happens(self, host: &Host) {
        match self {
            Self::CacheDamaged | Self::CacheDamagedAndPlugins => {
                host.world.write(CACHE, "{\"kind\":")
            }
            Self::Plugins => {}
            _ => {
                host.world.host(["rm", CACHE]);
                host.forget_requests();
            }
        }
        match self {
            Self::CacheAndPlugins | Self::CacheDamagedAndPlugins | Self::Plugins => {
                host.configure("1.conflist", &shortened());
            }
            Self::CacheAndList => {
                host.world.host(["rm", LIST]);
            }
            _ => {}
        }
    }
}

impl Host {
    /// A living container, and what it has.
    fn beside_another(&self) -> (Container<'_>, State) {
        self.configure("1.conflist", &network());
        let living = self.attach_all("c2", 8082);
        let state = self.state();
        (living, state)
    }

    fn attach_all(&self, id: &str, port: u16) -> Container<'_> {
        let container = self.world.container(id);
        let port = format!("{port}:80");
        self.cnibox(&["add", "net", id, "--container-id", id, "-p", &port]).run().success();
        container
    }

    fn destroy(&self, container: &Container<'_>) {
        let links = self.world.ports_of("cni0").len();
        container.destroy();
        self.world.eventually("its link is gone", || self.world.ports_of("cni0").len() < links);
    }

    #[track_caller]
    fn has_all(&self, living: &Container<'_>) {
        self.configure("1.conflist", &network());
        self.cnibox(&["check", "net", &living.name, "--container-id", &living.name])
            .run()
            .silence();
    }
}

#[test]
fn what_has_ended_goes_whatever_cache_and_list_say() {
    for loss in LOSSES {
        let host = Host::new();
        let (living, before) = host.beside_another();
        let ended = host.attach_all("c1", 8081);
        loss.happens(&host);
        host.destroy(&ended);
        let held = host.state();
        let dry = host.cnibox(&["gc", "--dry-run"]).run().output();
        assert!(dry.contains("would remove "), "{loss:?}: {dry}");
        held.assert_same(&host.state(), "after --dry-run");
        let said = host.cnibox(&["gc"]).run().output();
        assert!(said.contains("c1 ") && !said.contains("c2"), "{loss:?}: {said}");
        let damaged = matches!(loss, Loss::CacheDamaged | Loss::CacheDamagedAndPlugins);
        if damaged {
            // Plugins that keep no record can have written the entry for a later container of the name: its address may be in use.
            let after = host.state();
            let left = before.difference(&after);
            assert!(
                left.iter().all(|line| line.contains("/networks/net/")
                    || line.contains("/attachments/")
                    || line.contains("/results/")),
                "{loss:?}: {left:#?}"
            );
            host.world.host(["rm", "-f", CACHE]);
            host.cnibox(&["gc"]).run().output();
        }
        before.assert_same(&host.state(), &format!("after gc: {loss:?}"));
        host.cnibox(&["gc"]).run().silence();
        host.has_all(&living);
    }
}

/// `doctor` finds the same, and its `--fix` is gc.
#[test]
fn doctor_finds_what_gc_removes() {
    for loss in LOSSES {
        let host = Host::new();
        let (living, before) = host.beside_another();
        let ended = host.attach_all("c1", 8081);
        loss.happens(&host);
        host.destroy(&ended);
        let said = host.cnibox(&["doctor", "--json"]).run().stdout;
        let fixes: Vec<String> = parse(&said)["findings"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|finding| finding["kind"] == "leaked")
            .map(|finding| finding["fix"].as_str().unwrap().to_owned())
            .collect();
        assert!(fixes.iter().any(|fix| fix.starts_with("cnibox gc")), "{loss:?}: {said}");
        if !matches!(loss, Loss::CacheDamaged | Loss::CacheDamagedAndPlugins) {
            host.cnibox(&["doctor", "--fix", "--yes"]).run();
            before.assert_same(&host.state(), &format!("after doctor: {loss:?}"));
            host.has_all(&living);
        }
    }
}

/// A DEL after the same losses, also of a container that lives.
#[test]
fn a_del_removes_what_plugins_made_that_the_list_has_lost() {
    for loss in LOSSES {
        if loss == Loss::CacheAndList {
            continue;
        }
        for lives in [true, false] {
            let host = Host::new();
            let (living, before) = host.beside_another();
            let deleted = host.attach_all("c1", 8081);
            loss.happens(&host);
            if !lives {
                host.destroy(&deleted);
            }
            let del = host.cnibox(&["del", "net", "c1", "--container-id", "c1"]).run();
            assert_eq!(del.status, 0, "{}", del.report());
            before.assert_same(&host.state(), &format!("after del: {loss:?} {lives}"));
            host.has_all(&living);
        }
    }
}

/// As after a way back to the Go plugins: plugins of others have the names of the list, and remove nothing that ours have made.
#[test]
fn what_ours_made_goes_if_plugins_of_others_have_taken_their_names() {
    for command in [&["gc"][..], &["doctor", "--fix", "--yes"], &["del", "--container-id", "c1"]] {
        let host = Host::new();
        let (_living, _) = host.beside_another();
        let ended = host.attach_all("c1", 8081);
        let of = |id: &str| {
            let owner = format!("net {id}");
            elements(&host.world).iter().filter(|line| line.contains(&owner)).count()
        };
        assert!(of("c1") > 5 && of("c1") == of("c2"), "{:#?}", elements(&host.world));
        for name in ["bridge", "bandwidth", "portmap", "firewall"] {
            host.recorder(name, "");
        }
        host.destroy(&ended);
        host.cnibox(command).run();
        assert_eq!(of("c1"), 0, "{command:?}: {:#?}", elements(&host.world));
        assert!(of("c2") > 5, "{command:?}: {:#?}", elements(&host.world));
    }
}

/// Other runtimes have caches elsewhere, and some records are lost.
#[test]
fn what_lives_or_may_live_stays_without_cache_and_list() {
    let host = Host::new();
    let (_living, _) = host.beside_another();
    let unknown = host.attach_all("c1", 8081);
    host.world.host(["sh", "-c", "rm /var/lib/cni/results/*"]);
    host.world.host(["rm", LIST]);
    host.world.host(["rm", &host.record_of("net", "c1")]);
    host.destroy(&unknown);
    // A claim is void without its record.
    let state = || host.world.state().without("link ", "/attachments/@");
    let before = state();
    host.cnibox(&["gc"]).run().silence();
    before.assert_same(&state(), "after gc");
    let refused = host.cnibox(&["gc", "--unknown", "net/c2/eth0"]).run();
    assert!(refused.status == 1 && refused.stderr.contains("it is alive"), "{}", refused.report());
    let said = host.cnibox(&["gc", "--unknown", "net/c1/eth0"]).run().output();
    assert!(said.ends_with("forced by the operator, although it has no record\n"), "{said}");
    let left = elements(&host.world);
    assert!(!left.iter().any(|line| line.contains("net c1")), "{left:#?}");
    assert!(left.iter().any(|line| line.contains("net c2")), "{left:#?}");
}

/// gc of a network leaves those of others, and the records that prove their end.
#[test]
fn a_gc_of_one_network_leaves_what_others_have() {
    let host = Host::new();
    let (_living, before) = host.beside_another();
    let ended = host.attach_all("c1", 8081);
    Loss::CacheAndPlugins.happens(&host);
    host.destroy(&ended);
    let held = host.state();
    let unknown = host.cnibox(&["gc", "other"]).run();
    assert_eq!(unknown.status, 1, "{}", unknown.report());
    held.assert_same(&host.state(), "after gc of another network");
    host.cnibox(&["gc", "net"]).run().output();
    before.assert_same(&host.state(), "after gc of the network");
}

/// An interface that the container's program moved to the host stays there after the end of the container.
#[test]
fn an_interface_on_the_host_goes_with_its_container() {
    let host = Host::new();
    let config = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "tap"}]});
    host.configure("1.conflist", &config);
    host.world.host(["mkdir", "-p", "-m", "700", "/var/lib/cni/results"]);
    let before = host.state();
    let container = host.world.container("c1");
    host.cnibox(&["add", "net", "c1", "--container-id", "c1"]).run().success();
    container.exec(["ip", "link", "set", "eth0", "netns", "1"]);
    host.world.host(["rm", CACHE]);
    host.forget_requests();
    host.configure(
        "1.conflist",
        &json!({"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "loopback"}]}),
    );
    container.destroy();
    let said = host.cnibox(&["gc"]).run().output();
    assert!(
        said.starts_with("removed the rules and links of eth0 of container c1 in network net: "),
        "{said}"
    );
    before.assert_same(&host.state(), "after gc");
}
