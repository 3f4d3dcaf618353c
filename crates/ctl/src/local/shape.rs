//! The shape of a cluster on one host: the numbers of its services and targets.
//!
//! The module `layout` reads and writes the file that stores the shape.

use serde::{Deserialize, Serialize};

/// The numbers of services and targets of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    /// Number of management nodes. A cluster of an earlier version has one management node.
    #[serde(default = "one")]
    pub(crate) management_nodes: u16,
    /// Number of metadata services. Each service has as many metadata targets as the metadata has
    /// copies.
    pub(crate) metadata_targets: u16,
    /// Number of targets in each metadata group: the number of copies of the metadata.
    #[serde(default = "one")]
    pub(crate) metadata_copies: u16,
    /// Number of storage services.
    pub(crate) storage_services: u16,
    /// Number of storage targets of each storage service.
    pub(crate) targets_per_service: u16,
}

/// The number of management nodes, and of copies of metadata, in a cluster whose stored shape does
/// not contain these numbers.
fn one() -> u16 {
    1
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            management_nodes: 1,
            metadata_targets: 2,
            metadata_copies: 1,
            storage_services: 2,
            targets_per_service: 4,
        }
    }
}

impl Shape {
    /// Returns the names of the management nodes. The first management node creates the cluster.
    pub(crate) fn management(&self) -> impl Iterator<Item = String> + use<> {
        let further = (2..=self.management_nodes).map(|number| format!("management-{number}"));
        std::iter::once("management".to_owned()).chain(further)
    }

    /// Returns the kind and name of each metadata and storage service, in the order of their
    /// starts.
    pub(crate) fn services(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        let kinds = [("metadata", self.metadata_targets), ("storage", self.storage_services)];
        let names_of =
            |(kind, count)| (1..=count).map(move |number| (kind, format!("{kind}-{number}")));
        kinds.into_iter().flat_map(names_of)
    }

    /// Returns the metadata groups. Each group is a list of its members. A member is a pair: the
    /// name of a service, and the index of the target in this service, which begins with 1. The
    /// first member is the primary. The members of a group are on different services, and each
    /// service has one primary.
    pub(crate) fn metadata_groups(&self) -> Vec<Vec<(String, u16)>> {
        let services = self.metadata_targets;
        let member = |first: u16, copy: u16| {
            let service = (first + copy) % services + 1;
            (format!("metadata-{service}"), copy + 1)
        };
        let group = |first| (0..self.metadata_copies).map(|copy| member(first, copy)).collect();
        (0..services).map(group).collect()
    }
}

/// The numbers that the command line requests. `None` means the number in the existing cluster. In
/// a new cluster, `None` means the default.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WantedShape {
    pub(crate) management_nodes: Option<u16>,
    pub(crate) metadata_targets: Option<u16>,
    pub(crate) metadata_copies: Option<u16>,
    pub(crate) storage_services: Option<u16>,
    pub(crate) targets_per_service: Option<u16>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_a_group_lie_on_different_services() {
        for (metadata_targets, metadata_copies) in [(2, 2), (3, 2), (3, 3), (5, 3), (1, 1)] {
            let shape = Shape { metadata_targets, metadata_copies, ..Shape::default() };
            let groups = shape.metadata_groups();
            assert_eq!(groups.len(), usize::from(metadata_targets));
            let mut all: Vec<_> = groups.iter().flatten().collect();
            all.sort();
            all.dedup();
            assert_eq!(
                all.len(),
                usize::from(metadata_targets * metadata_copies),
                "each target is in one group"
            );
            for group in &groups {
                let mut services: Vec<_> = group.iter().map(|(service, _)| service).collect();
                services.sort();
                services.dedup();
                assert_eq!(services.len(), usize::from(metadata_copies), "{group:?}");
            }
        }
    }
}
