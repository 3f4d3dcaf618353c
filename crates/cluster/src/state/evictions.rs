//! The last evictions of clients, for `skep client list --evicted` and `skep health check`.
//!
//! The module `clients` owns the removal of a client.
//!
//! # Invariants
//! At most [`MAX_EVICTIONS`] evictions are stored. The oldest one is removed first.

use crate::limits::MAX_EVICTIONS;
use skep_types::codec::{Codec, Reader, Writer};
use skep_types::{Eviction, Result};
use std::collections::VecDeque;

/// The evictions in the order in which management executed them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct RecentEvictions(VecDeque<Eviction>);

impl RecentEvictions {
    /// Adds an eviction.
    pub(super) fn add(&mut self, eviction: Eviction) {
        if self.0.len() >= MAX_EVICTIONS {
            self.0.pop_front();
        }
        self.0.push_back(eviction);
    }

    /// Returns the evictions, the oldest first.
    pub(super) fn all(&self) -> impl Iterator<Item = &Eviction> {
        self.0.iter()
    }

    /// Asserts the invariant of the module.
    pub(super) fn check_invariants(&self) {
        assert!(self.0.len() <= MAX_EVICTIONS, "the number of evictions is bounded");
    }
}

impl Codec for RecentEvictions {
    const LAYOUT: &'static str = "u32 count, evictions";

    fn encode(&self, w: &mut Writer) {
        (self.0.len() as u32).encode(w);
        self.0.iter().for_each(|eviction| eviction.encode(w));
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self> {
        let all: Vec<Eviction> = Codec::decode(r)?;
        if all.len() > MAX_EVICTIONS {
            return Err(r.corrupt(format_args!(
                "{} evictions of clients are more than the limit of {MAX_EVICTIONS}",
                all.len()
            )));
        }
        Ok(Self(all.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::ClientRegistration;
    use crate::state::skipped_ids::SkippedIds;
    use crate::state::tests::{cluster, server};
    use crate::{ClusterState, Command};
    use skep_types::{EvictionCause, GroupId, NodeId, TargetKind, Timestamp};

    fn eviction(client: NodeId) -> Eviction {
        Eviction {
            client,
            name: String::new(),
            time: Timestamp { seconds: 7, nanoseconds: 0 },
            cause: EvictionCause::LeaseExpired,
            group: GroupId::new(3),
            silent_ms: 5_000,
        }
    }

    fn register(state: &mut ClusterState) -> NodeId {
        let client = ClientRegistration {
            host: "cl2".into(),
            mount_point: "/mnt".into(),
            ..ClientRegistration::default()
        };
        state.apply(&Command::RegisterClient(client)).unwrap().node
    }

    #[test]
    fn eviction_records_keep_client_names_after_a_restart() {
        let mut state = cluster();
        let (evicted, left) = (register(&mut state), register(&mut state));
        let command = Command::EvictClient(eviction(evicted));
        assert_eq!(Command::from_bytes(&command.to_bytes()).unwrap(), command);
        assert!(state.apply(&command).unwrap().changed);
        assert!(!state.apply(&command).unwrap().changed, "the client is evicted once");
        state.apply(&Command::RemoveClient { node: left }).unwrap();
        let state = ClusterState::from_snapshot(&state.snapshot()).unwrap();
        let kept: Vec<_> = state.evictions().cloned().collect();
        assert_eq!(kept, [Eviction { name: "cl2:/mnt".into(), ..eviction(evicted) }]);
        assert_eq!((state.map().nodes.len(), state.clients().len()), (0, 0));
    }

    #[test]
    fn only_the_newest_evictions_are_kept() {
        let mut state = cluster();
        let mut last = NodeId::default();
        for _ in 0..MAX_EVICTIONS + 3 {
            last = register(&mut state);
            state.apply(&Command::EvictClient(eviction(last))).unwrap();
        }
        assert_eq!(state.evictions().count(), MAX_EVICTIONS);
        assert_eq!(state.evictions().last().unwrap().client, last);
        let mut long = state.evictions.clone();
        long.0.push_back(eviction(last));
        assert!(RecentEvictions::from_bytes(&long.to_bytes()).is_err());
    }

    /// Older versions of the program stored no evictions, server names or skipped ids, so their
    /// snapshots end where one of these lists would begin.
    #[test]
    fn snapshots_of_older_versions_without_new_lists_are_read() {
        let mut state = cluster();
        register(&mut state);
        state.apply(&server(TargetKind::Storage, 1, &[])).unwrap();
        let skipped = SkippedIds::default().to_bytes().len();
        let names = state.names.to_bytes().len();
        let evictions = RecentEvictions::default().to_bytes().len();
        for later in [skipped, skipped + names, skipped + names + evictions] {
            let mut bytes = state.snapshot();
            bytes.truncate(bytes.len() - later);
            assert_eq!(ClusterState::from_snapshot(&bytes).unwrap(), state);
        }
    }
}
