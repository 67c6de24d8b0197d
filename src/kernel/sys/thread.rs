//! Threads that need no memory besides their stack. A thread of std maps a stack for its signals when it begins; if the kernel
//! has no memory for it, std panics, which ends the process with all of its threads.

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl;

use crate::fault;

/// A function and its argument, for a new thread.
struct Start<T> {
    run: fn(T),
    argument: T,
}

/// Calls `run` in a new thread, which is detached. If the kernel starts no thread, because of RLIMIT_NPROC, `pids.max` of the
/// control group, or a lack of memory, returns the argument with the reason.
pub fn spawn<T: Send + 'static>(
    stack_bytes: usize,
    argument: T,
    run: fn(T),
) -> Result<(), (T, io::Error)> {
    let start = Box::into_raw(Box::new(Start { run, argument }));
    fault::thread().and_then(|()| create(stack_bytes, begin::<T>, start.cast())).map_err(|error| {
        // SAFETY: `start` is from `Box::into_raw`, and no thread has it.
        let start = unsafe { Box::from_raw(start) };
        (start.argument, error)
    })
}

/// Names the calling thread, for `ps -L` and tests. Source: PR_SET_NAME(2const).
pub fn set_name(name: &CStr) {
    // It fails for no valid pointer.
    let _ = prctl::set_name(name);
}

extern "C" fn begin<T>(start: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` passes the pointer of a `Start<T>` from `Box::into_raw` to this thread only.
    let start = unsafe { Box::from_raw(start.cast::<Start<T>>()) };
    (start.run)(start.argument);
    ptr::null_mut()
}

fn create(
    stack_bytes: usize,
    begin: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> io::Result<()> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    // SAFETY: `attributes` is initialized by the first call, and used by the others only if it succeeded. pthread_create(3)
    // keeps no pointer but `argument`.
    unsafe {
        check(libc::pthread_attr_init(attributes))?;
        let created = check(libc::pthread_attr_setstacksize(attributes, stack_bytes))
            .and_then(|()| {
                let detached = libc::PTHREAD_CREATE_DETACHED;
                check(libc::pthread_attr_setdetachstate(attributes, detached))
            })
            .and_then(|()| {
                check(libc::pthread_create(thread.as_mut_ptr(), attributes, begin, argument))
            });
        libc::pthread_attr_destroy(attributes);
        created
    }
}

/// These functions return the error number.
fn check(errno: c_int) -> io::Result<()> {
    if errno == 0 { Ok(()) } else { Err(Errno::from_raw(errno).into()) }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Whether the calling thread has an alternate stack for its signals.
    fn has_signal_stack() -> bool {
        let mut stack = MaybeUninit::<libc::stack_t>::uninit();
        // SAFETY: sigaltstack(2) writes the current stack.
        let stack = unsafe {
            assert_eq!(libc::sigaltstack(ptr::null(), stack.as_mut_ptr()), 0);
            stack.assume_init()
        };
        stack.ss_flags & libc::SS_DISABLE == 0
    }

    #[test]
    fn a_thread_maps_no_memory_besides_its_stack() {
        let (sender, receiver) = channel();
        let run = |sender: Sender<bool>| sender.send(has_signal_stack()).unwrap();
        spawn(64 << 10, sender, run).map_err(|(_, error)| error).unwrap();
        assert!(!receiver.recv().unwrap());
        assert!(std::thread::spawn(has_signal_stack).join().unwrap(), "std maps one");
    }

    #[test]
    fn an_argument_comes_back_if_the_kernel_starts_no_thread() {
        let argument = String::from("argument");
        // No address space has room for this stack.
        let (argument, error) = spawn(1 << (usize::BITS - 2), argument, drop).unwrap_err();
        assert_eq!(argument, "argument");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
    }
}
