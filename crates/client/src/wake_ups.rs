//! For unit tests: checks that the end of an operation wakes a waiting task of another thread.

use std::sync::mpsc;
use std::time::Duration;

/// Time limit of a wait. The limit is far longer than a wait takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of waits in each check, one in each round.
const ROUNDS: u32 = 1000;

/// Lets another thread wait many times for the end of an operation of this thread. `begin` begins
/// the operation, `end` ends it, and `wait` waits for its end. In each round, the other thread
/// begins to wait while the operation ends. Nothing else notifies the other thread, so a single
/// lost wake-up makes the check fail.
///
/// # Panics
/// Panics if a wake-up was lost.
pub(crate) fn check_wake_ups<S: Clone + Send + 'static, G>(
    shared: &S,
    begin: impl Fn(&S) -> G,
    end: impl Fn(G),
    wait: impl AsyncFn(&S) + Send + 'static,
) {
    let (next, rounds) = mpsc::channel();
    let (done, outcomes) = mpsc::channel();
    let waiting = {
        let shared = shared.clone();
        std::thread::spawn(move || {
            skep_env::block_on(async move {
                while rounds.recv().is_ok() {
                    let is_woken = skep_env::timeout(PATIENCE, wait(&shared)).await.is_some();
                    // If the send fails, the checking thread has ended.
                    let _ = done.send(is_woken);
                }
            })
        })
    };
    for round in 0..ROUNDS {
        let operation = begin(shared);
        next.send(()).unwrap();
        // In some rounds the operation ends before the other thread checks the state, in others
        // while that thread sleeps.
        for _ in 0..round % 16 {
            std::thread::yield_now();
        }
        end(operation);
        assert!(outcomes.recv().unwrap(), "the wake-up of round {round} was lost");
    }
    drop(next);
    waiting.join().unwrap().unwrap();
}
