//! A queue per path for the threads of one process, which would otherwise poll for one another's flock(2).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{ArcMutexGuard, Mutex, RawMutex};

use super::Limit;

/// The queues of the threads that share this value, one queue for each path. A path has a queue only while a thread holds or
/// awaits a turn there, so the memory does not grow with the number of paths ever used. A new `Turns` allocates nothing.
///
/// Two spellings of one path are two queues. That costs fairness only: the flock(2) still excludes their threads from each
/// other.
#[derive(Default)]
pub struct Turns {
    queues: Mutex<Vec<Queue>>,
}

struct Queue {
    path: PathBuf,
    /// Locked by the thread that has the turn.
    turn: Arc<Mutex<()>>,
}

/// The turn of one thread at a path. Dropping it passes the turn on to the thread that has waited longest.
///
/// A thread that takes a second turn at the same path waits for itself, until its timeout.
pub struct Turn<'a> {
    turns: &'a Turns,
    /// `Some` until `drop`.
    guard: Option<ArcMutexGuard<RawMutex, ()>>,
}

impl Turns {
    /// Waits for the turn of the calling thread; `None` after the timeout.
    pub fn take(&self, path: &Path, limit: &Limit) -> Option<Turn<'_>> {
        let turn = self.join(path);
        // The first attempt does not read the clock.
        match turn.try_lock_arc().or_else(|| turn.try_lock_arc_for(limit.left())) {
            guard @ Some(_) => Some(Turn { turns: self, guard }),
            None => {
                self.leave(turn);
                None
            }
        }
    }

    /// Returns the mutex of the queue at a path. Adds a queue if there is none.
    fn join(&self, path: &Path) -> Arc<Mutex<()>> {
        let mut queues = self.queues.lock();
        if let Some(queue) = queues.iter().find(|queue| queue.path == path) {
            return Arc::clone(&queue.turn);
        }
        let turn = Arc::default();
        queues.push(Queue { path: path.into(), turn: Arc::clone(&turn) });
        turn
    }

    /// Removes the queue if no other thread is in it.
    fn leave(&self, turn: Arc<Mutex<()>>) {
        let mut queues = self.queues.lock();
        // Two references: that of the list, and `turn`. No thread joins meanwhile, because it needs the lock of the list.
        if Arc::strong_count(&turn) == 2 {
            queues.retain(|queue| !Arc::ptr_eq(&queue.turn, &turn));
        }
        // Dropped under the lock of the list, so that the last thread that leaves counts two references.
        drop(turn);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            let turn = Arc::clone(ArcMutexGuard::mutex(&guard));
            ArcMutexGuard::unlock_fair(guard);
            self.turns.leave(turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn take<'a>(turns: &'a Turns, path: &str, limit: Duration) -> Option<Turn<'a>> {
        turns.take(Path::new(path), &Limit::new(limit))
    }

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn a_turn_is_for_one_path_only() {
        let turns = Turns::default();
        let one = take(&turns, "/a", SHORT);
        assert!(one.is_some() && take(&turns, "/a", SHORT).is_none());
        assert!(take(&turns, "/a/", Duration::ZERO).is_none(), "the same path");
        assert!(take(&turns, "/b", Duration::ZERO).is_some());
        drop(one);
        assert!(take(&turns, "/a", Duration::ZERO).is_some());
    }

    #[test]
    fn a_turn_without_contention_does_not_read_the_clock() {
        let (turns, limit) = (Turns::default(), Limit::new(SHORT));
        let turn = turns.take(Path::new("/a"), &limit);
        assert!(turn.is_some() && limit.since.get().is_none());
        assert!(turns.take(Path::new("/a"), &limit).is_none());
        assert_eq!(limit.left(), Duration::ZERO);
    }

    #[test]
    fn queues_exist_only_while_threads_are_in_them() {
        let turns = Turns::default();
        let (inside, rounds) = (AtomicU32::new(0), 200);
        thread::scope(|scope| {
            for number in 0..8 {
                let (turns, inside) = (&turns, &inside);
                scope.spawn(move || {
                    for round in 0..rounds {
                        // Some waits end at their timeout.
                        let limit = if (number + round) % 5 == 0 { Duration::ZERO } else { LONG };
                        let Some(turn) = take(turns, "/a", limit) else { continue };
                        assert_eq!(inside.fetch_add(1, Relaxed), 0);
                        assert_eq!(turns.queues.lock().len(), 1);
                        inside.fetch_sub(1, Relaxed);
                        drop(turn);
                    }
                });
            }
        });
        assert!(turns.queues.lock().is_empty());
        assert!(take(&turns, "/a", SHORT).is_some());
        assert!(turns.queues.lock().is_empty());
    }

    /// Whether a thread of this process sleeps. Source: proc_pid_stat(5), field 3.
    fn sleeps(thread: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('S')
    }

    #[test]
    fn the_thread_that_waited_longest_is_next() {
        let turns = Turns::default();
        let order = Mutex::new(Vec::new());
        let first = take(&turns, "/a", LONG);
        let waiters = || Arc::strong_count(&turns.queues.lock()[0].turn) - 2;
        thread::scope(|scope| {
            for number in 1..=8 {
                let waiter = Arc::new(AtomicU32::new(0));
                let id = Arc::clone(&waiter);
                let (turns, order) = (&turns, &order);
                scope.spawn(move || {
                    id.store(nix::unistd::gettid().as_raw().unsigned_abs(), Relaxed);
                    let _turn = take(turns, "/a", LONG).unwrap();
                    order.lock().push(number);
                });
                while waiters() < number || !sleeps(waiter.load(Relaxed)) {
                    thread::yield_now();
                }
            }
            drop(first);
            // This thread asks for a turn again at once, and must wait behind the others.
            let _turn = take(&turns, "/a", LONG);
            order.lock().push(9);
        });
        assert_eq!(*order.lock(), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }
}
