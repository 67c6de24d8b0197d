//! A process that serves while a test runs: a DHCP server, the DHCP daemon, a capture. It is ended with the test.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::LIMIT_S;
use crate::world::{Running, World};

/// A program with its log in `/run/log/NAME`, to which its stdout and stderr go.
pub struct Service<'w> {
    pub world: &'w World,
    name: &'static str,
    netns: Option<String>,
    words: Vec<String>,
    env: Vec<(&'static str, String)>,
    running: Option<Running>,
    /// Length of the log when the process of now began, in bytes.
    log_begin: usize,
}

impl<'w> Service<'w> {
    /// Not started yet. `netns` is a path in the world; the host's network if `None`.
    pub fn new(
        world: &'w World,
        name: &'static str,
        netns: Option<String>,
        words: &[&str],
    ) -> Self {
        let words = words.iter().map(|&word| word.to_owned()).collect();
        Self { world, name, netns, words, env: Vec::new(), running: None, log_begin: 0 }
    }

    pub fn env(mut self, name: &'static str, value: &str) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// Starts the process, and waits until its log contains `ready`.
    pub fn start(&mut self, ready: &str) {
        self.start_only();
        let is_ready = || self.log_of_now().contains(ready);
        let unready = || format!("{} says {ready:?}: {}", self.name, self.log_of_now());
        self.world.within_or(LIMIT_S, is_ready, unready);
    }

    /// Starts the process.
    pub fn start_only(&mut self) {
        assert!(self.running.is_none(), "{} runs already", self.name);
        self.log_begin = self.log().len();
        let script = r#"mkdir -p /run/log; log=/run/log/$0; exec "$@" >>"$log" 2>&1 </dev/null"#;
        let mut words = vec!["sh", "-c", script, self.name];
        words.extend(self.words.iter().map(String::as_str));
        let mut call = self.world.tool(&words, self.netns.as_deref());
        for (name, value) in &self.env {
            call = call.env(name, value);
        }
        self.running = Some(call.start());
    }

    /// Everything that the processes of this service said.
    pub fn log(&self) -> String {
        let path = self.world.path(format!("/run/log/{}", self.name));
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
    }

    /// The same of the process of now.
    pub fn log_of_now(&self) -> String {
        self.log().split_off(self.log_begin)
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    fn running(&self) -> &Running {
        self.running.as_ref().unwrap_or_else(|| panic!("{} does not run", self.name))
    }

    pub fn pid(&self) -> Pid {
        self.running().pid()
    }

    pub fn pid_in_world(&self) -> u32 {
        self.running().pid_in_world()
    }

    /// Ends the process with this signal, and waits for its end.
    pub fn end(&mut self, signal: Signal) {
        self.signal(signal);
        self.running.take().unwrap().finish();
    }
}

impl Drop for Service<'_> {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            if running.is_running() {
                // It can end here.
                kill(running.pid(), Signal::SIGKILL).ok();
            }
            running.finish();
        }
    }
}
