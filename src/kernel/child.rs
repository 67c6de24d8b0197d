//! Writes to a child process and reads its output, with a timeout. This module does not interpret the data.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ExitStatus};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::kernel::sys;

/// The longest output that is kept. A child that writes more to stdout is killed; more output on stderr is dropped.
pub const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// The number of bytes that a writable pipe takes without blocking. Source: pipe(7).
const PIPE_BUF: usize = 4096;
/// The longest poll(2). Neither a signal right before it nor the end of a child without a pidfd ends it; both are noticed after
/// it.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// The shortest poll(2), and the wait for a child without a pidfd that has closed its pipes: it is about to exit.
const EXIT_PAUSE: Duration = Duration::from_millis(1);

/// The output of a child.
#[derive(Debug)]
pub struct Output {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub end: End,
}

/// How a child ended.
#[derive(Clone, Copy, Debug)]
pub enum End {
    Exited(ExitStatus),
    /// It was killed because it wrote more than `OUTPUT_BYTES_MAX` to stdout.
    TooLong,
    /// It was killed at the timeout.
    TimedOut,
    /// It was killed since this process was interrupted: see `sys::catch_interrupts`.
    Interrupted,
}

/// Writes the input to the child's stdin, and reads its stdout and stderr until it exits. It does not wait for the end of the
/// pipes: a daemon that the child started can keep them open. With a timeout, the child must lead its own process group. The
/// group is killed at the timeout, and when this process is interrupted.
pub fn communicate(
    mut child: Child,
    input: &[u8],
    timeout: Option<Duration>,
) -> io::Result<Output> {
    let mut output = Output { stdout: Vec::new(), stderr: Vec::new(), end: End::TimedOut };
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let end = exchange(&mut child, input, &mut output, deadline);
    if !matches!(end, Ok(End::Exited(_))) {
        kill_and_reap(&mut child, deadline.is_some());
    }
    output.end = end?;
    Ok(output)
}

/// Reads the stderr of a child until it is closed. The child can continue to run. Fails at the deadline, and after an
/// interrupt. Output after `OUTPUT_BYTES_MAX` is dropped.
pub fn read_stderr(mut child: Child, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut stderr = child.stderr.take();
    let mut output = Vec::new();
    while stderr.is_some() {
        let Some(wait) = poll_time(Some(deadline)) else {
            return Err(ErrorKind::TimedOut.into());
        };
        sys::fail_if_interrupted()?;
        let file = stderr.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN));
        let [is_ready] = ready([file], wait)?;
        if is_ready && !read(&mut stderr, &mut output)? {
            stderr = None;
        }
        output.truncate(OUTPUT_BYTES_MAX);
    }
    Ok(output)
}

/// Kills the child, or its process group if it leads one, and reaps the child.
fn kill_and_reap(child: &mut Child, has_group: bool) {
    let group = Pid::from_raw(child.id().cast_signed());
    // After a child was reaped, another process can get its id.
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    if has_group && waitid(Id::Pid(group), flags).is_ok() {
        let _ = killpg(group, Signal::SIGKILL); // it fails only for a child that has ended
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn exchange(
    child: &mut Child,
    mut input: &[u8],
    output: &mut Output,
    deadline: Option<Instant>,
) -> io::Result<End> {
    // The child can exit before it has read all input.
    sys::survive_failed_writes();
    let (mut stdin, mut stdout) = (child.stdin.take(), child.stdout.take());
    let mut stderr = child.stderr.take();
    let pidfd = sys::pidfd(child);
    loop {
        if input.is_empty() {
            stdin = None;
        }
        let Some(wait) = poll_time(deadline) else { return Ok(End::TimedOut) };
        if deadline.is_some() && sys::is_interrupted() {
            return Ok(End::Interrupted);
        }
        let has_no_files =
            stdin.is_none() && stdout.is_none() && stderr.is_none() && pidfd.is_none();
        let files = [
            stdin.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)),
            stdout.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)),
            stderr.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)),
            pidfd.as_ref().map(|pidfd| PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)),
        ];
        let [can_write, can_read, can_read_errors, _] =
            ready(files, if has_no_files { EXIT_PAUSE } else { wait })?;
        if can_write && !write(&mut stdin, &mut input)? {
            stdin = None;
        }
        if can_read && !read(&mut stdout, &mut output.stdout)? {
            stdout = None;
        }
        if can_read_errors && !read(&mut stderr, &mut output.stderr)? {
            stderr = None;
        }
        let exited = child.try_wait()?;
        if exited.is_some() {
            read_rest(stdout.take(), &mut output.stdout)?;
            read_rest(stderr.take(), &mut output.stderr)?;
        }
        if output.stdout.len() > OUTPUT_BYTES_MAX {
            return Ok(End::TooLong);
        }
        output.stderr.truncate(OUTPUT_BYTES_MAX);
        if let Some(status) = exited {
            return Ok(End::Exited(status));
        }
    }
}

/// The length of the next poll(2); `None` at the deadline.
fn poll_time(deadline: Option<Instant>) -> Option<Duration> {
    let Some(deadline) = deadline else { return Some(WAIT_MAX) };
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then(|| left.clamp(EXIT_PAUSE, WAIT_MAX))
}

/// Polls the files. Returns for each whether it can be used without waiting or is closed at the other end; false for all after
/// a signal.
fn ready<const N: usize>(files: [Option<PollFd<'_>>; N], wait: Duration) -> io::Result<[bool; N]> {
    let mut open: Vec<PollFd<'_>> = files.iter().flatten().cloned().collect();
    match poll(&mut open, PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX)) {
        Ok(_) => {}
        Err(Errno::EINTR) => return Ok([false; N]),
        Err(errno) => return Err(errno.into()),
    }
    let mut answers = open.iter().map(|file| file.any().unwrap_or(true));
    Ok(files.map(|file| file.is_some() && answers.next().unwrap_or_default()))
}

/// Writes a part of the input. False if the child has closed its stdin: a child need not read all input.
fn write(stdin: &mut Option<ChildStdin>, input: &mut &[u8]) -> io::Result<bool> {
    let Some(file) = stdin else { return Ok(false) };
    match file.write(&input[..input.len().min(PIPE_BUF)]) {
        Ok(count) => {
            *input = &input[count..];
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
        Err(error) => Err(error),
    }
}

/// Reads a part of the output. False at the end of the output.
fn read(file: &mut Option<impl Read>, into: &mut Vec<u8>) -> io::Result<bool> {
    let Some(file) = file else { return Ok(false) };
    let mut bytes = [0; PIPE_BUF];
    match file.read(&mut bytes) {
        Ok(count) => {
            into.extend(&bytes[..count]);
            Ok(count > 0)
        }
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
        Err(error) => Err(error),
    }
}

/// Reads the data that a child left in a pipe when it exited. It does not wait for the end of the file, which comes only when
/// no process has the pipe open.
fn read_rest(mut file: Option<impl Read + AsFd>, into: &mut Vec<u8>) -> io::Result<()> {
    let Some(pipe) = &file else { return Ok(()) };
    let capacity = fcntl(pipe, FcntlArg::F_GETPIPE_SZ)?;
    // At most one full pipe: another process can write faster than this one reads.
    let end = into.len() + usize::try_from(capacity).unwrap_or_default();
    while into.len() < end {
        let files = file.as_ref().map(|file| PollFd::new(file.as_fd(), PollFlags::POLLIN));
        if ready([files], Duration::ZERO)? == [false] || !read(&mut file, into)? {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use nix::sys::signal::kill;

    use super::*;

    fn shell(script: &str, input: &[u8], timeout: Option<Duration>) -> Output {
        let mut command = Command::new("sh");
        command.args(["-c", script]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        communicate(command.spawn().unwrap(), input, timeout).unwrap()
    }

    const LONG: Option<Duration> = Some(Duration::from_secs(60));

    #[test]
    fn data_longer_than_a_pipe_is_written_and_read_back() {
        let input: Vec<u8> = (0..=255).cycle().take(300_000).collect();
        for timeout in [None, LONG] {
            let output = shell("tee /dev/stderr", &input, timeout);
            assert!(matches!(output.end, End::Exited(status) if status.success()));
            assert!(output.stdout == input && output.stderr == input);
        }
    }

    #[test]
    fn a_child_need_not_read_and_its_status_is_returned() {
        for timeout in [None, LONG] {
            let output = shell("echo no >&2; exit 3", &[b'x'; 100_000], timeout);
            assert!(matches!(output.end, End::Exited(status) if status.code() == Some(3)));
            assert_eq!(output.stderr, b"no\n");
        }
    }

    /// Runs the script, and `left` as a process that keeps stdout and stderr open. A line of the output has the id of that
    /// process, which is then killed.
    fn shell_with_background(left: &str, script: &str, timeout: Option<Duration>) -> Output {
        let output = shell(&format!("{left} & echo $!; {script}"), b"", timeout);
        let mut lines = output.stdout.split(|byte| *byte == b'\n');
        let pid = lines.find_map(|line| str::from_utf8(line).ok()?.parse().ok());
        let _ = kill(Pid::from_raw(pid.unwrap()), Signal::SIGKILL); // without a reader of the pipe, `yes` has ended
        output
    }

    #[test]
    fn a_child_that_ends_counts_as_ended_whatever_it_leaves_behind() {
        for timeout in [LONG, None] {
            for left in ["sleep 1000", "yes"] {
                let output = shell_with_background(left, "exit 3", timeout);
                assert!(matches!(output.end, End::Exited(status) if status.code() == Some(3)));
            }
        }
    }

    #[test]
    fn all_that_a_child_has_printed_until_its_end_is_read() {
        // Each `dd` fills a pipe with one write, so the child can end before the first byte is read.
        let fill = "dd if=/dev/zero bs=65536 count=1 status=none";
        let output = shell_with_background("sleep 1000", &format!("{fill} >&2; exec {fill}"), LONG);
        assert!(matches!(output.end, End::Exited(_)));
        let zeros = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == 0).count();
        assert_eq!((zeros(&output.stdout), output.stderr.len()), (65536, 65536));
    }

    #[test]
    fn stderr_of_a_running_child_is_read_up_to_the_longest_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "head -c 9000000 /dev/zero >&2"]).stderr(Stdio::piped());
        let deadline = Instant::now() + Duration::from_secs(60);
        let output = read_stderr(command.spawn().unwrap(), deadline).unwrap();
        assert_eq!(output.len(), OUTPUT_BYTES_MAX);
    }

    #[test]
    fn a_child_is_killed_at_the_timeout_with_its_process_group() {
        let timeout = Some(Duration::from_secs(5));
        for script in ["echo so far; sleep 100; true", "echo so far; exec >&- 2>&-; sleep 100"] {
            let output = shell(script, b"", timeout);
            assert!(matches!(output.end, End::TimedOut), "{output:?}");
            assert_eq!(output.stdout, b"so far\n");
        }
    }
}
