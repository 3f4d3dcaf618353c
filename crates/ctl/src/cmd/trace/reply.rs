//! Waits for a reply of a mount on a separate thread. A mount whose servers are absent may not
//! reply, and the command must end in time nevertheless.

use crate::in_time::LOOKUP_PATIENCE;
use crate::output::{has_no_reader, warn};
use skep_env::Mailbox;
use skep_types::Result;
use std::path::Path;
use std::time::Duration;

/// Time between two checks whether the command must end without a reply.
const CHECK: Duration = Duration::from_millis(100);

/// Whether the command must end: its output has no reader any more, or the time `end` has come.
pub(super) fn is_over(end: Option<Duration>) -> bool {
    has_no_reader() || end.is_some_and(|end| skep_env::now() >= end)
}

/// Runs `ask`, which sends a request to the mount at `place`, on a separate thread. Returns the
/// result of `ask`. `None` means that the command must end before the mount replies. Prints a
/// warning if the mount does not reply in time.
///
/// # Errors
/// Returns an error if the process is out of file descriptors or threads.
pub(super) async fn reply_of<T: Send + 'static>(
    place: &Path,
    end: Option<Duration>,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>> {
    let (sender, mailbox) = Mailbox::new(1)?;
    let run = move || {
        // The queue has space for the only reply.
        let _ = sender.send(ask());
    };
    skep_env::spawn_thread("skep-trace".into(), None, run)?;
    let late_at = skep_env::now().saturating_add(LOOKUP_PATIENCE);
    let mut is_late = false;
    loop {
        if let Some(reply) = skep_env::timeout(CHECK, mailbox.receive()).await {
            return Ok(Some(reply?));
        }
        if is_over(end) {
            return Ok(None);
        }
        if !is_late && skep_env::now() >= late_at {
            is_late = true;
            warn(&format!(
                "the mount at {0} has not replied for {1} s; `skep why {0}` shows the requests \
                 that wait",
                place.display(),
                LOOKUP_PATIENCE.as_secs()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::block_on;
    use std::sync::mpsc::channel;

    /// Regression test: `skep trace --for 10s` did not end while the mount did not reply.
    #[test]
    fn trace_ends_in_time_although_the_mount_does_not_reply() {
        let (sender, receiver) = channel::<()>();
        let end = Some(skep_env::now());
        let ask = move || receiver.recv().is_ok();
        assert_eq!(block_on(reply_of(Path::new("/mnt"), end, ask)), Ok(None));
        drop(sender);
        assert_eq!(block_on(reply_of(Path::new("/mnt"), None, || 7)), Ok(Some(7)));
    }
}
