//! Keys that change between ADD and DEL: the lease is released in both directions.

use serde_json::json;

use super::servers::Kea;
use super::{Daemon, Site};
use crate::toggle::subjects;
use crate::world::World;

#[test]
fn a_del_releases_a_lease_that_was_got_with_other_keys() {
    let world = World::new();
    let site = Site::new(&world);
    let kea = Kea::start(&site.outside, "sw", json!({}));
    let _daemon = Daemon::new(&world);
    let c1 = world.container("c1");
    site.attach(&c1, "10.1.0.200/24");
    let subject = subjects().into_iter().find(|subject| subject.plugin == "dhcp").unwrap();
    for case in &subject.cases {
        let (with, without) = (subject.config_with(case), subject.config_without(case));
        for [first, second] in [[&with, &without], [&without, &with]] {
            c1.add("dhcp", first);
            assert_eq!(kea.leased().len(), 1, "{first}");
            c1.del("dhcp", second);
            world.eventually("the lease is released", || kea.leased().is_empty());
        }
    }
}
