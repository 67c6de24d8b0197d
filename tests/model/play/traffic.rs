//! Every tenth step: packets between the host, the containers and the network outside.

use super::Play;
use super::containers::{OUTSIDE, UPLINK};
use crate::history::LAN;
use crate::model::{Attachment, Holds, Key, bare, fails};
use crate::node::Call;
use crate::step::By;

impl Play {
    /// One attachment that nothing has changed, another one each time.
    pub(super) fn traffic(&mut self) -> Holds {
        if self.model.is_disturbed {
            return Ok(());
        }
        let sound = self.model.attachments.iter().filter(|(key, attachment)| {
            let main = attachment.config["plugins"][0].clone();
            let is_of_lan = main["bridge"] == LAN;
            let is_routed = main["type"] == "ptp" || main["isGateway"] == true || is_of_lan;
            let is_of_host_local = main["ipam"]["type"] == "host-local";
            let is_of_server = attachment.has_dhcp() && !self.is_moving(attachment);
            let is_ours = attachment.by != By::Go && !attachment.is_perturbed;
            // The container answers through another interface if that is in the same subnet, or has the route; a changed
            // one may lead nowhere.
            let is_alone = self.model.attachments.iter().all(|(other, its)| {
                let is_in_subnet =
                    other.network == key.network || (its.has_dhcp() && attachment.has_dhcp());
                let may_answer = is_in_subnet || its.is_perturbed;
                other == *key || its.space != attachment.space || !may_answer
            });
            self.is_up(key)
                && is_ours
                && is_routed
                && (is_of_host_local || is_of_server)
                && is_alone
        });
        let sound: Vec<(Key, Attachment)> =
            sound.map(|(key, attachment)| (key.clone(), attachment.clone())).collect();
        let Some(index) =
            usize::try_from(self.steps / 10).ok().map(|number| number % sound.len().max(1))
        else {
            return Ok(());
        };
        let Some((key, attachment)) = sound.get(index) else { return Ok(()) };
        for address in &attachment.addresses {
            self.ping(key, bare(address))?;
        }
        self.published(key, attachment)
    }

    fn ping(&mut self, key: &Key, address: &str) -> Holds {
        *self.counts.entry("ping".into()).or_default() += 1;
        // The kernel takes up to 8 s to ask again for a neighbour with an interface that is gone.
        let call = Call::new(&["ping", "-n", "-q", "-c", "1", "-w", "25", "-i", "0.2", address]);
        let outcome = self.node.run(&call);
        self.note(&outcome)?;
        if outcome.status == 0 {
            return Ok(());
        }
        fails(
            "the host reaches a living container",
            format!("{}: {}", key.owner(), outcome.report()),
        )
    }

    fn published(&mut self, key: &Key, attachment: &Attachment) -> Holds {
        let port = attachment.capabilities["portMappings"][0]["hostPort"].as_u64();
        let has_four = attachment.addresses.iter().any(|address| address.contains('.'));
        // Without the route the answers do not find the way back.
        let has_route = attachment.config["plugins"][0]["ipam"]["routes"][0].is_object()
            || attachment.has_dhcp();
        let Some(port) = port.filter(|_| has_four && has_route) else { return Ok(()) };
        *self.counts.entry("connection to a published port".into()).or_default() += 1;
        let space = self.model.spaces[attachment.space].path.clone();
        let to = format!("{UPLINK}:{port}");
        let probe = ["/proc/1/exe", "--probe", OUTSIDE, &to, &space, "80"];
        let outcome = self.node.run(&Call::new(&probe));
        self.note(&outcome)?;
        if outcome.status == 0 {
            return Ok(());
        }
        fails("a published port is reached", format!("{}: {}", key.owner(), outcome.report()))
    }
}
