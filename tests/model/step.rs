//! A step of a history: a value that can be printed, read, and left out.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

/// A name in a history, for each value of an enumeration.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            fn of_word(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

words! {
    /// The kinds of steps.
    Action {
        /// Writes the configuration of a network.
        Network = "network",
        /// Makes a container with a namespace at a path below /run/netns.
        Mounted = "mounted",
        /// Makes a container in the namespace of a new process. `number` 1 and more: with the pid of an earlier one.
        Process = "process",
        /// Makes a container in the namespace of the container `number`.
        Shared = "shared",
        /// The namespace ends, and its path with it.
        End = "end",
        /// The namespace is unmounted, and the empty file stays.
        Unmount = "unmount",
        /// The namespace ends, and another one gets its path.
        Replace = "replace",
        /// A process keeps the namespace, which loses its path. By `number` the path is free, an empty file, or another namespace.
        Leave = "leave",
        /// A process in a namespace of its own uses that of the container. `number` even: it is the last one of `cnibox run`.
        Nest = "nest",
        Add = "add",
        Del = "del",
        /// ADD or DEL of each container in the bits of `number`, and a gc, at the same time.
        Race = "race",
        /// DEL and ADD of a container that was replaced, beside a gc that waits before it renames and deletes files.
        Beside = "beside",
        Check = "check",
        Gc = "gc",
        Status = "status",
        Doctor = "doctor",
        /// A gc of the timer; `number` even: 700 s after the last one.
        Confirm = "confirm",
        /// Another program removes rules or switches forwarding off, by `number`, and `reconcile` restores it.
        Reconcile = "reconcile",
        /// Another program deletes our table again and again while `reconcile --watch` runs, and ends.
        Storm = "storm",
        Run = "run",
        Attachments = "attachments",
        Reboot = "reboot",
        /// The container changes what it was given.
        Rename = "rename",
        Down = "down",
        Readdress = "readdress",
        Flush = "flush",
        Remac = "remac",
        /// The interface goes away from the container's namespace.
        Vanish = "vanish",
        /// Other programs of the host.
        NftFlush = "nft-flush",
        LinkDel = "link-del",
        RmCache = "rm-cache",
        Damage = "damage",
        /// The record of a namespace, or of a pending operation.
        DamageRecord = "damage-record",
        RmReservation = "rm-reservation",
        Litter = "litter",
        Full = "full",
        ReadOnly = "read-only",
        /// The DHCP server gives other addresses, refuses, or is silent, or the daemon is killed.
        Dhcp = "dhcp",
        /// The daemon of `dhcp` is stopped while a container ends and another one gets its place, and its ADD begins. `number` even: the
        /// kernel chooses the number of the new namespace, and can give that of an ended one.
        StopDaemon = "stop-daemon",
        /// A program in the container answers in place of the kernel, during an ADD and a DEL.
        Forge = "forge",
        /// The clock jumps: all files of the runtime become older or newer.
        Clock = "clock",
        /// A hook with the path of a file in its annotation.
        HookByPath = "hook-by-path",
        /// gc from other namespaces than those of the host.
        GcOfPid = "gc-of-pid",
        GcOfMount = "gc-of-mount",
        GcOfNet = "gc-of-net",
        GcOfNoProc = "gc-of-no-proc",
    }
}

words! {
    /// The program that makes a call.
    By {
        /// `cnibox add`, `del` …
        Runtime = "runtime",
        /// Each plugin in turn, as libcni does.
        Libcni = "libcni",
        /// The same with the plugins of Debian.
        Go = "go",
        /// `cnibox oci-hook`.
        Hook = "hook",
    }
}

/// The fault of one call.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    None,
    /// SIGKILL at the n-th use of a system call.
    Kill(String, u32),
    /// The n-th request to the kernel, or operation on a file, fails.
    Kernel(u32),
    File(u32),
    /// No more descriptors than this.
    Descriptors(u32),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub action: Action,
    pub network: usize,
    pub container: usize,
    pub interface: usize,
    pub by: By,
    pub fault: Fault,
    pub number: u64,
    /// A part of the path of the file that `damage` is about. Empty: `number` picks it from all files.
    pub file: String,
    /// The list of plugins, for a network.
    pub config: Value,
}

impl Step {
    pub fn new(action: Action) -> Self {
        Self {
            action,
            network: 0,
            container: 0,
            interface: 0,
            by: By::Runtime,
            fault: Fault::None,
            number: 0,
            file: String::new(),
            config: Value::Null,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action.word())?;
        for (key, value) in [("net", self.network), ("c", self.container), ("if", self.interface)] {
            if value != 0 {
                write!(f, " {key}={value}")?;
            }
        }
        if self.by != By::Runtime {
            write!(f, " by={}", self.by.word())?;
        }
        if self.number != 0 {
            write!(f, " n={}", self.number)?;
        }
        if !self.file.is_empty() {
            write!(f, " file={}", self.file)?;
        }
        match &self.fault {
            Fault::None => {}
            Fault::Kill(call, when) => write!(f, " kill={call}:{when}")?,
            Fault::Kernel(at) => write!(f, " fail-kernel={at}")?,
            Fault::File(at) => write!(f, " fail-file={at}")?,
            Fault::Descriptors(most) => write!(f, " descriptors={most}")?,
        }
        if self.config != Value::Null {
            write!(f, " config={}", self.config)?;
        }
        Ok(())
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let (line, config) = match line.split_once(" config=") {
            Some((line, config)) => {
                (line, serde_json::from_str(config).map_err(|error| error.to_string())?)
            }
            None => (line, Value::Null),
        };
        let mut words = line.split_whitespace();
        let action = words.next().unwrap_or_default();
        let unknown = |word: &str| format!("unknown word {word:?} in step {line:?}");
        let mut step = Self::new(Action::of_word(action).ok_or_else(|| unknown(action))?);
        step.config = config;
        for word in words {
            let (key, value) = word.split_once('=').ok_or_else(|| unknown(word))?;
            let number = || value.parse::<usize>().map_err(|_| unknown(word));
            let small = || value.parse::<u32>().map_err(|_| unknown(word));
            match key {
                "net" => step.network = number()?,
                "c" => step.container = number()?,
                "if" => step.interface = number()?,
                "n" => step.number = value.parse().map_err(|_| unknown(word))?,
                "file" => step.file = value.into(),
                "by" => step.by = By::of_word(value).ok_or_else(|| unknown(word))?,
                "fail-kernel" => step.fault = Fault::Kernel(small()?),
                "fail-file" => step.fault = Fault::File(small()?),
                "descriptors" => step.fault = Fault::Descriptors(small()?),
                "kill" => {
                    let (call, when) = value.split_once(':').ok_or_else(|| unknown(word))?;
                    let when = when.parse().map_err(|_| unknown(word))?;
                    step.fault = Fault::Kill(call.into(), when);
                }
                _ => return Err(unknown(word)),
            }
        }
        Ok(step)
    }
}

/// The steps of a file: one per line, `#` begins a comment.
pub fn parse(text: &str) -> Result<Vec<Step>, String> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::parse).collect()
}
