//! The state that a storage target preserves across restarts.

use crate::sealed;
use skep_types::codec::record;
use skep_types::{HostIncarnation, Result};

const MAGIC: [u8; 8] = *b"SKEPSTAT";
const VERSION: u16 = 2;

record! {
    /// Identifies the page cache to which a target wrote. While a target finds the same mark at
    /// each start, the page cache still has all writes that the target acknowledged.
    #[derive(Copy)]
    pub struct HostMark {
        /// Random number that the kernel draws at each boot of the host.
        pub boot_id: u128,
        /// Device number of the file system that contains the target's directory.
        pub device: u64,
        /// Id of the mount of the file system that contains the target's directory. The kernel
        /// gives each mount a new id.
        pub mount: u64,
        /// Inode number of the target's directory. The number distinguishes this directory from a
        /// copy of the directory.
        pub directory: u64,
    }
}

record! {
    /// State of a storage target, stored with a checksum in the file `state`. The target replaces
    /// the file at each start and at each clean shutdown.
    #[derive(Copy)]
    pub struct TargetState {
        /// Start number of the target: the number of its starts, including the current start. A
        /// region page contains the start number of the target at the time of the write of the
        /// page.
        pub start: u64,
        /// The host incarnation that the target writes into its replies.
        pub incarnation: HostIncarnation,
        /// Whether all writes were synced when the target's last process ended. Only a clean
        /// shutdown sets this field.
        pub clean: bool,
        /// Whether a write or sync has failed. After such a failure, acknowledged writes may be
        /// lost even without a reboot.
        pub failed: bool,
        /// Start number of the earliest start after which the page cache has lost no data. Region
        /// pages with this start number or a higher one cannot have been torn.
        pub kept_since: u64,
        /// Mark of the host's page cache at the time of the write of this state.
        pub host: HostMark,
    }
}

impl TargetState {
    /// Encodes the state as the content of the file `state`.
    pub fn to_file(&self) -> Vec<u8> {
        sealed::seal(MAGIC, VERSION, self)
    }

    /// Decodes a state from the content of the file `state`.
    ///
    /// # Errors
    /// - `Corrupt` if the bytes are not a valid target state.
    /// - `Unsupported` if the state has a different version.
    pub fn from_file(bytes: &[u8]) -> Result<Self> {
        sealed::open(MAGIC, VERSION, bytes)
    }

    /// Returns the state for the next start. `fresh` must be a random number. If acknowledged
    /// writes may have been lost since the previous start, the new incarnation is `fresh`.
    #[must_use]
    pub fn next_start(previous: Option<Self>, host: HostMark, fresh: HostIncarnation) -> Self {
        let nothing_lost =
            previous.filter(|state| !state.failed && (state.clean || state.host == host));
        let start = previous.map_or(0, |state| state.start) + 1;
        Self {
            start,
            kept_since: nothing_lost.map_or(start, |state| state.kept_since),
            incarnation: nothing_lost.map_or(fresh, |state| state.incarnation),
            clean: false,
            failed: false,
            host,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostMark = HostMark { boot_id: 1, device: 2, mount: 3, directory: 4 };
    const FRESH: HostIncarnation = HostIncarnation::new(99);

    #[test]
    fn incarnation_changes_only_when_writes_may_be_lost() {
        let first = TargetState::next_start(None, HOST, HostIncarnation::new(7));
        assert_eq!((first.start, first.incarnation.raw()), (1, 7));
        let others = [
            HostMark { boot_id: 9, ..HOST },
            HostMark { device: 9, ..HOST },
            HostMark { mount: 9, ..HOST },
            HostMark { directory: 9, ..HOST },
        ];
        let next = |state: TargetState, host| {
            let next = TargetState::next_start(Some(state), host, FRESH);
            assert_eq!((next.start, next.clean, next.failed, next.host), (2, false, false, host));
            next.incarnation.raw()
        };
        assert_eq!(next(first, HOST), 7, "killed: the page cache is still there");
        for host in others {
            assert_eq!(next(first, host), 99, "{host:?}");
            assert_eq!(next(TargetState { clean: true, ..first }, host), 7, "{host:?}");
            let lost = TargetState::next_start(Some(first), host, FRESH);
            assert_eq!(lost.kept_since, 2);
            let kept = TargetState::next_start(Some(lost), host, FRESH);
            assert_eq!((kept.start, kept.kept_since), (3, 2));
        }
        assert_eq!(next(TargetState { failed: true, ..first }, HOST), 99);
        assert_eq!(next(TargetState { failed: true, clean: true, ..first }, HOST), 99);
    }

    #[test]
    fn target_state_survives_a_round_trip() {
        let state = TargetState::next_start(None, HOST, FRESH);
        assert_eq!(TargetState::from_file(&state.to_file()).unwrap(), state);
    }
}
