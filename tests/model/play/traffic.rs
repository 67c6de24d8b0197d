//! Every tenth step: packets between the host, the containers and the network outside.

use super::Play;
use super::containers::{OUTSIDE, UPLINK};
use crate::model::{Attachment, Holds, Key, bare, fails};
use crate::node::Call;
use crate::step::By;

impl Play {
    /// One attachment that nothing has changed, another one each time.
    pub(super) fn traffic(&mut self) -> Holds {
        if self.model.is_disturbed {
            return Ok(());
        }
        let sound = self.model.attachments.iter().filter(|(key, it)| {
            let main = it.config["plugins"][0].clone();
            let is_routed = main["type"] == "ptp" || main["isGateway"] == true;
            let is_of_host_local = main["ipam"]["type"] == "host-local";
            let is_ours = it.by != By::Go && !it.is_perturbed;
            // With two interfaces in one subnet the container answers through either.
            let is_alone = self.model.attachments.iter().all(|(other, its)| {
                other == *key || its.space != it.space || other.network != key.network
            });
            self.is_up(key) && is_ours && is_routed && is_of_host_local && is_alone
        });
        let sound: Vec<(Key, Attachment)> =
            sound.map(|(key, it)| (key.clone(), it.clone())).collect();
        let Some(index) = usize::try_from(self.steps / 10).ok().map(|it| it % sound.len().max(1))
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
        let has_route = attachment.config["plugins"][0]["ipam"]["routes"][0].is_object();
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
