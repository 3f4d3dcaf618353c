//! Makes the user who started a cluster on one host the owner of its root directory.
//!
//! The metadata service creates the root directory, with root as its owner. So another user who
//! runs `skep up` could not write to the root directory. Only root may change the owner of the root
//! directory.

use crate::access::{Access, PATIENCE};
use skep_client::{Client, InodeAttributes, LogControl, MapObserver, Mount, MountOptions};
use skep_metrics::Registry;
use skep_types::{InodeId, Result};
use skep_wire::metadata::SetAttributes;
use std::time::Duration;

/// Changes the owner of the root directory to the user `uid` and the group `gid`, if the owner is
/// still root.
pub(crate) async fn give_root_to(access: &Access, uid: u32, gid: u32) -> Result<()> {
    let mount = Mount::new(MountOptions {
        cluster: access.contacts().into(),
        mount_point: String::new(),
        host: "skep up".into(),
        version: skep_service::PROGRAM_VERSION.into(),
        workers: 1,
        patience: Some(PATIENCE),
        attribute_timeout: Duration::ZERO,
        log: LogControl::default(),
        map_observer: MapObserver::default(),
        metrics: Registry::new(),
    });
    let client = Client::new(mount.await?, 0)?;
    let given = give(&client, uid, gid).await;
    if let Err(error) = client.shutdown().await {
        tracing::warn!("{error}");
    }
    given
}

async fn give(client: &Client, uid: u32, gid: u32) -> Result<()> {
    let root = client.attributes(InodeId::ROOT).await?;
    if root.uid != 0 || root.uid == uid {
        return Ok(());
    }
    let change = SetAttributes {
        inode: InodeId::ROOT,
        permissions: None,
        cleared_permissions: 0,
        uid: Some(uid),
        gid: Some(gid),
        project: None,
        hands_down_project: None,
        size: None,
        accessed: None,
        modified: None,
    };
    client.set_attributes(change).await.map(|_| ())
}
