//! Detached threads without a name. std's threads cost 17 KB: their names go through musl's `snprintf`.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use nix::libc;

type Run = Box<dyn FnOnce() + Send>;

/// The kernel gives a thread pages as it uses them.
const STACK_BYTES: usize = 256 << 10;

/// Runs a closure in a new thread. A panic in it aborts the process.
pub fn start(run: Run) -> io::Result<()> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    let argument = Box::into_raw(Box::new(run));
    // SAFETY: the first call initializes the attributes. `argument` is a valid pointer, which `enter` or the code below frees.
    // No call needs the thread later, since it is detached. The C library gives the stack back.
    let code = unsafe {
        let attributes = attributes.as_mut_ptr();
        libc::pthread_attr_init(attributes);
        libc::pthread_attr_setstacksize(attributes, STACK_BYTES);
        libc::pthread_attr_setdetachstate(attributes, libc::PTHREAD_CREATE_DETACHED);
        let code = libc::pthread_create(thread.as_mut_ptr(), attributes, enter, argument.cast());
        libc::pthread_attr_destroy(attributes);
        code
    };
    if code == 0 {
        return Ok(());
    }
    // SAFETY: no thread has started, so the pointer has no other owner.
    drop(unsafe { Box::from_raw(argument) });
    Err(io::Error::from_raw_os_error(code))
}

extern "C" fn enter(argument: *mut c_void) -> *mut c_void {
    // SAFETY: `start` gives the pointer of a box to this thread only.
    let run = unsafe { Box::from_raw(argument.cast::<Run>()) };
    run();
    ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_thread_runs_its_closure_once_and_drops_it() {
        let (sender, receiver) = mpsc::channel();
        start(Box::new(move || sender.send(5).unwrap())).unwrap();
        assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok(5));
        // The sender is dropped with the closure.
        let end = receiver.recv_timeout(Duration::from_secs(60));
        assert_eq!(end, Err(mpsc::RecvTimeoutError::Disconnected));
    }
}
