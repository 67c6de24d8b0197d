//! Namespaces that podman made and left behind, because it was killed: `gc` removes those in which nobody will start a container.

use serde_json::{Value, json};

use super::netavark::{object, request, with_options};
use super::{Host, network};
use crate::world::{Container, Running, parse};

const ID: &str = "9f2c00aa17e17890a81501a93e6971e3649210a36492b8ff7b2e4916c7b46f00";
/// A container in whose namespace podman started nothing, and what podman wrote for it.
const NETNS: &str = "netns-5256f61a";
const PODMAN_ENDED: &str = "podman, which executed netavark, has ended";
const NOBODY_READS: &str = "the program that executed netavark has ended: nobody reads the answer";
/// Waits until podman has ended: a killed process still has its open files for a moment.
const PODMAN_ENDS: &str =
    "while grep -qs \"^State:.[^Z]\" /proc/$(cat /run/podman.pid)/status; do sleep 0.1; done";
/// Executes its arguments, and takes over the children of processes that end, as systemd --user and conmon do.
const SUBREAPER: &str = "
import ctypes, subprocess, sys, time
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
subprocess.call(sys.argv[1:])
time.sleep(1000)
";

impl Host {
    /// Makes shells with the names of programs that the driver looks for among its ancestors.
    fn make_shells(&self, names: &[&str]) {
        for name in names {
            self.world.host(["install", "-D", "/bin/bash", &format!("/run/podman/{name}")]);
        }
    }

    /// Runs a setup as `podman` does, through a process `netavark`, which first does `before`. What the driver prints is in
    /// /run/answer. `podman` then does `after`.
    fn start_podman(&self, podman: &str, [before, after]: [&str; 2], netns: &str) -> Running {
        self.make_shells(&[podman, "netavark"]);
        let script = format!(
            "echo $$ >/run/podman.pid
            /run/podman/netavark -c '{before}
                /run/bin/cnibox setup {netns} </run/request >/run/answer.new; mv /run/answer.new /run/answer' &
            {after}"
        );
        let program = format!("/run/podman/{podman}");
        let call = self.world.tool(&[&program, "-c", &script], None);
        let path = format!("{}:/run/plugins", super::OWN);
        call.env("NETCONFPATH", super::CONFIGURATIONS).env("CNI_PATH", &path).start()
    }

    /// Runs a setup as `podman` does below a subreaper: `podman` reads what `netavark` prints from a pipe. `netavark` first does
    /// `before`, and `podman` then does `after`.
    fn start_below_subreaper(&self, podman: &str, [before, after]: [&str; 2]) -> Running {
        self.make_shells(&[podman, "netavark"]);
        let script = format!(
            "echo $$ >/run/podman.pid
            exec 3< <(exec /run/podman/netavark -c '{before}
                /run/bin/cnibox setup /run/netns/{NETNS} </run/request >/run/answer.new
                mv /run/answer.new /run/answer')
            {after}"
        );
        let program = format!("/run/podman/{podman}");
        let call = self.world.tool(&["python3", "-c", SUBREAPER, &program, "-c", &script], None);
        let path = format!("{}:/run/plugins", super::OWN);
        call.env("NETCONFPATH", super::CONFIGURATIONS).env("CNI_PATH", &path).start()
    }

    fn answer(&self) -> Value {
        let answer = self.world.path("/run/answer");
        self.world.eventually("the setup ends", || answer.exists());
        parse(&self.world.read("/run/answer"))
    }

    fn ask(&self, network: &Value) {
        self.world.write("/run/request", request(ID, network).to_string());
    }

    /// A podman that waits after its setup.
    pub(super) fn podman(&self, netns: &str, podman: &str) -> Running {
        self.ask(&self.created(&object("web")));
        let running = self.start_podman(podman, ["", "while :; do sleep 1; done"], netns);
        assert!(self.answer()["interfaces"]["eth0"].is_object());
        running
    }

    pub(super) fn kill(&self, running: Running) {
        self.world.host(["kill", "-KILL", &running.pid_in_world().to_string()]);
        running.finish();
    }

    #[track_caller]
    fn gc(&self, args: &[&str]) -> String {
        self.cnibox(&[&["gc"], args].concat()).run().output()
    }

    /// The namespace is removed, and the kernel reports its end.
    #[track_caller]
    fn gc_removes(&self, container: &Container<'_>) {
        let path = container.netns();
        let dry = self.gc(&["--dry-run"]);
        let reason = "podman and all processes of the container have ended";
        let attachment = format!("eth0 of container {ID} from network web");
        assert_eq!(
            dry,
            format!(
                "would remove namespace {path}: {reason}\nwould remove {attachment}: {reason}\n"
            )
        );
        let expected = format!(
            "removed namespace {path}: {reason}\nremoved {attachment}: its network namespace has ended\n"
        );
        assert_eq!(self.gc(&[]), expected);
        assert!(!self.world.path(&path).exists());
        let left = self.cnibox(&["attachments", "--json"]).run().success();
        assert_eq!(left["attachments"], json!([]));
        assert_eq!(self.gc(&[]), "");
    }
}

#[test]
fn nobody_starts_a_container_after_podman() {
    let host = Host::new();
    let container = host.world.container(NETNS);
    let podman = host.podman(&container.netns(), "podman");
    assert_eq!(host.gc(&[]), "", "podman lives");
    host.kill(podman);
    host.gc_removes(&container);
}

#[test]
fn a_process_in_the_namespace_keeps_it() {
    let host = Host::new();
    let container = host.world.container(NETNS);
    let podman = host.podman(&container.netns(), "podman");
    let process = container.tool(["sleep", "1000"]).start();
    host.kill(podman);
    assert_eq!(host.gc(&[]), "");
    assert_eq!(container.addresses("eth0").len(), 1);
    host.kill(process);
    host.gc_removes(&container);
}

#[test]
fn conmon_keeps_the_namespace_of_its_container() {
    let host = Host::new();
    let container = host.world.container(NETNS);
    let podman = host.podman(&container.netns(), "podman");
    let conmon = format!("exec -a 'conmon -c {ID}' sleep 1000");
    let conmon = host.world.tool(&["bash", "-c", &conmon], None).start();
    host.kill(podman);
    assert_eq!(host.gc(&[]), "");
    host.kill(conmon);
    host.gc_removes(&container);
}

#[test]
fn a_namespace_with_an_attachment_of_another_maker_stays() {
    let host = Host::new();
    let container = host.world.container(NETNS);
    let podman = host.podman(&container.netns(), "podman");
    host.configure("1.conflist", &network());
    host.cnibox(&["add", "net", NETNS, "-i", "net1"]).run().success();
    host.kill(podman);
    assert_eq!(host.gc(&[]), "");
    host.cnibox(&["del", "net", NETNS, "-i", "net1"]).run().silence();
    host.gc_removes(&container);
}

#[test]
fn a_namespace_that_another_program_attached_stays() {
    let host = Host::new();
    let container = host.world.container(NETNS);
    let other = host.podman(&container.netns(), "other");
    host.kill(other);
    assert_eq!(host.gc(&[]), "");
    assert_eq!(container.addresses("eth0").len(), 1);
}

#[test]
fn two_runs_confirm_the_removal() {
    let host = Host::new();
    let container = host.world.container(NETNS);
    let podman = host.podman(&container.netns(), "podman");
    host.kill(podman);
    let (path, confirm) = (container.netns(), ["--confirm"]);
    let said = host.gc(&confirm);
    assert!(said.starts_with(&format!("namespace {path} waits for a run in 600 s")), "{said}");
    host.wait(700);
    let said = host.gc(&confirm);
    let reason = "podman and all processes of the container have ended";
    let waits = format!("eth0 of container {ID} in network web waits for a run in 600 s");
    assert!(said.starts_with(&format!("removed namespace {path}: {reason}\n{waits}")), "{said}");
    host.wait(700);
    assert!(host.gc(&confirm).contains(&format!("removed eth0 of container {ID}")));
}

/// The id and the start time of podman are others there.
#[test]
fn gc_in_other_namespaces_removes_nothing() {
    let host = Host::new();
    let container = host.world.container(NETNS);
    let podman = host.podman(&container.netns(), "podman");
    let gc_under = |words: &[&str]| {
        let words = [&["unshare", "--fork"], words, &["/run/bin/cnibox", "gc"]].concat();
        assert_eq!(host.world.tool(&words, None).run().output(), "", "{words:?}");
        assert!(host.world.path(container.netns()).exists(), "{words:?}");
    };
    let times = ["--time", "--boottime", "1000"];
    let pids = ["--pid", "--mount-proc"];
    gc_under(&times);
    gc_under(&pids);
    let process = container.tool(["sleep", "1000"]).start();
    host.kill(podman);
    gc_under(&times);
    gc_under(&pids);
    host.kill(process);
    host.gc_removes(&container);
}

#[test]
fn a_setup_without_podman_makes_nothing() {
    let host = Host::new();
    let container = host.world.container(NETNS);
    host.ask(&host.created(&object("web")));
    let wait = "while [ $(cut -d \" \" -f 4 /proc/$$/stat) != 1 ]; do sleep 0.1; done";
    let podman = host.start_podman("podman", [wait, "exit"], &container.netns());
    let error = host.answer()["error"].as_str().unwrap().to_owned();
    assert_eq!(error, PODMAN_ENDED);
    assert_eq!(host.kept(), [""; 0]);
    podman.finish();
}

#[test]
fn a_setup_whose_caller_is_killed_meanwhile_is_undone() {
    type Start = fn(&Host, &Container<'_>) -> Running;
    type End = fn(&Host, Running);
    let podman: Start = |host, container| {
        host.start_podman("podman", ["", "while :; do sleep 1; done"], &container.netns())
    };
    // sleep would be a second reader of the pipe.
    let below_subreaper: Start =
        |host, _| host.start_below_subreaper("buildah", ["", "while :; do sleep 1 3<&-; done"]);
    let of_podman: End = |_, running| drop(running.finish());
    for (start, reason, end) in
        [(podman, PODMAN_ENDED, of_podman), (below_subreaper, NOBODY_READS, Host::kill)]
    {
        let host = Host::new();
        let container = host.world.container(NETNS);
        let mut list = network();
        list["plugins"].as_array_mut().unwrap().push(json!({"type": "kills"}));
        let answer = super::printing(&json!({"cniVersion": "1.1.0"}));
        let kill = format!("kill -KILL $(cat /run/podman.pid) || true; {PODMAN_ENDS}; {answer}");
        host.recorder("kills", &kill);
        host.configure("1.conflist", &list);
        host.ask(&host.created(&with_options("web", json!({"network": "net"}))));
        let running = start(&host, &container);
        assert_eq!(host.answer()["error"], reason);
        assert_eq!(host.titles(), ["kills ADD", "kills DEL"], "{reason}");
        assert_eq!(host.kept(), [""; 0], "{reason}");
        assert!(!container.exec(["ip", "link"]).contains("eth0"), "{reason}");
        end(&host, running);
    }
}

#[test]
fn a_setup_that_a_subreaper_took_over_makes_nothing() {
    for program in ["podman", "buildah"] {
        let host = Host::new();
        host.world.container(NETNS);
        host.ask(&host.created(&object("web")));
        let running = host.start_below_subreaper(program, [PODMAN_ENDS, "exit"]);
        let error = host.answer()["error"].as_str().unwrap().to_owned();
        assert_eq!(error, NOBODY_READS, "{program}");
        assert_eq!(host.kept(), [""; 0]);
        host.kill(running);
    }
}

#[test]
fn a_setup_of_a_program_that_reads_the_answer_is_done() {
    let host = Host::new();
    let container = host.world.container(NETNS);
    host.ask(&host.created(&object("web")));
    let running = host.start_below_subreaper("buildah", ["", "while :; do sleep 1; done"]);
    assert!(host.answer()["interfaces"]["eth0"].is_object());
    assert_eq!(container.addresses("eth0").len(), 1);
    // It does not end with the subreaper.
    host.world.host(["sh", "-c", "kill -KILL $(cat /run/podman.pid)"]);
    host.kill(running);
}

#[test]
fn a_process_in_a_control_group_of_the_container_keeps_the_namespace() {
    let host = Host::new();
    let container = host.world.container(NETNS);
    let podman = host.podman(&container.netns(), "podman");
    let process = host.world.tool(&["sleep", "1000"], None).start();
    let group = format!("/proc/{}/cgroup", process.pid_in_world());
    host.world.write("/run/group", format!("0::/machine.slice/libpod-{ID}.scope/container\n"));
    host.world.host(["mount", "--bind", "/run/group", &group]);
    host.kill(podman);
    assert_eq!(host.gc(&[]), "");
    assert_eq!(container.addresses("eth0").len(), 1);
    host.kill(process);
    host.gc_removes(&container);
}

#[test]
fn a_link_to_a_third_namespace_keeps_the_namespace() {
    let host = Host::new();
    let container = host.world.container(NETNS);
    let podman = host.podman(&container.netns(), "podman");
    host.world.container("inner");
    container.exec(["ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"]);
    container.exec(["ip", "link", "set", "v1", "netns", "inner"]);
    host.kill(podman);
    assert_eq!(host.gc(&[]), "");
    assert_eq!(container.addresses("eth0").len(), 1);
    container.exec(["ip", "link", "del", "v0"]);
    host.gc_removes(&container);
}

#[test]
fn attachments_shows_an_unused_namespace_and_the_command_that_ends_it() {
    let host = Host::new();
    let container = host.world.container(NETNS);
    // Nobody knows when this program starts its container, so `gc` leaves the namespace alone.
    let other = host.podman(&container.netns(), "other");
    let process = container.tool(["sleep", "1000"]).start();
    let shown = || host.cnibox(&["attachments", "--json"]).run().success();
    host.kill(other);
    assert_eq!(shown()["attachments"][0].get("unused"), None);
    host.kill(process);
    let attachment = &shown()["attachments"][0];
    assert_eq!([&attachment["state"], &attachment["unused"]], [&json!("alive"), &json!(true)]);
    let outcome = host.cnibox(&["attachments"]).run();
    assert_eq!(outcome.status, 0);
    assert!(outcome.stdout.contains(" alive,unused "), "{}", outcome.report());
    let command = format!("cnibox del web {NETNS} --container-id {ID} -i eth0 --delete");
    assert!(outcome.stderr.contains(&command), "{}", outcome.report());
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    host.cnibox(&words).run().silence();
    assert!(!host.world.path(container.netns()).exists());
    assert_eq!(host.kept(), [""; 0]);
}
