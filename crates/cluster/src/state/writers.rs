//! The versions of the program in a snapshot that this program cannot decode.
//!
//! A snapshot begins with the nodes of the cluster map, and each of them names the version of its
//! program. So the error for a snapshot that cannot be decoded can name the version that wrote it.

use skep_types::codec::{Codec, Reader};
use skep_types::text::escape_controls;
use skep_types::{ClusterId, MapVersion, Node, NodeKind, Result};
use std::collections::BTreeSet;

/// Maximum number of versions in the result.
const MOST_VERSIONS: usize = 4;

/// Returns the versions that the management nodes ran when a snapshot was written, in alphabetical
/// order. Empty if this program cannot decode the nodes in the snapshot.
pub fn versions_in_snapshot(snapshot: &[u8]) -> Vec<String> {
    let nodes = nodes_of(snapshot).unwrap_or_default();
    let managers = nodes.iter().filter(|node| node.kind == NodeKind::Management);
    let versions: BTreeSet<_> =
        managers.map(|node| escape_controls(&node.version).into_owned()).collect();
    versions.into_iter().take(MOST_VERSIONS).collect()
}

/// Decodes the fields of the cluster map up to the nodes.
fn nodes_of(snapshot: &[u8]) -> Result<Vec<Node>> {
    let mut r = Reader::new(snapshot);
    let _cluster = ClusterId::decode(&mut r)?;
    let _version = MapVersion::decode(&mut r)?;
    let _feature_level = u32::decode(&mut r)?;
    let _formatted = bool::decode(&mut r)?;
    Codec::decode(&mut r)
}
