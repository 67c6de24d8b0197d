//! Random histories. The same seed gives the same steps.

use serde_json::{Value, json};

use crate::random::Random;
use crate::step::{Action, By, Fault, Step};

const NETWORKS: usize = 3;
const CONTAINERS: usize = 5;
const INTERFACES: usize = 2;

/// The bridge to the DHCP server.
pub const LAN: &str = "lan";

/// System calls at which a call is killed, with about the number of their uses in an ADD.
const KILLED: [(&str, usize); 13] = [
    ("write", 9),
    ("pwrite64", 3),
    ("sendto", 9),
    ("recvfrom", 14),
    ("rename", 4),
    ("unlink", 5),
    ("linkat", 2),
    ("mkdir", 3),
    ("flock", 9),
    ("setns", 5),
    ("ioctl", 5),
    ("openat", 30),
    ("close", 32),
];
/// How often one of them is a write: the others change less, or nothing, and a file can be half written.
const WRITES_PERCENT: usize = 30;

#[derive(Clone, Debug)]
pub struct Options {
    pub steps: usize,
    /// Each call of a container is by another runtime. Rules are known that the product cannot keep then: a runtime does not
    /// know the records of others.
    pub all: bool,
    /// Kinds of steps that are left out.
    pub without: Vec<String>,
}

/// The kinds of steps with their weights.
const WEIGHTS: [(Action, usize); 47] = [
    (Action::Race, 6),
    (Action::Beside, 3),
    (Action::GcOfNoProc, 1),
    (Action::HookByPath, 1),
    (Action::DamageRecord, 1),
    (Action::Network, 3),
    (Action::Mounted, 8),
    (Action::Process, 8),
    (Action::Shared, 2),
    (Action::End, 6),
    (Action::Unmount, 2),
    (Action::Replace, 3),
    (Action::Leave, 3),
    (Action::Nest, 2),
    (Action::Add, 40),
    (Action::Del, 16),
    (Action::Check, 8),
    (Action::Gc, 12),
    (Action::Status, 2),
    (Action::Doctor, 3),
    (Action::Confirm, 4),
    (Action::Reconcile, 4),
    (Action::Storm, 1),
    (Action::Run, 3),
    (Action::Attachments, 3),
    (Action::Reboot, 1),
    (Action::Rename, 2),
    (Action::Down, 1),
    (Action::Readdress, 2),
    (Action::Flush, 1),
    (Action::Remac, 1),
    (Action::Vanish, 2),
    (Action::NftFlush, 1),
    (Action::LinkDel, 1),
    (Action::RmCache, 1),
    (Action::Damage, 1),
    (Action::RmReservation, 1),
    (Action::Litter, 1),
    (Action::Full, 1),
    (Action::ReadOnly, 1),
    (Action::GcOfPid, 1),
    (Action::GcOfMount, 1),
    (Action::GcOfNet, 1),
    (Action::Dhcp, 4),
    (Action::StopDaemon, 3),
    (Action::Clock, 1),
    (Action::Forge, 1),
];

/// A history. Half of them are without other writers, so that the strict rules hold to the end.
pub fn of_seed(seed: u64, options: &Options) -> Vec<Step> {
    let mut random = Random::new(seed);
    let is_calm = random.one_in(2);
    let has_faults = random.one_in(2);
    let is_left_out = |action: Action| {
        let is_loud = is_calm && is_of_others(action);
        is_loud || options.without.iter().any(|word| word == action.word())
    };
    let weights: Vec<(Action, usize)> =
        WEIGHTS.iter().copied().filter(|(action, _)| !is_left_out(*action)).collect();
    let mut by: Vec<By> = (0..CONTAINERS).map(|_| runtime(&mut random, options)).collect();
    let mut steps = Vec::new();
    for network in 0..NETWORKS {
        steps.push(Step { network, ..network_step(&mut random, network) });
    }
    for container in 0..CONTAINERS {
        let action = *random.pick(&[Action::Mounted, Action::Process]);
        steps.push(Step { container, ..Step::new(action) });
    }
    while steps.len() < options.steps {
        let action = random.weighted(&weights);
        let mut step = step(&mut random, action, has_faults);
        if action == Action::Race {
            // A bit for each container that cnibox itself attaches.
            step.number = (0..CONTAINERS)
                .filter(|container| by[*container] == By::Runtime)
                .map(|container| 1 << container)
                .sum();
        }
        if matches!(action, Action::Mounted | Action::Process) && random.one_in(4) {
            let next = replacement(&mut random, by[step.container]);
            if !options.without.iter().any(|word| word == next.word()) {
                by[step.container] = next;
            }
        }
        // A runtime deletes what it added, unless all mix.
        let caller = if options.all { runtime(&mut random, options) } else { by[step.container] };
        let leaves_records = step.fault != Fault::None
            && matches!(action, Action::Gc | Action::Doctor | Action::Confirm)
            || matches!(action, Action::Full | Action::ReadOnly);
        let step = Step { by: by_of(action, caller), ..step };
        let next = after_fault(&mut random, &step, options);
        steps.push(step);
        if let Some(next) = next {
            by[next.container] = next.by;
            steps.push(next);
        }
        // The record of a failed removal would count for a later attachment of libcni, too.
        if leaves_records && !options.all {
            steps.push(Step::new(Action::Gc));
        }
    }
    steps
}

fn runtime(random: &mut Random, options: &Options) -> By {
    let all = [(By::Runtime, 6), (By::Libcni, 4), (By::Hook, 1), (By::Go, 1)];
    let all: Vec<(By, usize)> = all
        .into_iter()
        .filter(|(by, _)| !options.without.iter().any(|word| word == by.word()))
        .collect();
    random.weighted(&all)
}

/// The operator replaces the runtime of a container, or the plugins of libcni, those of Go by ours or back.
fn replacement(random: &mut Random, by: By) -> By {
    match by {
        By::Libcni => *random.pick(&[By::Go, By::Runtime]),
        By::Runtime | By::Go => By::Libcni,
        By::Hook => By::Hook,
    }
}

/// The step after an ADD or a DEL that failed or was killed. The runtime deletes the attachment; or the operator replaces cnibox,
/// and libcni adds the same: then the record of the call is of an earlier attachment.
fn after_fault(random: &mut Random, step: &Step, options: &Options) -> Option<Step> {
    let is_call = matches!(step.action, Action::Add | Action::Del) && step.by != By::Hook;
    if step.fault == Fault::None || !is_call {
        return None;
    }
    let next = Step { fault: Fault::None, ..step.clone() };
    let has_libcni = !options.without.iter().any(|word| word == By::Libcni.word());
    match random.below(4) {
        0 | 1 => Some(Step { action: Action::Del, ..next }),
        2 if has_libcni && step.by == By::Runtime => {
            Some(Step { action: Action::Add, by: By::Libcni, ..next })
        }
        _ => None,
    }
}

fn by_of(action: Action, by: By) -> By {
    match action {
        Action::Add
        | Action::Del
        | Action::Beside
        | Action::StopDaemon
        | Action::Forge
        | Action::Dhcp
        | Action::Full
        | Action::ReadOnly => by,
        Action::Check | Action::Gc if by == By::Libcni => by,
        _ => By::Runtime,
    }
}

/// Steps after which less can be said of all attachments.
fn is_of_others(action: Action) -> bool {
    matches!(
        action,
        Action::NftFlush
            | Action::LinkDel
            | Action::RmCache
            | Action::Damage
            | Action::DamageRecord
            | Action::RmReservation
            | Action::Litter
    )
}

fn step(random: &mut Random, action: Action, has_faults: bool) -> Step {
    if action == Action::Network {
        let network = random.below(NETWORKS);
        return Step { network, ..network_step(random, network) };
    }
    let mut step = Step::new(action);
    step.network = random.below(NETWORKS);
    step.container = random.below(CONTAINERS);
    step.interface = random.below(INTERFACES);
    step.number = random.next() % 64;
    if action == Action::Shared {
        step.number %= CONTAINERS as u64;
    }
    let can_fail = matches!(
        action,
        Action::Add
            | Action::Del
            | Action::Check
            | Action::Gc
            | Action::Status
            | Action::Doctor
            | Action::Confirm
            | Action::Reconcile
            | Action::Attachments
    );
    if has_faults && can_fail && random.one_in(4) {
        step.fault = fault(random);
    }
    step
}

fn fault(random: &mut Random) -> Fault {
    let small = |random: &mut Random, end: usize| u32::try_from(random.below(end)).unwrap_or(0) + 1;
    match random.below(8) {
        0..3 => {
            let is_write = random.below(100) < WRITES_PERCENT;
            let (name, uses) = if is_write { KILLED[0] } else { *random.pick(&KILLED) };
            Fault::Kill(name.into(), small(random, uses))
        }
        3..6 => Fault::Kernel(small(random, 24)),
        6 => Fault::File(small(random, 20)),
        _ => Fault::Descriptors(small(random, 12) + 3),
    }
}

fn network_step(random: &mut Random, network: usize) -> Step {
    Step { config: list(random, network), ..Step::new(Action::Network) }
}

/// A list of plugins of this kernel.
fn list(random: &mut Random, network: usize) -> Value {
    let version = *random.pick(&["0.3.1", "0.4.0", "1.0.0", "1.1.0", "1.1.0", "1.1.0"]);
    let kinds = [("bridge", 6), ("ptp", 3), ("macvlan", 1), ("tap", 1), ("host-device", 1)];
    let mut kind = random.weighted(&kinds);
    // A host has one subnet of flannel.
    if network == NETWORKS - 1 && random.one_in(5) {
        kind = "flannel";
    }
    let mut main = json!({"type": kind});
    let ipam = ipam(random, network, kind);
    let has_addresses = ipam != Value::Null;
    let is_of_lan = ipam["type"] == "dhcp";
    if kind == "flannel" {
        main["delegate"] = json!({"bridge": "brf", "isDefaultGateway": random.one_in(2)});
    } else if has_addresses {
        if ipam["type"] == "static" {
            main["capabilities"] = json!({"ips": true});
            main["model"] = format!("10.{}.1", network + 1).into();
            // The other bridge has the gateway of another subnet.
            main["bridge"] = format!("br{network}s").into();
        }
        main["ipam"] = ipam;
    }
    let mut flag = |main: &mut Value, name: &str| main[name] = random.one_in(2).into();
    match kind {
        "bridge" => {
            if is_of_lan {
                main["bridge"] = LAN.into();
            } else if main["bridge"].is_null() {
                main["bridge"] = format!("br{network}").into();
            }
            main["isGateway"] = (has_addresses && !is_of_lan).into();
            for name in ["ipMasq", "hairpinMode", "macspoofchk"] {
                flag(&mut main, name);
            }
        }
        "ptp" => flag(&mut main, "ipMasq"),
        "macvlan" => main["master"] = if is_of_lan { LAN } else { "up0" }.into(),
        "host-device" => main["device"] = format!("card{network}").into(),
        _ => {}
    }
    if !has_addresses && kind != "flannel" {
        main["ipMasq"] = false.into();
    }
    let mut plugins = vec![main];
    let is_routed = ["bridge", "ptp"].contains(&kind);
    if is_routed && has_addresses && random.one_in(2) {
        plugins.push(json!({"type": "portmap", "capabilities": {"portMappings": true}}));
    }
    if is_routed && has_addresses && random.one_in(2) {
        plugins.push(json!({"type": "firewall"}));
    }
    if is_routed && random.one_in(3) {
        let (rate, burst) = (100_000_000, 10_000_000);
        plugins.push(json!({
            "type": "bandwidth", "ingressRate": rate, "ingressBurst": burst, "egressRate": rate, "egressBurst": burst,
        }));
    }
    if random.one_in(3) {
        let sysctl = json!({"net.ipv4.conf.IFNAME.arp_notify": "1"});
        plugins.push(json!({"type": "tuning", "mtu": 1400, "sysctl": sysctl}));
    }
    if has_addresses && !is_of_lan && is_routed && random.one_in(5) {
        plugins.push(json!({"type": "sbr"}));
    }
    json!({"cniVersion": version, "name": format!("n{network}"), "plugins": plugins})
}

fn ipam(random: &mut Random, network: usize, kind: &str) -> Value {
    let four = json!([{"subnet": format!("10.{}.0.0/28", network + 1)}]);
    let six = json!([{"subnet": format!("fd00:{}::/64", network + 1)}]);
    // The way back to the network outside, of those links that lead there.
    let is_routed = ["bridge", "ptp"].contains(&kind);
    let gateway = if is_routed { json!([{"dst": "192.0.2.0/24"}]) } else { json!([]) };
    match random.below(10) {
        9 if ["bridge", "macvlan"].contains(&kind) => json!({"type": "dhcp"}),
        8 if ["bridge", "macvlan"].contains(&kind) => json!({"type": "static"}),
        0..4 => json!({"type": "host-local", "ranges": [four], "routes": gateway}),
        4 | 5 => json!({"type": "host-local", "ranges": [four, six], "routes": gateway}),
        6 => json!({"type": "host-local", "ranges": [six]}),
        _ => Value::Null,
    }
}
