//! Versions of the cluster maps that management publishes.
//!
//! A version is `starts << 40 | count`. `starts` counts the `Start` commands in management's log. A
//! leader of management proposes a `Start` before it publishes maps, so the number of starts is
//! durable, and no two leaderships have the same number. `count` is zero for the first map of a
//! leadership, and one higher for each later map. So two maps never share a version, although
//! management logs no version. Every map of a leader has a higher version than all maps of earlier
//! leaders. A leader may be suspended and continue after another member has begun to lead. All
//! versions that the suspended leader then publishes are lower than the versions of its successor.
//!
//! Does not own the number of starts, which is in [`crate::ClusterState`].

use skep_types::MapVersion;

/// Number of bits that count the maps since the last start. At a thousand maps per second, these
/// bits last for 34 years.
const COUNT_BITS: u32 = 40;
/// Maximum number of starts of management that a version can express: sixteen million.
pub const MAX_STARTS: u64 = u64::MAX >> COUNT_BITS;

/// Returns the number of starts that a map version contains.
pub fn starts_of(version: MapVersion) -> u64 {
    version.raw() >> COUNT_BITS
}

/// Assigns the versions of the maps that one leader publishes.
#[derive(Debug, Default)]
pub struct VersionSequence {
    last: MapVersion,
}

impl VersionSequence {
    /// Returns the version of the next map. `starts` is the number of starts that belongs to the
    /// leadership.
    ///
    /// # Panics
    /// Panics if `starts` is lower than at an earlier call, or if no version is left. In both cases
    /// the next version would not be higher than the last version.
    pub fn next(&mut self, starts: u64) -> MapVersion {
        assert!(starts <= MAX_STARTS, "fewer than sixteen million starts");
        let next = (self.last.raw() + 1).max(starts << COUNT_BITS);
        assert_eq!(next >> COUNT_BITS, starts, "versions stay in the range of their start");
        self.last = MapVersion::new(next);
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClusterState, Command};
    use skep_types::ClusterId;

    #[test]
    fn map_versions_after_a_restart_exceed_all_earlier_versions() {
        let mut state = ClusterState::new(ClusterId::new([7; 16]));
        let snapshot = state.snapshot();
        state.apply(&Command::Start).unwrap();
        let mut versions = VersionSequence::default();
        let published: Vec<_> = (0..100).map(|_| versions.next(state.starts())).collect();
        assert_eq!(published[0].raw(), 1 << 40, "the count begins at zero");
        assert!(published.windows(2).all(|pair| pair[0].raw() + 1 == pair[1].raw()));
        // The restart replays the `Start` command of the first start. The log contains no trace of
        // the published maps.
        let mut again = ClusterState::from_snapshot(&snapshot).unwrap();
        again.apply(&Command::Start).unwrap();
        again.apply(&Command::Start).unwrap();
        let next = VersionSequence::default().next(again.starts());
        assert!(next > published[99]);
        assert_eq!(starts_of(next), 2);
    }

    #[test]
    fn map_version_contains_the_number_of_management_starts() {
        let mut versions = VersionSequence::default();
        let before = versions.next(3);
        assert_eq!(versions.next(MAX_STARTS).raw(), MAX_STARTS << 40);
        assert_eq!(versions.next(MAX_STARTS).raw(), (MAX_STARTS << 40) + 1);
        assert!(before.raw() >> 40 == 3);
    }

    #[test]
    #[should_panic(expected = "in the range of their start")]
    fn map_version_of_an_earlier_management_start_is_refused() {
        let mut versions = VersionSequence::default();
        versions.next(2);
        versions.next(1);
    }
}
