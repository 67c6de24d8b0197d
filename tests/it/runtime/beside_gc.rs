//! An ADD by another runtime beside `gc`: each of them sees the other, whatever the moment.

use serde_json::{Value, json};

use super::{Host, list};
use crate::world::{Call, Outcome, is_full, with};

/// `gc` waits at the entry of each of these system calls.
const DELAYED: &str = "inject=rename,renameat,renameat2,unlink,unlinkat:delay_enter=";

fn config(kind: &str) -> Value {
    let ipam =
        json!({"type": "static", "addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}]});
    let common = json!({"cniVersion": "1.0.0", "name": "net", "type": kind});
    match kind {
        "bridge" => with(&common, json!({"bridge": "cni0", "isGateway": true, "ipam": ipam})),
        _ => with(
            &common,
            json!({"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}}),
        ),
    }
}

fn network() -> Value {
    let mut network = list("1.0.0", &[]);
    network["plugins"] =
        json!([config("bridge"), {"type": "portmap", "capabilities": {"portMappings": true}}]);
    network
}

impl Host {
    fn call_of<'a>(&'a self, kind: &str, verb: &str, config: &Value) -> Call<'a> {
        let call = self.world.call(kind, verb, config).env("CNI_CONTAINERID", "c1");
        call.env("CNI_NETNS", "/run/netns/c1").env("CNI_IFNAME", "eth0")
    }

    /// The ADD of a plugin, again after each code 11.
    fn add_until_it_is_free(&self, kind: &str, config: &Value) -> Value {
        let try_again =
            |outcome: &Outcome| outcome.status != 0 && outcome.error_object().code == 11;
        let mut outcome = self.call_of(kind, "ADD", config).run();
        for _ in 0..20 {
            if !try_again(&outcome) {
                break;
            }
            outcome = self.call_of(kind, "ADD", config).run();
        }
        outcome.success()
    }

    /// Attaches the container as libcni does it.
    fn attach_by_calls(&self) {
        let result = self.add_until_it_is_free("bridge", &config("bridge"));
        let chained = with(&config("portmap"), json!({"prevResult": result}));
        let result = self.add_until_it_is_free("portmap", &chained);
        self.remember("c1", "/run/netns/c1", &network(), &result);
    }
}

#[test]
fn an_add_beside_a_gc_keeps_its_interface_and_its_port() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    let mut container = host.world.container("c1");
    host.attach_by_calls();
    let (rounds, delay_us) = if is_full() { (20, 3_000_000) } else { (4, 500_000) };
    let delayed = format!("{DELAYED}{delay_us}");
    for round in 0..rounds {
        container.destroy();
        let gc = host.cnibox(&["gc"]);
        let gc = gc.under(&["strace", "-f", "-qq", "-o", "/run/trace", "-e", &delayed]).start();
        container = host.world.container("c1");
        // The first ADD begins before gc has decided, the later ones after it.
        host.world.host(["sleep", &format!("0.{}", round * 2 % 10)]);
        host.attach_by_calls();
        let report = gc.finish().report();
        assert_eq!(container.addresses("eth0"), ["10.1.0.2/24"], "{report}");
        container.ping("10.1.0.1");
        let rules = host.world.host(["nft", "list", "ruleset"]);
        assert!(rules.contains("10.1.0.2 . 80"), "{rules}\n{report}");
        assert!(host.world.path(host.record_of("net", "c1")).exists(), "{report}");
        host.cnibox(&["gc"]).run().silence();
        container.ping("10.1.0.1");
    }
}
