//! Requests that change the targets of a running node: `AddTarget` and `StopTarget`.
//!
//! Other modules store the list of added targets (`added_targets`), initialise the directories of
//! targets (`init`), and run their threads (`targets`). Management removes targets from the
//! cluster.

use super::init::check_disk;
use super::targets::ServingNode;
use super::{absolute, capacity};
use crate::mount_points::is_on_root;
use skep_env::Mailbox;
use skep_rpc::{Incoming, Outbox};
use skep_store::identity::{Directory, is_initialised};
use skep_types::codec::Codec;
use skep_types::{ClusterMap, Error, ErrorCode, Result, TargetId};
use skep_wire::Request;
use skep_wire::management::EmptyReply;
use skep_wire::node::{AddTarget, AddTargetReply, StopTarget};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

/// Whether a message is a request about the targets of a node.
pub(super) fn is_target_request(message: u16) -> bool {
    [AddTarget::ID, StopTarget::ID].contains(&message)
}

impl ServingNode {
    /// Handles a request about the targets of this node.
    pub(super) async fn answer_target_request(
        self: &Rc<Self>,
        incoming: &Incoming,
        outbox: &Rc<Outbox>,
    ) {
        let header = &incoming.header;
        let refusal = if header.message == AddTarget::ID {
            match self.add_target(&incoming.body).await {
                Ok(reply) => return outbox.reply(header, &reply),
                Err(error) => error,
            }
        } else {
            match self.stop_target(&incoming.body).await {
                Ok(reply) => return outbox.reply(header, &reply),
                Err(error) => error,
            }
        };
        outbox.refuse(header, &refusal);
    }

    /// Adds a target: initialises a blank directory, registers the target, and starts it.
    async fn add_target(&self, body: &[u8]) -> Result<AddTargetReply> {
        let path = PathBuf::from(AddTarget::from_bytes(body)?.path);
        let reply = |target| AddTargetReply { target, warnings: self.warnings(&path) };
        if let Some(target) = self.served_at(&path) {
            return Ok(reply(target));
        }
        self.check_path(&path)?;
        if !is_initialised(&path) {
            check_disk(&path)?;
            self.initialise_target(&path).await?;
        }
        let mut directory = self.host.open_target(&path, &self.node.borrow())?;
        self.check_copy(&directory)?;
        // Store the path in the list first. If the service dies after this line, its next start
        // registers the target.
        self.added.borrow_mut().add(&path)?;
        let registered = self.register_late(&directory).await.inspect_err(|_| {
            // Ignore an error of this removal. The caller reports the error of the registration. If
            // the path of the target is still in the list, the next start of the service tries to
            // register the target.
            let _ = self.added.borrow_mut().remove(&path);
        })?;
        if let Some(target) = registered {
            directory.assign(self.membership.node(), target)?;
        }
        let target = directory.identity().target;
        self.start(directory, None)?;
        tracing::info!("target {target} ({}) is added to this node", path.display());
        Ok(reply(target))
    }

    fn served_at(&self, path: &Path) -> Option<TargetId> {
        let running = self.running.borrow();
        running.iter().find(|it| absolute(&it.path) == absolute(path)).map(|it| it.target)
    }

    /// Returns an error if `path` cannot be the directory of a new target, for example because the
    /// directory contains another target.
    fn check_path(&self, path: &Path) -> Result<()> {
        let shown = path.display();
        let refused = |code, problem: String| {
            Err(Error::new(code, format!("cannot add the target {shown}: {problem}")))
        };
        let is_plain = path.to_str().is_some_and(|text| !text.contains('\n'));
        if !path.is_absolute() || !is_plain {
            let problem = "expected an absolute path on the host of the service, without line \
                           breaks";
            return refused(ErrorCode::InvalidArgument, problem.into());
        }
        if path.components().any(|part| part == Component::ParentDir) {
            return refused(ErrorCode::InvalidArgument, "the path contains `..`".into());
        }
        if let Some(unserved) = self.unserved.borrow().iter().find(|it| it.path == path) {
            let problem = format!(
                "this node already has the target and cannot serve this target ({}); the node \
                 itself repeats the attempt",
                unserved.problem()
            );
            return refused(ErrorCode::InUse, problem);
        }
        let (running, unserved) = (self.running.borrow(), self.unserved.borrow());
        let waiting = self.waiting.borrow();
        let others = running.iter().map(|it| it.path.as_path());
        let others = others.chain(unserved.iter().map(|it| it.path.as_path()));
        let others = others.chain(waiting.iter().flatten().map(Directory::path));
        for other in others.chain([self.host.settings.directory.as_path()]) {
            let other = PathBuf::from(absolute(other));
            if path.starts_with(&other) || other.starts_with(path) {
                let problem = format!(
                    "the directory is a parent or a subdirectory of {}; choose a separate \
                     directory",
                    other.display()
                );
                return refused(ErrorCode::InvalidArgument, problem);
            }
        }
        Ok(())
    }

    /// Initialises a blank directory. A separate thread initialises the directory, because a device
    /// that hangs must not delay the heartbeats of this node.
    async fn initialise_target(&self, path: &Path) -> Result<()> {
        let identity = self.host.new_identity(&self.node.borrow());
        let (sender, done) = Mailbox::new(1)?;
        let place = path.to_owned();
        skep_env::spawn_thread("initialise".into(), None, move || {
            let _ = sender.send(Directory::initialise(&place, identity).map(drop));
        })?;
        done.receive().await?
    }

    /// Returns facts about a target that an administrator should check.
    fn warnings(&self, path: &Path) -> Vec<String> {
        let mut warnings = Vec::new();
        if is_on_root(path) {
            warnings.push(format!(
                "{} is on the root file system of its host; check that the disk of the target is \
                 mounted",
                path.display()
            ));
        }
        let file_system = capacity::capacity(path, self.host.reserve).file_system;
        let running = self.running.borrow();
        let others = running.iter().filter(|it| it.path != path);
        // Compare the file system of the new target with the file systems in the last reports of
        // the targets. A system call on a disk that hangs would delay the heartbeats of this node.
        let mut shared = others.filter(|it| it.file_system() == Some(file_system));
        if let Some(other) = shared.next() {
            warnings.push(format!(
                "{} is on the same file system as target {} ({}): both targets share the free \
                 space and the speed of this file system",
                path.display(),
                other.target,
                other.path.display()
            ));
        }
        warnings
    }

    /// Refuses a directory that was copied from the directory of another target on this node.
    fn check_copy(&self, directory: &Directory) -> Result<()> {
        let target = directory.identity().target;
        match self.path_of(target) {
            Some(other) if target != TargetId::default() && other != directory.path() => {
                let what = format!(
                    "cannot add the target {}: this node has target {target} at {}, and one of \
                     these two directories is a copy of the other directory; delete the copy",
                    directory.path().display(),
                    other.display()
                );
                Err(Error::new(ErrorCode::InUse, what))
            }
            _ => Ok(()),
        }
    }

    /// Returns the directory of a target of this node, even if the node currently cannot serve the
    /// target.
    fn path_of(&self, target: TargetId) -> Option<PathBuf> {
        let running = self.running.borrow();
        let served = running.iter().find(|it| it.target == target).map(|it| it.path.clone());
        served.or_else(|| {
            let map = self.membership.map_cell().load();
            let path = PathBuf::from(&map.target(target)?.path);
            self.unserved.borrow().iter().any(|it| it.path == path).then_some(path)
        })
    }

    /// Stops an added target. After this request, later starts of the service do not serve the
    /// target.
    async fn stop_target(&self, body: &[u8]) -> Result<EmptyReply> {
        let StopTarget { target, is_dry_run } = StopTarget::from_bytes(body)?;
        let Some(path) = self.path_of(target) else { return Ok(EmptyReply {}) };
        if !self.added.borrow().contains(&path) {
            let what = format!(
                "cannot stop target {target}: the settings of its service name this target; remove \
                 {} from `targets` in these settings, and restart the service",
                path.display()
            );
            return Err(Error::new(ErrorCode::InUse, what));
        }
        if has_shards(&self.membership.map_cell().load(), target) {
            let what = format!(
                "cannot stop metadata target {target}: a part of the namespace is on this target, \
                 and shards do not move to other targets yet"
            );
            return Err(Error::new(ErrorCode::InUse, what));
        }
        if !is_dry_run {
            self.added.borrow_mut().remove(&path)?;
            self.membership.forget_target(target);
            self.unserved.borrow_mut().retain(|it| it.path != path);
            self.end_target(target).await;
            tracing::info!("target {target} ({}) has left this node", path.display());
        }
        Ok(EmptyReply {})
    }
}

/// Whether the group of a target serves a part of the namespace.
fn has_shards(map: &ClusterMap, target: TargetId) -> bool {
    let group = map.group_of(target).map(|group| group.id);
    map.shards.iter().any(|range| Some(range.group) == group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::map::ShardRange;
    use skep_types::{ClusterId, Group, GroupId, ShardId, TargetKind};

    #[test]
    fn only_metadata_targets_without_shards_may_stop() {
        let mut map = ClusterMap::empty(ClusterId::default());
        let [serving, late, waiting] = [1, 2, 3].map(TargetId::new);
        for target in [serving, late] {
            let group = GroupId::new(target.raw() + 10);
            map.groups.push(Group::of_one(group, TargetKind::Metadata, target));
        }
        let (first, last) = (ShardId::new(0), ShardId::new(u16::MAX));
        map.shards.push(ShardRange { first, last, group: GroupId::new(11) });
        assert!(has_shards(&map, serving));
        assert!(!has_shards(&map, late) && !has_shards(&map, waiting));
    }
}
