//! The time in which data of each client moves to or from a target. Simultaneous transfers of a
//! client count once, because they share the link of the client. If each transfer counted
//! separately, the link of a client with many transfers would look slow.
//!
//! The module is pure: it uses no I/O and no clock. `request_meter` has the counters.

use skep_types::NodeId;
use std::collections::HashMap;
use std::time::Duration;

/// Maximum number of clients in the table. If another client appears, the table forgets all
/// clients, and the time of a transfer in progress may count twice.
const MAX_CLIENTS: usize = 1024;

/// For each client, the time up to which the meter has counted its transfers.
#[derive(Debug, Default)]
pub(crate) struct Transfers(HashMap<NodeId, Duration>);

impl Transfers {
    /// Counts a transfer that has ended now. Returns the part of its time that was not counted for
    /// another transfer of the client.
    ///
    /// Transfers are counted when they end, and only from the end of the transfer that was counted
    /// last. So if transfer A begins before transfer B and ends after transfer B, the time of A
    /// before the beginning of B does not count. If each transfer of a client begins before the end
    /// of the transfer that was counted last, the sum of the counted times is the whole time.
    pub(crate) fn count(&mut self, client: NodeId, began: Duration, now: Duration) -> Duration {
        if self.0.len() >= MAX_CLIENTS && !self.0.contains_key(&client) {
            self.0.clear();
        }
        let counted_to = self.0.entry(client).or_default();
        let from = began.max(*counted_to);
        *counted_to = now.max(*counted_to);
        now.saturating_sub(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn time_of_overlapping_transfers_of_a_client_counts_once() {
        let mut transfers = Transfers::default();
        let (one, other) = (NodeId::new(1), NodeId::new(2));
        // Four connections share the link, and each transfer takes four times as long.
        let mut sum = Duration::ZERO;
        for end in 4..40 {
            sum += transfers.count(one, ms(10 * (end - 4)), ms(10 * end));
        }
        assert_eq!(sum, ms(390));
        assert_eq!(
            transfers.count(other, ms(380), ms(390)),
            ms(10),
            "the meter counts the times of two clients separately"
        );
        assert_eq!(transfers.count(one, ms(500), ms(520)), ms(20), "a pause does not count");
        assert_eq!(transfers.count(one, ms(505), ms(515)), ms(0));
    }

    #[test]
    fn number_of_remembered_clients_is_bounded() {
        let mut transfers = Transfers::default();
        for client in 1..=10_000 {
            assert_eq!(transfers.count(NodeId::new(client), ms(1), ms(2)), ms(1));
            assert!(transfers.0.len() <= MAX_CLIENTS);
        }
    }
}
