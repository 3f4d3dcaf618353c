//! The checks of the cluster maps that the leaders of management publish. A previous leader may
//! publish maps after its successor has begun, so this checker may receive maps in any order of
//! versions.
//!
//! # Checks
//! - Two maps with one version are equal.
//! - A map with a higher version has an epoch of the group that is not lower. So a new leader keeps
//!   all changes that an earlier map has shown, and a previous leader shows no later change.
//! - Two maps with one epoch name the same primary and the same serving members.

use super::authority::group_of;
use skep_types::{ClusterMap, Epoch, MapVersion, MemberState, TargetId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The primary and the serving members in one epoch.
type ServingMembers = (TargetId, Vec<TargetId>);

/// All maps that a run has published.
#[derive(Debug, Default)]
pub(super) struct PublishedMaps {
    maps: BTreeMap<MapVersion, Arc<ClusterMap>>,
    epochs: BTreeMap<Epoch, ServingMembers>,
}

impl PublishedMaps {
    /// Adds a map that a leader publishes.
    ///
    /// # Errors
    /// Describes how the map contradicts the maps that were published before.
    pub(super) fn add(&mut self, map: &Arc<ClusterMap>) -> Result<(), String> {
        let version = map.version;
        if let Some(other) = self.maps.get(&version) {
            return match other == map {
                true => Ok(()),
                false => Err(format!("two different maps have the version {version}")),
            };
        }
        let group = group_of(map);
        let epoch = group.epoch;
        let epoch_of =
            |(version, map): (&MapVersion, &Arc<ClusterMap>)| (*version, group_of(map).epoch);
        if let Some((earlier, shown)) = self.maps.range(..version).next_back().map(epoch_of)
            && shown > epoch
        {
            return Err(format!(
                "map {version} goes back to epoch {epoch}, but map {earlier} has epoch {shown}"
            ));
        }
        if let Some((later, shown)) = self.maps.range(version..).next().map(epoch_of)
            && shown < epoch
        {
            return Err(format!(
                "map {later} goes back to epoch {shown}, but map {version} has epoch {epoch}"
            ));
        }
        let serving = group.members.iter().filter(|it| it.state == MemberState::Serving);
        let mut serving: Vec<_> = serving.map(|it| it.target).collect();
        serving.sort_unstable();
        let members = (group.primary, serving);
        let known = self.epochs.entry(epoch).or_insert_with(|| members.clone());
        if *known != members {
            return Err(format!(
                "map {version} has other serving members in epoch {epoch}: {members:?} instead of \
                 {known:?}"
            ));
        }
        self.maps.insert(version, Arc::clone(map));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::authority::first_map;
    use super::super::knobs::GroupKnobs;
    use super::*;
    use crate::random::Random;

    /// Returns the first map of a run, but with this version and this epoch.
    fn map_with(version: u64, epoch: u64) -> Arc<ClusterMap> {
        let mut map = first_map(&GroupKnobs::draw(&mut Random::new(1), None));
        map.version = MapVersion::new(version);
        map.groups[0].epoch = Epoch::new(epoch);
        Arc::new(map)
    }

    #[test]
    fn different_maps_with_one_version_are_reported() {
        let mut published = PublishedMaps::default();
        for _ in 0..2 {
            assert_eq!(published.add(&map_with(3, 2)), Ok(()));
        }
        let what = published.add(&map_with(3, 4)).expect_err("another map with the version");
        assert!(what.contains("have the version"), "{what}");
    }

    #[test]
    fn map_that_goes_back_to_an_earlier_epoch_is_reported() {
        let mut published = PublishedMaps::default();
        for (version, epoch) in [(3, 2), (9, 4), (5, 2), (7, 4)] {
            assert_eq!(published.add(&map_with(version, epoch)), Ok(()), "version {version}");
        }
        for (version, epoch) in [(10, 3), (6, 5), (8, 3)] {
            let what = published.add(&map_with(version, epoch)).expect_err("an earlier epoch");
            assert!(what.contains("goes back"), "{what}");
        }
    }

    #[test]
    fn change_of_a_group_without_a_new_epoch_is_reported() {
        let mut published = PublishedMaps::default();
        assert_eq!(published.add(&map_with(3, 2)), Ok(()));
        let mut map = ClusterMap::clone(&map_with(4, 2));
        map.groups[0].primary = TargetId::new(2);
        let what = published.add(&Arc::new(map)).expect_err("another primary");
        assert!(what.contains("other serving members"), "{what}");
    }
}
