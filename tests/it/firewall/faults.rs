//! Every request to the kernel fails once, with a bridge to keep apart and a FORWARD that drops, which `faults` does not
//! have: a failed ADD changes no rule, and after a DEL none is left.

use serde_json::json;

use super::{attach, bridge, drop_forwarded, firewall, forget, rules};
use crate::faults::for_every_fault;
use crate::world::World;

const FAULT: &str = "CNIBOX_FAIL_KERNEL";

#[test]
fn a_failed_add_leaves_no_rule() {
    let world = World::new();
    let c1 = world.container("c1");
    drop_forwarded(&world);
    let keys = json!({"ingressPolicy": "isolated"});
    let result = attach(&c1, &bridge("net", 1), keys.clone());
    forget(&c1, "net");
    let before = rules(&world);
    let config = firewall("net", keys, &result);
    for verb in ["ADD", "DEL", "CHECK", "STATUS"] {
        let failures = for_every_fault(|number| {
            if verb != "ADD" {
                c1.add("firewall", &config);
            }
            let outcome = c1.call("firewall", verb, &config).env(FAULT, &number.to_string()).run();
            let failed = outcome.status != 0;
            if failed {
                let report = outcome.report();
                let error = outcome.error();
                let said = format!("{}: {}", error.msg, error.details);
                assert!(said.contains("cannot ") && !said.contains('\n'), "{report}");
                if verb == "ADD" {
                    assert_eq!(rules(&world), before, "{report}");
                }
            }
            forget(&c1, "net");
            assert_eq!(rules(&world), before, "{verb} {number}");
            failed
        });
        assert!(failures > 0, "{verb}");
    }
}
