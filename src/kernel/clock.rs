//! CLOCK_BOOTTIME, which counts also while the host is suspended, an alarm on that clock, the processor time of this process, and
//! waiting for readable files.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::clock_gettime;

/// The time since boot, on CLOCK_BOOTTIME.
pub fn since_boot() -> Duration {
    // The call cannot fail since Linux 2.6.39.
    clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

/// The processor time that this process has used, in user and in kernel mode.
pub fn processor_time() -> Duration {
    // The call cannot fail for this clock.
    clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID)
        .map_or(Duration::ZERO, Duration::from)
}

/// A timerfd: a file that becomes readable at a time. If that time passes while the host is suspended, the file is readable at
/// once after the resume; the timeout of poll(2) does not count while the host is suspended.
pub struct Alarm(TimerFd);

impl Alarm {
    pub fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        Ok(Self(TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?))
    }

    /// Sets the time, as time since boot. `None` disarms the alarm. After a time in the past the file is readable at once.
    pub fn set(&self, at: Option<Duration>) -> io::Result<()> {
        let Some(at) = at else { return Ok(self.0.unset()?) };
        // Zero would stop the timer.
        let at = TimeSpec::from(at.max(Duration::from_nanos(1)));
        Ok(self.0.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?)
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until a file is readable, has an error or is closed, or until the timeout. `None`: no timeout. Returns for each file
/// whether poll(2) reported one of these events: after the timeout, every value is false. A signal does not end the wait.
pub fn readable(files: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<Vec<bool>> {
    let mut list: Vec<_> = files.iter().map(|file| PollFd::new(*file, PollFlags::POLLIN)).collect();
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // Rounded up: a timeout of 0 would make the last millisecond a busy loop.
        let left_ms = left.map(|left| i32::try_from(left.as_nanos().div_ceil(1_000_000)));
        let left = match left_ms {
            None => PollTimeout::NONE,
            Some(ms) => PollTimeout::try_from(ms.unwrap_or(i32::MAX)).unwrap_or(PollTimeout::MAX),
        };
        match poll(&mut list, left) {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(_) => break,
        }
    }
    let is_readable = |file: &PollFd<'_>| file.revents().is_some_and(|events| !events.is_empty());
    Ok(list.iter().map(is_readable).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use nix::sys::signal::{Signal, kill};

    use super::*;
    use crate::kernel::sys;

    #[test]
    fn an_alarm_rings_at_its_time_and_not_before() {
        let alarm = Alarm::new().unwrap();
        let rings = |timeout| readable(&[alarm.as_fd()], Some(timeout)).unwrap() == [true];
        assert!(!rings(Duration::ZERO));
        alarm.set(Some(Duration::ZERO)).unwrap();
        assert!(rings(Duration::from_secs(10)));
        let end = since_boot() + Duration::from_millis(20);
        alarm.set(Some(end)).unwrap();
        assert!(rings(Duration::from_secs(10)) && since_boot() >= end);
        alarm.set(None).unwrap();
        assert!(!rings(Duration::from_millis(1)));
    }

    #[test]
    fn a_signal_does_not_end_a_wait() {
        let timeout = Duration::from_millis(50);
        let (thread, is_over) = (nix::unistd::gettid(), AtomicBool::new(false));
        sys::catch_interrupts();
        let waited = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    kill(thread, Signal::SIGTERM).unwrap();
                    readable(&[], Some(Duration::from_millis(1))).unwrap();
                }
            });
            let start = Instant::now();
            let waited = readable(&[], Some(timeout)).map(|_| start.elapsed());
            is_over.store(true, SeqCst);
            waited
        });
        assert!(waited.unwrap() >= timeout && sys::is_interrupted());
        sys::forget_interrupt();
    }
}
