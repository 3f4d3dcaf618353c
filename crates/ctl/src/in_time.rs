//! Accesses a file system that may not reply: a path on a mount whose servers are absent.

use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// Time limit for the lookup of a path in the arguments of a command. If the servers of a mount
/// answer, a lookup takes milliseconds.
pub(crate) const LOOKUP_PATIENCE: Duration = Duration::from_secs(2);

/// Runs `work` on a separate thread, and returns its result. `None` means that `work` did not end
/// within `patience`. In this case, the thread continues until the file system replies or the
/// process ends.
pub(crate) fn within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = sync_channel(1);
    let run = move || drop(sender.send(work()));
    skep_env::spawn_thread("skep-lookup".into(), None, run).ok()?;
    receiver.recv_timeout(patience).ok()
}

/// Returns the canonical form of a path. If the file system of the path does not reply in time,
/// returns the absolute path without a lookup.
pub(crate) fn canonical(path: &Path) -> std::io::Result<PathBuf> {
    let asked = path.to_owned();
    match within(LOOKUP_PATIENCE, move || asked.canonicalize()) {
        Some(found) => found,
        None => std::path::absolute(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn file_system_reply_after_the_time_limit_is_dropped() {
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
        let (sender, receiver) = channel::<()>();
        let waiting = within(Duration::from_millis(10), move || receiver.recv().is_ok());
        assert_eq!(waiting, None);
        drop(sender);
    }
}
