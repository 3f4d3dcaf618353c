//! Tests the cluster settings `metadata-lease` and `metadata-take-over-after`.

use crate::pair::{Pair, after};
use std::time::Duration;

/// Time after which all members have received a new setting.
const SPREAD: Duration = Duration::from_secs(2);
/// Settings with a long delay before a take-over, and the longest lease that this delay permits.
const LONG: [(&str, &str); 2] =
    [("metadata-take-over-after", "6000ms"), ("metadata-lease", "5000ms")];
/// The minimum values of both settings. The test must set the lease first, because the lease must
/// be shorter than the delay.
const SHORT: [(&str, &str); 2] =
    [("metadata-lease", "1000ms"), ("metadata-take-over-after", "1250ms")];
/// Minimum pause with the values of `LONG`. The delay of the take-over begins at the primary's last
/// request, which may be half a second older than the kill.
const LEAST_LONG_PAUSE: Duration = Duration::from_millis(5_400);
/// Under `LONG`, a member promises not to take over. This promise ends after this time.
const LONG_PROMISES: Duration = Duration::from_secs(6);

/// Command: skep config set.
#[test]
fn pause_after_a_killed_primary_follows_the_lease_settings() {
    let mut pair = Pair::begin();
    let (name, value) = LONG[1];
    let refused = pair.ask(&["config", "set", name, value]);
    assert!(!refused.status.success(), "the other setting permits no such lease");
    assert!(refused.stderr.contains("change the other of the two settings first"), "{refused:?}");
    let mut measured = Vec::new();
    pair.under_load(41, |pair, pauses| {
        for settings in [LONG, SHORT] {
            for (name, value) in settings {
                pair.ask(&["config", "set", name, value]).expect_success();
            }
            after(if settings == LONG { SPREAD } else { SPREAD + LONG_PROMISES });
            pauses.take();
            let (primary, backup) = pair.roles();
            pair.kill(primary);
            pair.wait_for_primary(backup);
            measured.push(pauses.take());
            pair.start_service("metadata", primary);
            pair.wait_for_serving(2);
        }
    });
    eprintln!("pauses with the long and the short times: {measured:?}");
    assert!(measured[0] >= LEAST_LONG_PAUSE, "{measured:?}");
    assert!(measured[1] < measured[0] / 2, "{measured:?}");
}
