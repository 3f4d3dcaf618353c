//! Determines from the arguments of `skep why` which requests a report is about.
//!
//! The report comes from `skep_stats::why`.

use super::WhyArgs;
use crate::access::Access;
use crate::host_users::user_named;
use crate::through_mount;
use crate::uses::Users;
use crate::view::target_named;
use skep_client::job_number;
use skep_rpc::{CallOptions, Channel, MapCell, Router};
use skep_stats::why::{Focus, Scope};
use skep_types::{ClusterMap, Error, ErrorCode, FileKind, InodeId, NodeId, Result, TargetKind};
use skep_wire::metadata::{EntryInfo, GetEntryInfo};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Time limit for the request that gets the attributes and the stripe pattern of a file.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the scope of the report. `inode` is the inode of the path in the arguments. `map` is the
/// map of management, or the last map of this host if `is_last_map` is true. In the second case,
/// the function sends no request to management, and finds clients only by the ids and names in the
/// map.
///
/// # Errors
/// - `InvalidArgument` if an argument names no client, user, job or target.
/// - Errors of management and of metadata.
pub(super) async fn of(
    access: &Access,
    (map, is_last_map): (&ClusterMap, bool),
    args: &WhyArgs,
    inode: Option<InodeId>,
) -> Result<Scope> {
    let of = |focus| Ok(Scope { targets: None, focus });
    if let Some(name) = &args.user {
        return of(Focus { user: Some(user_named(name)?), ..Focus::default() });
    }
    if let Some(name) = &args.job {
        return of(Focus { job: Some(job_number(name.as_bytes())), ..Focus::default() });
    }
    if let Some(name) = &args.client {
        let users = match is_last_map {
            true => Users::of_map(access, map.clone()),
            false => Users::of(access).await?,
        };
        let found = users.clients.named(&users.map, name)?;
        let [client] = found[..] else {
            let what = format!(
                "cannot choose the client '{name}': {} clients run on the host of this name; use \
                 an id from `skep client list`",
                found.len()
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        };
        return of(Focus { client: Some(client.raw()), ..Focus::default() });
    }
    if let Some(id) = &args.target {
        let target = target_named(map, id)?;
        return Ok(Scope { targets: Some(vec![target.id.raw()]), ..Scope::default() });
    }
    let Some(inode) = inode else { return Ok(Scope::default()) };
    let path = args.path.as_deref().unwrap_or(Path::new(""));
    let info = match through_mount::entry_info(path)? {
        Some(info) => info,
        None => ask_entry_info(access, map, inode).await?,
    };
    Ok(Scope { targets: Some(targets_of(map, inode, &info)), ..Scope::default() })
}

async fn ask_entry_info(access: &Access, map: &ClusterMap, inode: InodeId) -> Result<EntryInfo> {
    let cell = MapCell::new(map.clone(), NodeId::default());
    let router = Router::new(access.identity(), Channel::random(), cell);
    let options = CallOptions { time_left: Some(PATIENCE), ..CallOptions::default() };
    router.call_inode(inode, &GetEntryInfo { inode }, options).await
}

/// Returns the ids of the targets that serve a file. These are the metadata targets of its inode
/// and of its name, and the storage targets of its stripe pattern. For a directory, returns all
/// storage targets instead, because its files may be on any storage target.
fn targets_of(map: &ClusterMap, inode: InodeId, info: &EntryInfo) -> Vec<u32> {
    let metadata = [inode, info.parent].into_iter().filter(|inode| *inode != InodeId::default());
    let mut groups: BTreeSet<_> =
        metadata.filter_map(|inode| map.shard_group(inode.shard())).collect();
    let mut targets = BTreeSet::new();
    match (info.attributes.kind, &info.pattern) {
        (FileKind::Directory, _) => {
            let storage = map.targets.iter().filter(|it| it.kind == TargetKind::Storage);
            targets.extend(storage.map(|target| target.id.raw()));
        }
        (_, Some(pattern)) => {
            groups.extend(pattern.components.iter().flat_map(|it| it.groups.iter().copied()));
        }
        (_, None) => {}
    }
    targets.extend(groups.into_iter().filter_map(|group| map.primary(group)).map(|it| it.id.raw()));
    targets.into_iter().collect()
}
