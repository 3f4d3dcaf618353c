//! Waits for the end of the processes that a killed supervisor has left behind. Only then can new
//! processes use the directories and ports of the cluster.

use skep_types::{Error, ErrorCode, Result};
use std::time::Duration;

/// Time between two checks of the processes.
const TICK: Duration = Duration::from_millis(50);

/// Waits until none of `processes` runs. These processes usually end without a signal. Calls `kill`
/// once for each process that still runs after the first time limit. The second time limit begins
/// after these calls.
///
/// # Errors
/// - `Interrupted` if `is_interrupted` returns true.
/// - `TimedOut` if a process still runs after the second time limit.
pub(super) async fn await_end(
    processes: &[u32],
    runs: impl Fn(u32) -> bool,
    (until_kill, after_kill): (Duration, Duration),
    is_interrupted: impl Fn() -> bool,
    kill: impl Fn(u32),
) -> Result<()> {
    let began = skep_env::now();
    let mut killed_at = None;
    loop {
        let left: Vec<u32> = processes.iter().copied().filter(|process| runs(*process)).collect();
        if left.is_empty() {
            return Ok(());
        }
        if is_interrupted() {
            return Err(Error::new(ErrorCode::Interrupted, "interrupted"));
        }
        let now = skep_env::now();
        match killed_at {
            None if now > began + until_kill => {
                left.iter().for_each(|process| kill(*process));
                killed_at = Some(now);
            }
            Some(killed_at) if now > killed_at + after_kill => {
                return Err(unkillable(&left, after_kill));
            }
            _ => {}
        }
        skep_env::sleep(TICK).await;
    }
}

fn unkillable(left: &[u32], after_kill: Duration) -> Error {
    let ids: Vec<_> = left.iter().map(u32::to_string).collect();
    let what = format!(
        "cannot start the cluster: processes of an earlier `skep up` ({}) have not ended within {} \
         s after their kill, because the kernel waits, for example for a disk or a file server \
         that does not answer (`ps -o pid,state,wchan,args -p {}`); wait until the disk or the \
         server answers, or restart this host",
        ids.join(", "),
        after_kill.as_secs(),
        ids.join(",")
    );
    Error::new(ErrorCode::TimedOut, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// Waits for two processes. At the first `checks` checks, the first process runs. The second
    /// process has ended before the wait. Returns the result, and the processes that were killed.
    fn wait(checks: usize, is_interrupted: bool) -> (Result<()>, Vec<u32>) {
        let killed = Rc::new(RefCell::new(Vec::new()));
        let list = Rc::clone(&killed);
        let left = RefCell::new(checks);
        let runs = move |process: u32| {
            let mut left = left.borrow_mut();
            *left = left.saturating_sub(usize::from(process == 7));
            process == 7 && *left > 0
        };
        let result = skep_env::block_on(async move {
            let kill = |process| list.borrow_mut().push(process);
            let limits = (Duration::ZERO, TICK);
            await_end(&[7, 8], runs, limits, || is_interrupted, kill).await
        });
        (result.unwrap(), killed.take())
    }

    #[test]
    fn unkillable_process_of_an_earlier_cluster_is_an_error() {
        let (result, killed) = wait(usize::MAX, false);
        let error = result.unwrap_err();
        assert_eq!((error.code(), killed), (ErrorCode::TimedOut, vec![7]));
        assert!(error.context().contains("of an earlier `skep up` (7) have not ended"), "{error}");
    }

    #[test]
    fn wait_for_former_processes_ends_at_their_exit_or_a_signal() {
        let (result, killed) = wait(1, false);
        assert!(result.is_ok() && killed.is_empty());
        let (result, _) = wait(usize::MAX, true);
        assert_eq!(result.unwrap_err().code(), ErrorCode::Interrupted);
    }
}
