//! Finds the plugin of a type, and executes it if it is not one of ours.
//!
//! The plugin is looked up on CNI_PATH, as the specification says, so a file of the user takes precedence over a plugin of
//! cnibox. If the file is this executable, or if there is no file and cnibox has the plugin, the plugin is called as a
//! function: without a process, and without writing and parsing its JSON.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::cni::json::{Json, keys};
use crate::cni::request::{Request, Verb};
use crate::cni::success::Success;
use crate::cni::version::{self, Version};
use crate::error::{Code, Error, Result};
use crate::fault;
use crate::kernel::child::{self, End, Output};
use crate::kernel::{file, sys};

use super::Entry;

/// The maximum number of attempts to execute a plugin. execve(2) fails with ETXTBSY while the file is open for writing, for
/// example during the installation of the plugin. libcni makes the same number of attempts.
const BUSY_ATTEMPTS_MAX: u32 = 6;
const BUSY_PAUSE: Duration = Duration::from_secs(1);
/// The maximum depth of nested plugin processes, of which each executes the next one: CNIBOX_DEPTH counts them.
const DEPTH_MAX: u32 = 8;

/// What is called for the `type` of a plugin.
#[derive(Clone)]
pub enum Program {
    /// A plugin of cnibox, called as a function.
    Ours(&'static Entry),
    /// A file on CNI_PATH, executed as a process.
    Executable(PathBuf),
}

/// A variable of the environment, and its value. None removes the variable.
type Variable = (&'static str, Option<OsString>);

impl Program {
    /// Looks the type up in the directories of CNI_PATH, and then among the plugins of cnibox. A plugin of cnibox that made the
    /// attachment, and so is among `makers`, is found whatever is in the directories now.
    pub fn find(
        kind: &str,
        makers: &[String],
        path: &[PathBuf],
        plugins: &'static [Entry],
    ) -> Result<Self> {
        if kind.is_empty() {
            return Err(Error::config("no plugin name provided"));
        }
        // A type that contains a path could execute any program of the host (CVE-2021-20206).
        if kind.contains('/') || kind == "." || kind == ".." {
            return Err(Error::config(format_args!("invalid plugin name: {kind}")));
        }
        let ours = plugins.iter().find(|entry| entry.name == kind);
        if let Some(entry) = ours.filter(|_| makers.iter().any(|maker| maker == kind)) {
            return Ok(Self::Ours(entry));
        }
        let mut unreadable = None;
        for candidate in path.iter().map(|directory| directory.join(kind)) {
            match fs::metadata(&candidate) {
                Ok(found) if found.is_file() => {
                    return Ok(match ours {
                        Some(entry) if sys::is_own_executable(&found) => Self::Ours(entry),
                        _ => Self::Executable(candidate),
                    });
                }
                Err(error) if !file::is_missing(&error) => {
                    unreadable = unreadable.or(Some((candidate, error)))
                }
                Ok(_) | Err(_) => {}
            }
        }
        // As in libcni, the search goes on after an error. But the file can be a plugin of the user, which made the attachment:
        // another one would not find what it made.
        if let Some((candidate, error)) = unreadable {
            let reason =
                format_args!("cannot read {}: {}", candidate.display(), sys::reason(&error));
            let msg = format!("failed to find plugin {kind:?} in path {path:?}");
            return Err(Error::config(msg).with_details(reason));
        }
        ours.map(Self::Ours).ok_or_else(|| {
            if path.is_empty() {
                return Error::config("no paths provided").with_details(format_args!(
                    "failed to find plugin {kind:?}: CNI_PATH is empty"
                ));
            }
            Error::config(format_args!("failed to find plugin {kind:?} in path {path:?}"))
        })
    }
}

/// Executes a plugin. It gets the environment of this process with the CNI_ variables of the request, and the configuration:
/// the same bytes if this process read it from stdin. `netns` is its CNI_NETNS. Its stderr is forwarded to the stderr of this process.
///
/// With a limit, the plugin is killed after that time, and when this process is interrupted or ends.
pub fn execute(
    path: &Path,
    (request, netns): (&Request, Option<&Path>),
    verb: &Verb,
    limit: Option<Duration>,
) -> Result<Option<Success>> {
    if request.parameters.depth >= DEPTH_MAX {
        let msg =
            format!("cannot run plugin {}: too many plugins call one another", path.display());
        return Err(Error::config(msg).with_details(format_args!("{DEPTH_MAX} is the limit")));
    }
    let stdout = call(path, &request.environment(verb, netns), &request.stdin()?, limit)?;
    if !matches!(verb, Verb::Add(_)) {
        return Ok(None);
    }
    let unreadable = |error: Error| {
        error.context(format!("cannot read the result of plugin {}", path.display()))
    };
    let result = Json::parse(&stdout).map_err(unreadable)?;
    if result == Json::Null {
        return Ok(None);
    }
    version::parse_result(&result, request.version).map(Some).map_err(unreadable)
}

/// Asks an executable plugin for the versions that it supports. A plugin without the verb VERSION supports 0.1.0 only.
///
/// Source: CNI specification 1.1.0, section 5, "Version"; specification 0.2.0 added the verb.
pub fn supported_versions(path: &Path, limit: Option<Duration>) -> Result<Vec<String>> {
    keys! {
        struct Answer {
            "cniVersion" => cni_version: String,
            "supportedVersions" => supported_versions: Vec<String>,
        }
    }
    let dummy = || Some("dummy".into());
    let environment = [
        ("CNI_COMMAND", Some("VERSION".into())),
        ("CNI_CONTAINERID", None),
        ("CNI_NETNS", dummy()),
        ("CNI_IFNAME", dummy()),
        ("CNI_PATH", dummy()),
        ("CNI_ARGS", None),
    ];
    let question = Json::object([("cniVersion", Some(Version::NEWEST.text().into()))]);
    let answer = match call(path, &environment, question.to_compact().as_bytes(), limit) {
        Err(error) if error.msg == "unknown CNI_COMMAND: VERSION" => {
            return Ok(vec![Version::V0_1_0.text().into()]);
        }
        answer => answer.and_then(|bytes| Json::parse(&bytes)?.read::<Answer>("answer")),
    };
    let answer = answer.map_err(|error| {
        error.context(format!("cannot ask plugin {} for its VERSION", path.display()))
    })?;
    Ok(match answer.supported_versions {
        none if none.is_empty() && answer.cni_version == Version::V0_2_0.text() => {
            [Version::V0_1_0, Version::V0_2_0].map(|version| version.text().into()).into()
        }
        versions => versions,
    })
}

/// Runs the plugin to its end. Returns its stdout, or the error that it reported.
fn call(
    path: &Path,
    environment: &[Variable],
    stdin: &[u8],
    limit: Option<Duration>,
) -> Result<Vec<u8>> {
    let name = path.display();
    let failed =
        |error: io::Error| Error::internal(format_args!("cannot run plugin {name}: {error}"));
    let child = spawn(path, environment, limit.is_some()).map_err(failed)?;
    let output = child::communicate(child, stdin, limit).map_err(failed)?;
    let error = match output.end {
        End::Exited(status) if status.success() => {
            forward_stderr(&output.stderr);
            return Ok(output.stdout);
        }
        End::Exited(status) => return Err(reported_error(path, &output, status)),
        End::TimedOut => {
            let seconds = limit.unwrap_or_default().as_secs();
            Error::internal(format_args!(
                "plugin {name} was killed: it did not end within {seconds} s"
            ))
        }
        End::TooLong => Error::internal(format_args!(
            "plugin {name} was killed: its output has more than {} bytes",
            child::OUTPUT_BYTES_MAX
        )),
        End::Interrupted => Error::internal(format_args!("plugin {name} was killed: interrupted")),
    };
    forward_stderr(&output.stderr);
    Err(error)
}

/// Writes the stderr of a plugin to the stderr of this process, unprintable characters escaped.
fn forward_stderr(stderr: &[u8]) {
    sys::warn_lines(&String::from_utf8_lossy(stderr));
}

fn spawn(path: &Path, environment: &[Variable], has_limit: bool) -> io::Result<Child> {
    let mut attempt = 1;
    loop {
        let mut command = Command::new(path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if has_limit {
            command.process_group(0);
            sys::end_with_parent(&mut command);
        }
        for (name, value) in environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        match fault::kernel_request().and_then(|()| command.spawn()) {
            Err(error)
                if error.kind() == ErrorKind::ExecutableFileBusy && attempt < BUSY_ATTEMPTS_MAX =>
            {
                sys::fail_if_interrupted()?;
                attempt += 1;
                // There is no event to wait for: another program writes the file.
                #[allow(clippy::disallowed_methods)]
                std::thread::sleep(BUSY_PAUSE);
            }
            other => return other,
        }
    }
}

/// The error that a plugin reported, with its text and its code. Code 3 becomes the code of an internal error.
fn reported_error(path: &Path, output: &Output, status: ExitStatus) -> Error {
    keys! {
        struct Reported requires "code" {
            "code" => code: u32,
            "msg" => msg: String,
            "details" => details: String,
        }
    }
    let name = path.display();
    if output.stdout.trim_ascii().is_empty() {
        return match String::from_utf8_lossy(&output.stderr).trim() {
            "" => Error::internal(format_args!(
                "netplugin failed with no error message: {name}: {status}"
            )),
            text => Error::internal(format_args!("netplugin failed: {text:?}"))
                .with_details(format_args!("{name}: {status}")),
        };
    }
    forward_stderr(&output.stderr);
    match Json::parse(&output.stdout).and_then(|json| json.read::<Reported>("error")) {
        Ok(Reported { code, msg, details }) => {
            // Code 3 (unknown container) means that the delegate needs no DEL. Objects that its caller made can still exist.
            let code = Some(Code(code)).filter(|code| *code != Code::UNKNOWN_CONTAINER);
            Error::new(code.unwrap_or(Code::INTERNAL), msg).with_details(details)
        }
        Err(error) => {
            let text = String::from_utf8_lossy(&output.stdout);
            Error::internal(format_args!("netplugin failed but its error cannot be read: {text:?}"))
                .with_details(format_args!("{name}: {status}: {error}"))
        }
    }
}
