//! Many calls in one process, in several threads: `threads THREADS ROUNDS` makes so many containers, and each thread adds
//! its own to one bridge network and deletes it again, ROUNDS times. Run it in a network and mount namespace of its own.
//!
//! `threads runtime ROUNDS` does the same in one thread through the runtime, with a list of plugins. `threads addresses ROUNDS`
//! does it with a list that makes no link, and so in a tenth of the time.
//!
//! `threads transaction` makes one transaction of the parts of two plugins, of which the kernel refuses one.
//!
//! It fails if a call fails, if two containers have one address at the same time, or if descriptors or memory grow. It is a
//! program rather than a test so that it also runs as the shipped executable is built, with musl's small stacks and its
//! allocator.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use cnibox::cni::json::Json;
use cnibox::cni::request::{Request, Verb};
use cnibox::error::{Error, Result};
use cnibox::kernel::flock::Turns;
use cnibox::kernel::sandbox;
use cnibox::names::{Attachment, ContainerId, IfName};
use cnibox::netlink::nft::{Batch, Family, Nft, Object, Table};
use cnibox::plugin::{Context, Session};
use cnibox::plugins::PLUGINS;
use cnibox::runtime::Runtime;
use cnibox::runtime::chain::CallSettings;
use cnibox::runtime::conf::Network;
use cnibox::runtime::lifecycle::{Choice, NewAttachment, Target};
use parking_lot::Mutex;

/// The rounds before the first look at descriptors and memory: caches are filled by then.
const WARM_UP: usize = 20;
/// How much the resident memory may differ between the two looks, in KiB: the C library keeps freed pages for each thread.
const GROWTH_MAX_KIB: usize = 2048;

const NETWORK: &str = r#"{"cniVersion": "1.1.0", "name": "many", "type": "bridge", "bridge": "many0",
    "isGateway": true, "ipMasq": true, "macspoofchk": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd09::/64"}]]}}"#;

const LIST: &str = r#"{"cniVersion": "1.1.0", "name": "many", "plugins": [{"type": "bridge", "bridge": "many0",
    "isGateway": true, "ipMasq": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}},
    {"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "firewall"}, {"type": "tuning"}]}"#;
const LIST_OF_ADDRESSES: &str = r#"{"cniVersion": "1.1.0", "name": "many", "plugins": [{"type": "loopback"},
    {"type": "host-local", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}}]}"#;
const PORTS: &str =
    r#"{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}"#;

/// The state that the threads share.
struct Shared {
    turns: Arc<Turns>,
    /// The addresses that containers have now.
    in_use: Mutex<BTreeSet<String>>,
    /// Where all threads wait for the looks at the process.
    barrier: Barrier,
}

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("transaction") => return exit_code(transaction()),
        Some("runtime") => return exit_code(rounds_of_runtime(LIST)),
        Some("addresses") => return exit_code(rounds_of_runtime(LIST_OF_ADDRESSES)),
        _ => {}
    }
    let numbers: Vec<usize> =
        std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let [threads, rounds] = numbers[..] else {
        eprintln!("usage: threads THREADS ROUNDS");
        return ExitCode::from(2);
    };
    exit_code(run(threads, rounds))
}

fn exit_code(result: Result<String>) -> ExitCode {
    match result {
        Ok(summary) => {
            eprintln!("{summary}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("threads: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(threads: usize, rounds: usize) -> Result<String> {
    for number in 0..threads {
        sandbox::new_namespace(Path::new(&netns(number)))?;
    }
    let shared = Shared {
        turns: Arc::default(),
        in_use: Mutex::default(),
        barrier: Barrier::new(threads + 1),
    };
    let looks = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                scope.spawn({
                    let shared = &shared;
                    move || work(shared, number, rounds)
                })
            })
            .collect();
        let looks = [(); 2].map(|()| {
            shared.barrier.wait();
            let look = (descriptors(), resident_kib());
            shared.barrier.wait();
            look
        });
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|_| Err(Error::internal("a thread panicked")))
        })?;
        Ok::<_, Error>(looks)
    })?;
    compared(&format!("{threads} threads, {rounds} rounds"), looks)
}

/// Two looks at the process must show the same descriptors, and little more memory.
fn compared(what: &str, looks: [(usize, usize); 2]) -> Result<String> {
    let [(files, memory), (files_later, memory_later)] = looks;
    let summary = format!(
        "{what}: descriptors {files} and {files_later}, memory {memory} and {memory_later} KiB"
    );
    if files != files_later || memory_later > memory + GROWTH_MAX_KIB {
        return Err(Error::internal(summary));
    }
    Ok(summary)
}

/// The first error ends the work of a thread, but it still meets the others.
fn work(shared: &Shared, number: usize, rounds: usize) -> Result<()> {
    let mut result = Ok(());
    for part in [WARM_UP, rounds.saturating_sub(WARM_UP)] {
        for _ in 0..part {
            result = result.and_then(|()| round(shared, number));
        }
        shared.barrier.wait();
        shared.barrier.wait();
    }
    result
}

fn round(shared: &Shared, number: usize) -> Result<()> {
    let addresses = call(shared, number, Verb::Add)?;
    for address in &addresses {
        if !shared.in_use.lock().insert(address.clone()) {
            return Err(Error::internal(format!("{address} is given out twice")));
        }
    }
    if addresses.len() != 2 {
        return Err(Error::internal(format!("there are two families, not {addresses:?}")));
    }
    for address in &addresses {
        shared.in_use.lock().remove(address);
    }
    call(shared, number, Verb::Del).map(drop)
}

/// A call as the runtime makes it; returns the addresses of its result.
fn call(shared: &Shared, number: usize, verb: fn(Attachment) -> Verb) -> Result<Vec<String>> {
    let container_id = ContainerId::new(format!("c{number}"))?;
    let verb = verb(Attachment { container_id, ifname: IfName::new("eth0")? });
    let mut request = Request::new(&verb, Json::parse(NETWORK.as_bytes())?)?;
    request.parameters.netns_path = Some(netns(number).into());
    let session = Session::open(&request, &verb)?.sharing(Arc::clone(&shared.turns));
    let cx = Context { request: &request, session: &session, plugins: PLUGINS };
    let bridge = PLUGINS.iter().find(|entry| entry.name == "bridge");
    let bridge = bridge.ok_or_else(|| Error::internal("there is no plugin bridge"))?;
    let success = bridge.call(&cx, &verb)?.unwrap_or_default();
    Ok(success.ips.iter().map(|ip| ip.address.to_string()).collect())
}

/// ADD and DEL of a list, again and again.
fn rounds_of_runtime(list: &str) -> Result<String> {
    let rounds =
        std::env::args().nth(2).and_then(|argument| argument.parse().ok()).unwrap_or(WARM_UP);
    sandbox::new_namespace(Path::new(&netns(0)))?;
    let settings = CallSettings {
        path: Vec::new(),
        timeout: Duration::from_secs(60),
        netns_override: false,
        bus_address: None,
        turns: Arc::default(),
        log: None,
    };
    let runtime = Runtime::new(settings, "/nowhere".into());
    let network = Network::from_cache(list.as_bytes())?;
    let at = Attachment { container_id: ContainerId::new("c0")?, ifname: IfName::new("eth0")? };
    let path = netns(0);
    let target = Target {
        at: &at,
        netns: Some(Path::new(&path)),
        args: "",
        capability_args: &Json::parse(PORTS.as_bytes())?,
    };
    let choice = Choice::Configuration(network.clone());
    let (args, capability_args) = (String::new(), target.capability_args.clone());
    let new = NewAttachment { network, at: at.clone(), args, capability_args };
    let mut looks = [(0, 0); 2];
    for (part, look) in [WARM_UP, rounds].into_iter().zip(&mut looks) {
        for _ in 0..part {
            runtime.add(&new, Path::new(&path))?.keep()?;
            runtime.check(&choice, &target)?;
            runtime.del(&choice, &target)?;
        }
        *look = (descriptors(), resident_kib());
    }
    compared(&format!("runtime, {rounds} rounds"), looks)
}

/// Two plugins of a chain delete on one session. The kernel refuses the part of the first; that of the second is made all
/// the same, and the error names the first.
fn transaction() -> Result<String> {
    let session = Session::without_container();
    let call = |kind: &str, build: fn(&mut Batch)| {
        let config = format!(r#"{{"cniVersion": "1.1.0", "name": "net", "type": "{kind}"}}"#);
        let json = Json::parse(config.as_bytes())?;
        let request = Request::new(&Verb::Status, json)?;
        let cx = Context { request: &request, session: &session, plugins: PLUGINS };
        let build = move |_: &Nft, batch: &mut Batch| {
            build(batch);
            Ok(())
        };
        cx.defer(build, || Ok(()));
        Ok::<_, Error>(())
    };
    call("first", |batch| {
        batch.delete_chain(TABLE, "absent");
    })?;
    call("second", |batch| {
        batch.add_table(TABLE);
    })?;
    let refused = session.commit().err().map_or_else(String::new, |error| error.to_string());
    let is_there = session.nft()?.exist(&[Object::Table(TABLE)])?;
    if refused.contains("the rules of first: ") && !refused.contains("second") && is_there == [true]
    {
        return Ok(refused);
    }
    Err(Error::internal(format!("{is_there:?}: {refused}")))
}

const TABLE: Table<'static> = Table { family: Family::Ip, name: "survivor" };

fn netns(number: usize) -> String {
    format!("/run/netns/many{number}")
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn resident_kib() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
