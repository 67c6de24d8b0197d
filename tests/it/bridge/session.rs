//! The netlink sockets of one call, as strace shows them. A call opens few of them. DEL removes the rules of a container
//! before its interface, and closes the netfilter socket after the interface is gone.

use serde_json::{Value, json};

use super::dual_stack;
use crate::world::{Call, World, with};

const TRACE: &str = "/run/trace";

/// strace knows the protocol of a socket, and so the names of its messages, only after the first message.
const DELETE_LINK: [&str; 2] = ["nlmsg_type=RTM_DELLINK", "nlmsg_type=0x11 "];
const BEGIN_BATCH: [&str; 2] = ["nlmsg_type=NFNL_MSG_BATCH_BEGIN", "nlmsg_type=0x10 "];

/// With a spoof check and with masquerading.
fn both() -> Value {
    with(&dual_stack(), json!({"macspoofchk": true, "ipMasq": true}))
}

/// The system calls about descriptors and messages, in their order, without the process number.
struct Trace(Vec<String>);

/// A netlink socket: its descriptor, and the calls that opened and closed it. A process closes all when it ends.
struct Socket {
    fd: String,
    opened: usize,
    closed: usize,
}

impl Trace {
    fn of(world: &World, call: Call<'_>) -> Self {
        let calls = "trace=socket,bind,close,sendto,sendmsg,recvfrom,recvmsg,setns,openat";
        let outcome = call.under(&["strace", "-f", "-qq", "-o", TRACE, "-e", calls]).run();
        assert_eq!(outcome.status, 0, "{}", outcome.report());
        let text = world.read(TRACE);
        Self(text.lines().filter_map(|line| Some(line.split_once(' ')?.1.into())).collect())
    }

    fn sockets(&self, protocol: &str) -> Vec<Socket> {
        let is_socket = |line: &&str| {
            line.trim().starts_with("socket(AF_NETLINK") && line.contains(&format!("{protocol})"))
        };
        let lines = self.0.iter().map(String::as_str).enumerate();
        let opened = lines.filter(|(_, line)| is_socket(line));
        opened
            .map(|(opened, line)| {
                let fd = line.rsplit(' ').next().unwrap().to_owned();
                let closed = self.find_from(opened, &format!("close({fd})"), &[""]);
                Socket { fd, opened, closed: closed.unwrap_or(self.0.len()) }
            })
            .collect()
    }

    /// The first call from `start` on that begins like this, and has one of the texts in it.
    fn find_from(&self, start: usize, call: &str, texts: &[&str]) -> Option<usize> {
        let is_it = |line: &String| {
            line.trim().starts_with(call) && texts.iter().any(|text| line.contains(text))
        };
        self.0.iter().skip(start).position(is_it).map(|index| index + start)
    }

    /// The first message with one of the texts in it that a socket sent while it was open.
    fn sent(&self, socket: &Socket, texts: &[&str]) -> Option<usize> {
        let calls = ["sendto", "sendmsg"].map(|call| format!("{call}({},", socket.fd));
        let found = calls.iter().filter_map(|call| self.find_from(socket.opened, call, texts));
        found.filter(|index| *index < socket.closed).min()
    }

    /// The first answer to what a socket sent.
    fn answered(&self, socket: &Socket, sent: usize) -> usize {
        let calls = ["recvfrom", "recvmsg"].map(|call| format!("{call}({},", socket.fd));
        calls.iter().filter_map(|call| self.find_from(sent, call, &[""])).min().expect("an answer")
    }
}

#[test]
fn a_del_has_one_netfilter_socket_which_outlives_the_interface() {
    let world = World::new();
    let c1 = world.container("c1");
    c1.add("bridge", &both());
    let trace = Trace::of(&world, c1.call("bridge", "DEL", &both()));
    let of_links = trace.sockets("NETLINK_ROUTE");
    let deleted = of_links
        .iter()
        .find_map(|socket| Some((socket, trace.sent(socket, &DELETE_LINK)?)))
        .map(|(socket, sent)| (sent, trace.answered(socket, sent)));
    let (deleting, deleted) = deleted.expect("the interface is removed");
    let rules = trace.sockets("NETLINK_NETFILTER");
    assert_eq!(rules.len(), 1, "netfilter sockets");
    let batch = trace.sent(&rules[0], &BEGIN_BATCH).expect("a batch");
    assert!(batch < deleting, "the rules go at call {batch}, the interface at {deleting}");
    let closed = rules[0].closed;
    assert!(closed > deleted, "closed at call {closed}, the interface has gone at {deleted}");
}

#[test]
fn a_del_on_a_host_without_tables_lists_them_and_asks_no_more() {
    let world = World::new();
    let c1 = world.container("c1");
    c1.add("bridge", &dual_stack());
    assert_eq!(world.host(["nft", "list", "tables"]), "");
    let trace = Trace::of(&world, c1.call("bridge", "DEL", &dual_stack()));
    let sent = trace.0.iter().filter(|line| line.trim().starts_with("send"));
    let asked = |kind: &str| sent.clone().filter(|line| line.contains(kind)).count();
    assert_eq!((asked("NFT_MSG_GETTABLE"), asked("NFT_MSG_GET") - asked("NFT_MSG_GETGEN")), (1, 1));
}

#[test]
fn an_add_has_one_netfilter_socket_and_two_for_links() {
    let world = World::new();
    let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
    // The first ADD of a host looks for rules without records.
    c1.add("bridge", &both());
    let trace = Trace::of(&world, c2.call("bridge", "ADD", &both()));
    // On a slow host a call waits for events. Each wait has a socket of its own, which is bound to a group.
    let for_requests = |socket: &Socket| {
        let bound = trace.find_from(socket.opened, &format!("bind({},", socket.fd), &[""]);
        bound.is_none_or(|index| index > socket.closed)
    };
    let count = |protocol| trace.sockets(protocol).into_iter().filter(for_requests).count();
    assert_eq!([count("NETLINK_NETFILTER"), count("NETLINK_ROUTE")], [1, 2]);
}
