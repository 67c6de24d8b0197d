//! `cnibox gc --confirm`: two runs at least 10 minutes apart agree before anything is removed.

use serde_json::{Value, json};

use super::evidence::{MAKERS, Maker, host};
use super::{Host, network};
use crate::world::{Container, parse};

const MEMORY: &str = "/run/cnibox/confirm";

impl Host {
    /// As if the earlier runs with --confirm were so many seconds ago.
    pub(super) fn wait(&self, seconds: i64) {
        if seconds == 0 || !self.world.path(MEMORY).exists() {
            return;
        }
        let Ok(mut memory) = serde_json::from_str::<Value>(&self.world.read(MEMORY)) else {
            return;
        };
        let move_back = |time: &mut Value| *time = (time.as_i64().unwrap() - seconds).into();
        move_back(&mut memory["run"]);
        for found in memory["found"].as_array_mut().unwrap() {
            move_back(&mut found["since"]);
        }
        self.world.write(MEMORY, memory.to_string());
    }

    /// The output of `gc --confirm` some seconds after the last one.
    #[track_caller]
    fn confirm(&self, seconds: i64) -> String {
        self.wait(seconds);
        self.cnibox(&["gc", "--confirm"]).run().output()
    }

    /// Our plugins have worked in this PID namespace: then an attachment of others can be gone.
    fn attach_living(&self) -> Container<'_> {
        let container = self.world.container("living");
        self.attach(Maker::Libcni, "living", &container.netns());
        container
    }

    /// An attachment of a container that has ended.
    fn ended(&self, maker: Maker, id: &str) {
        let container = self.world.container(id);
        self.attach(maker, id, &container.netns());
        container.destroy();
    }
}

fn count(text: &str, part: &str) -> usize {
    text.lines().filter(|line| line.contains(part)).count()
}

#[test]
fn the_second_run_after_ten_minutes_removes_what_both_have_found() {
    let host = host();
    let living = host.attach_living();
    for maker in MAKERS {
        host.ended(maker, &format!("{maker:?}").to_lowercase());
    }
    let all = ["cnibox", "go", "libcni", "living"];
    let addresses = || host.world.host(["ls", "/var/lib/cni/networks/net"]);
    let before = addresses();
    for seconds in [0, 300, 200] {
        let said = host.confirm(seconds);
        assert_eq!((count(&said, " waits for a run in "), said.lines().count()), (3, 3), "{said}");
        let line = "eth0 of container go in network net waits for a run in ";
        let proof =
            " s or later: it has no record, and nothing is at the path of its network namespace\n";
        assert!(said.contains(line) && said.contains(proof), "{said}");
        assert_eq!((host.ids(), addresses()), (all.map(str::to_owned).to_vec(), before.clone()));
    }
    // This one is found for the first time.
    host.ended(Maker::Libcni, "late");
    let said = host.confirm(101);
    for id in ["cnibox", "go", "libcni"] {
        let line = format!("removed eth0 of container {id} from network net: ");
        assert!(said.contains(&line), "{said}");
    }
    assert_eq!((count(&said, "removed"), count(&said, "late in network net waits")), (3, 1));
    assert_eq!(host.ids(), ["late", "living"]);
    assert_eq!(count(&host.confirm(700), "removed eth0 of container late"), 1);
    assert_eq!(host.confirm(700), "");
    assert_eq!(host.ids(), ["living"]);
    assert_eq!(addresses().lines().filter(|name| name.starts_with("10.")).count(), 1);
    assert_eq!(living.addresses("eth0").len(), 1);
}

#[test]
fn an_attachment_that_was_made_again_in_between_waits_again() {
    for maker in MAKERS {
        let host = host();
        host.attach_living();
        host.ended(maker, "c1");
        host.confirm(0);
        host.cnibox(&["del", "net", "c1", "--container-id", "c1"]).run().silence();
        host.ended(maker, "c1");
        assert_eq!(count(&host.confirm(700), " waits for a run in 600 s"), 1, "{maker:?}");
        assert_eq!(host.ids(), ["c1", "living"]);
        assert_eq!(count(&host.confirm(700), "removed eth0 of container c1"), 1, "{maker:?}");
        assert_eq!(host.ids(), ["living"]);
    }
}

#[test]
fn after_a_reboot_or_with_a_damaged_file_a_run_is_a_first_run() {
    let host = host();
    host.world.boot(1);
    host.attach_living();
    host.ended(Maker::Go, "c1");
    assert_eq!(count(&host.confirm(0), " waits for a run in 600 s"), 1);
    host.world.boot(2);
    assert_eq!(count(&host.confirm(700), " waits for a run in 600 s"), 1);
    for damage in ["", "{", "[]", "\0", "{\"boot\":7}"] {
        host.world.write(MEMORY, damage);
        assert_eq!(count(&host.confirm(0), " waits for a run in 600 s"), 1, "{damage}");
    }
    // A link is replaced, and not followed.
    host.world.write("/run/precious", "precious");
    host.world.host(["ln", "-sf", "/run/precious", MEMORY]);
    assert_eq!(count(&host.confirm(0), " waits for a run in 600 s"), 1);
    assert_eq!(host.world.read("/run/precious"), "precious");
    assert_eq!(host.ids(), ["c1", "living"]);
    assert_eq!(count(&host.confirm(700), "removed"), 1);
}

#[test]
fn a_change_of_the_proof_waits_again() {
    let host = host();
    host.ended(Maker::Libcni, "c1");
    host.confirm(0);
    // Without its record the proof is another one.
    host.world.host(["rm", &host.record_of("net", "c1")]);
    let said = host.confirm(700);
    assert!(said.contains(" waits for a run in 600 s or later: it has no record"), "{said}");
    assert_eq!(count(&host.confirm(700), "removed"), 1);
}

#[test]
fn reservations_and_rules_that_no_cache_has_are_confirmed_too() {
    let host = Host::new();
    let network = network();
    host.configure("1.conflist", &network);
    let living = host.world.container("living");
    host.cnibox(&["add", "net", "living", "-p", "8081:80"]).run().success();
    host.ended(Maker::Cnibox, "c1");
    host.cnibox(&["add", "net", "c1", "-p", "8080:80", "--create"]).run().success();
    // Another program lost its cache.
    host.world.host([
        "sh",
        "-c",
        "rm /var/lib/cni/results/net-*c1*; umount /run/netns/c1; rm /run/netns/c1",
    ]);
    host.forget_requests();
    host.world.host(["sh", "-c", "touch -d '-2 minutes' /var/lib/cni/networks/net/10.*"]);
    host.world.eventually("the host's end is gone", || host.world.ports_of("cni0").len() == 1);
    let first = host.confirm(0);
    assert!(
        count(&first, "10.1.0.") > 0 && count(&first, "removed") + count(&first, "released") == 0
    );
    host.wait(700);
    let said = parse(&host.cnibox(&["gc", "--confirm", "--json"]).run().output());
    let all: Vec<&str> = said["remains"]
        .as_array()
        .unwrap()
        .iter()
        .map(|object| object["what"].as_str().unwrap())
        .collect();
    assert!(
        all.iter().any(|what| what.starts_with("the rules and links of eth0 of container ")),
        "{said:#}"
    );
    assert!(all.iter().any(|what| what.starts_with("10.1.0.")), "{said:#}");
    assert_eq!(
        (said["waiting"].as_array().unwrap().len(), said["dryRun"].as_bool()),
        (0, Some(false))
    );
    assert_eq!(host.confirm(700), "");
    assert_eq!(living.addresses("eth0").len(), 1);
    let left = host.world.host(["ls", "/var/lib/cni/networks/net"]);
    assert_eq!(left.lines().filter(|name| name.starts_with("10.")).count(), 1, "{left}");
    let rules = host.world.host(["nft", "list", "ruleset"]);
    assert!(rules.contains("8081") && !rules.contains("8080"), "{rules}");
}

#[test]
fn a_named_namespace_of_a_killed_process_waits_like_its_attachment() {
    let host = Host::new();
    host.recorder("hangs", "touch /run/hangs; exec sleep 300");
    host.configure("1.conflist", &super::list("1.1.0", &["hangs"]));
    let running = host.cnibox(&["add", "net", "web", "--create"]).start();
    let hangs = host.world.path("/run/hangs");
    host.world.eventually("the plugin runs", || hangs.exists());
    host.world.host(["kill", "-KILL", &running.pid_in_world().to_string()]);
    running.finish();
    host.recorder("hangs", "");
    let said = host.confirm(0);
    assert_eq!((count(&said, " waits for "), said.lines().count()), (2, 2), "{said}");
    assert!(host.world.path("/run/netns/web").exists());
    let said = host.confirm(700);
    assert!(said.contains("removed eth0 of container "), "{said}");
    assert!(said.ends_with("removed namespace /run/netns/web: its process died\n"), "{said}");
    assert!(!host.world.path("/run/netns/web").exists());
    assert_eq!(host.kept(), [MEMORY]);
}

#[test]
fn a_run_of_one_network_and_a_dry_run_leave_the_memory_of_others() {
    let host = host();
    host.ended(Maker::Libcni, "c1");
    host.confirm(0);
    host.wait(300);
    let unknown = host.cnibox(&["gc", "--confirm", "other"]).run();
    assert_eq!(unknown.stderr, "cnibox: there is no network other\n", "{}", unknown.report());
    let dry = host.cnibox(&["gc", "--confirm", "--dry-run", "net"]).run().output();
    assert_eq!(count(&dry, " waits for a run in "), 1);
    host.wait(400);
    let dry = host.cnibox(&["gc", "--confirm", "--dry-run"]).run().output();
    assert!(dry.starts_with("would remove eth0 of container c1 from network net: "), "{dry}");
    assert_eq!(host.ids(), ["c1"]);
    assert_eq!(count(&host.confirm(0), "removed"), 1);
}

#[test]
fn an_option_that_removes_without_a_proof_excludes_confirm() {
    let host = host();
    for wrong in [&["--uncached"][..], &["--unknown", "net/c1/eth0"]] {
        let outcome = host.cnibox(&[&["gc", "--confirm"], wrong].concat()).run();
        assert_eq!(outcome.status, 2, "{}", outcome.report());
    }
    let said = parse(&host.cnibox(&["gc", "--confirm", "--json"]).run().output());
    assert_eq!(said, json!({"dryRun": false, "removed": [], "remains": [], "waiting": []}));
    let said = parse(&host.cnibox(&["gc", "--json"]).run().output());
    assert_eq!(said, json!({"dryRun": false, "removed": [], "remains": []}));
}
