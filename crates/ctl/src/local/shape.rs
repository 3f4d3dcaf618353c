//! The shape of a cluster on one host: the numbers of its services and targets.
//!
//! Does not own the file that stores the shape (`layout`).

use serde::{Deserialize, Serialize};

/// The numbers of services and targets of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    /// Number of management nodes. Clusters of earlier versions have one.
    #[serde(default = "one")]
    pub(crate) management_nodes: u16,
    /// Number of metadata services. Each has one target.
    pub(crate) metadata_targets: u16,
    /// Number of storage services.
    pub(crate) storage_services: u16,
    /// Number of storage targets of each storage service.
    pub(crate) targets_per_service: u16,
}

fn one() -> u16 {
    1
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            management_nodes: 1,
            metadata_targets: 2,
            storage_services: 2,
            targets_per_service: 4,
        }
    }
}

impl Shape {
    /// Returns the names of the management nodes. The first one creates the cluster.
    pub(crate) fn management(&self) -> impl Iterator<Item = String> + use<> {
        let further = (2..=self.management_nodes).map(|number| format!("management-{number}"));
        std::iter::once("management".to_owned()).chain(further)
    }

    /// Returns the kind and name of each metadata and storage service, in the order in which they
    /// start.
    pub(crate) fn services(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        let kinds = [("metadata", self.metadata_targets), ("storage", self.storage_services)];
        let names_of =
            |(kind, count)| (1..=count).map(move |number| (kind, format!("{kind}-{number}")));
        kinds.into_iter().flat_map(names_of)
    }
}

/// The numbers that the command line requests. `None` means the number of the existing cluster, or
/// the default for a new cluster.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WantedShape {
    pub(crate) management_nodes: Option<u16>,
    pub(crate) metadata_targets: Option<u16>,
    pub(crate) storage_services: Option<u16>,
    pub(crate) targets_per_service: Option<u16>,
}
