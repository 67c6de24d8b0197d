//! A process whose boot id a mount covers, as in a container of systemd-nspawn or LXC: another id is no proof of another boot.
//! `evidence` has calls of gc, doctor and ipam with such an id among its views.

use serde_json::{Value, json};

use super::evidence::{Maker, host};
use crate::world::{COVERED_BOOT, Call, Container, with};

/// The mounts that podman makes for a container without privileges. They do not cover the boot id.
const READ_ONLY_SYSCTLS: [&str; 6] = [
    "unshare",
    "--mount",
    "sh",
    "-ec",
    r#"mount --bind /proc/sys /proc/sys
    mount -o remount,bind,ro /proc/sys
    exec "$@""#,
    "sh",
];

type By = for<'w> fn(Call<'w>) -> Call<'w>;

fn host_itself(call: Call<'_>) -> Call<'_> {
    call
}

fn covered(call: Call<'_>) -> Call<'_> {
    call.under(&COVERED_BOOT)
}

/// The list with the plugin of a configuration.
fn list_of(config: &Value) -> Value {
    let plugin = json!({"type": config["type"], "ipam": config["ipam"]});
    json!({"cniVersion": config["cniVersion"], "name": config["name"], "plugins": [plugin]})
}

#[test]
fn no_address_of_a_living_container_is_given_away_on_a_full_range() {
    let ways: [(By, By); 3] = [(host_itself, covered), (covered, host_itself), (covered, covered)];
    for (index, (earlier, later)) in ways.into_iter().enumerate() {
        let host = host();
        let ipam = json!({"type": "host-local", "subnet": "10.1.0.0/29", "rangeEnd": "10.1.0.3"});
        let config = json!({"cniVersion": "1.0.0", "name": "full", "type": "ptp", "ipam": ipam});
        host.configure("full.conflist", &list_of(&config));
        let [c1, c2, c3] = ["c1", "c2", "c3"].map(|name| host.world.container(name));
        for container in [&c1, &c2] {
            earlier(container.call("ptp", "ADD", &config)).run().success();
        }
        let before = host.world.state_with(&[&c1, &c2]);
        let refused = later(c3.call("ptp", "ADD", &config)).run();
        refused.fails(999, &["no IP addresses available"]);
        for words in [&["ipam", "release", "--leaks"][..], &["gc"], &["doctor", "--fix", "--yes"]] {
            later(host.cnibox(words)).run();
            let after = host.world.state_with(&[&c1, &c2]);
            before.assert_same(&after, &format!("after {words:?} of way {index}"));
        }
    }
}

#[test]
fn after_a_reboot_a_read_only_proc_still_proves_it() {
    let host = host();
    host.world.boot(1);
    let c1 = host.world.container("c1");
    host.attach(Maker::Cnibox, "c1", &c1.netns());
    c1.destroy();
    host.world.boot(2);
    let attachments =
        |program: &[&str]| host.cnibox(&["attachments"]).under(program).run().report();
    let unknown = attachments(&COVERED_BOOT);
    assert!(unknown.contains(": unknown: "), "{unknown}");
    let gc = host.cnibox(&["gc"]).under(&COVERED_BOOT).run();
    assert_eq!(host.ids(), ["c1"], "{}", gc.report());
    let gone = attachments(&READ_ONLY_SYSCTLS);
    assert!(gone.contains(": gone: an earlier boot of this host made it"), "{gone}");
    let gc = host.cnibox(&["gc"]).under(&READ_ONLY_SYSCTLS).run();
    assert_eq!(host.ids(), [""; 0], "{}", gc.report());
}

/// Without it, nothing restores the attachment of a record that was written there, and nothing proves its end.
#[test]
fn a_record_gets_the_boot_where_the_id_is_not_covered() {
    for maker in [Maker::Cnibox, Maker::Go] {
        let host = host();
        let c1 = host.world.container("c1");
        if maker == Maker::Cnibox {
            let add = ["add", "net", &c1.netns(), "--container-id", "c1"];
            covered(host.cnibox(&add)).run().success();
        } else {
            host.attach(maker, "c1", &c1.netns());
            // It writes the record of an attachment without one.
            covered(host.cnibox(&["attachments"])).run().output();
        }
        let file = host.world.path("/var/lib/cni/attachments/net+c1+eth0");
        let record = || std::fs::read_to_string(&file).unwrap();
        assert!(record().contains("\"identity\":\"covered-"), "{maker:?}: {}", record());
        host.cnibox(&["reconcile"]).run().output();
        assert!(!record().contains("covered-"), "{maker:?}: {}", record());
        c1.destroy();
        assert_eq!(host.life("c1"), "gone", "{maker:?}: {}", record());
        host.cnibox(&["gc"]).run().output();
        assert_eq!(host.ids(), [""; 0], "{maker:?}");
    }
}

/// Nothing but the DEL removes the link, because it is in the container only.
#[test]
fn a_del_enters_the_container_and_no_later_one_at_its_path() {
    let ipam = json!({"type": "host-local", "subnet": "10.1.0.0/24"});
    let config = json!({"cniVersion": "1.0.0", "name": "inner", "type": "tap", "ipam": ipam});
    for is_tool in [false, true] {
        let host = host();
        host.configure("inner.conflist", &list_of(&config));
        let add = |container: &Container<'_>| match is_tool {
            true => host.cnibox(&["add", "inner", "c1", "--container-id", "c1"]).run().success(),
            false => container.add("tap", &config),
        };
        let del = |container: &Container<'_>, result: &Value| {
            let config = with(&config, json!({"prevResult": result}));
            let call = match is_tool {
                true => host.cnibox(&["del", "inner", "c1", "--container-id", "c1"]),
                false => container.call("tap", "DEL", &config),
            };
            covered(call).run().silence();
        };
        let has_link =
            |container: &Container<'_>| container.exec(["ip", "-o", "link"]).contains("eth0");
        let c1 = host.world.container("c1");
        let result = add(&c1);
        assert!(has_link(&c1));
        del(&c1, &result);
        assert!(!has_link(&c1), "by the tool: {is_tool}");
        let result = add(&c1);
        c1.destroy();
        let later = host.world.container("c1");
        later.exec(["ip", "tuntap", "add", "eth0", "mode", "tap"]);
        del(&later, &result);
        assert!(has_link(&later), "by the tool: {is_tool}");
    }
}
