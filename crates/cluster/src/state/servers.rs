//! Registration of servers and their targets: checks registrations and assigns ids.
//!
//! The module `clients` owns the registration of clients.

use super::names::{ServerNames, generated};
use super::skipped_ids::SkippedIds;
use super::{Durable, check_text, insert_sorted, kind_word, limit};
use crate::command::Outcome;
use crate::limits::{MAX_ADDRESSES, MAX_SERVERS, MAX_TARGETS_PER_NODE};
use skep_types::map::Reachability;
use skep_types::registration::{ServerRegistration, TargetClaim, domain_problem};
use skep_types::{
    Error, ErrorCode, Group, GroupId, Node, NodeId, NodeKind, Result, Target, TargetId, TargetKind,
};

impl Durable {
    pub(super) fn register_server(
        &mut self,
        registration: &ServerRegistration,
        (names, skipped): (&ServerNames, &SkippedIds),
    ) -> Result<Outcome> {
        check_registration(registration)?;
        let node = self.node_identity(registration, skipped)?;
        let name = self.node_name(node, registration, names)?;
        let before = || self.map.node(node).map(|node| node.domain.clone());
        let domain = registration.domain.clone().or_else(before).unwrap_or_default();
        let new = Node {
            id: node,
            kind: registration.kind,
            name,
            addresses: registration.addresses.clone(),
            domain,
            reachability: Reachability::Offline,
            version: registration.version.clone(),
        };
        insert_sorted(&mut self.map.nodes, new, |node| node.id);
        let mut targets = Vec::with_capacity(registration.targets.len());
        for claim in &registration.targets {
            targets.push(self.register_target(node, claim, skipped)?);
        }
        Ok(Outcome { changed: true, node, targets, ..Outcome::default() })
    }

    /// Returns the id of a server. Assigns a new id to a new server. A server that was added after
    /// the backup of a restored management keeps its id.
    fn node_identity(
        &mut self,
        registration: &ServerRegistration,
        skipped: &SkippedIds,
    ) -> Result<NodeId> {
        let ServerRegistration { node: claimed, uuid, kind, .. } = registration;
        let known = self.node_uuids.iter().find(|(_, known)| known == uuid).map(|(id, _)| *id);
        if let Some(id) = known {
            if claimed.raw() != 0 && *claimed != id {
                return Err(foreign(format!(
                    "cannot register a {} service as {claimed}: the uuid of its directory belongs \
                     to {id}; restore this directory, which was changed by hand",
                    kind_word(*kind)
                )));
            }
            if let Some(node) = self.map.node(id).filter(|node| node.kind != *kind) {
                return Err(foreign(format!(
                    "cannot register node {id} ({}): it is a {} service and cannot become a {} \
                     service",
                    node.name,
                    kind_word(node.kind),
                    kind_word(*kind)
                )));
            }
            return Ok(id);
        }
        // A former management node must not keep its id, because its vote is in a log that no
        // longer exists.
        let returns = skipped.has_node(*claimed)
            && self.map.node(*claimed).is_none()
            && *kind != NodeKind::Management;
        if claimed.raw() != 0 && !returns {
            return Err(foreign(self.unknown_node(*claimed, *kind)));
        }
        let servers = self.node_uuids.len();
        if servers >= MAX_SERVERS {
            return Err(limit(format!(
                "cannot register another server: the cluster has {servers}, which is the limit"
            )));
        }
        let id = if returns { *claimed } else { self.take_node_id() };
        insert_sorted(&mut self.node_uuids, (id, *uuid), |(id, _)| *id);
        Ok(id)
    }

    /// Returns the reason why a server cannot register although its directory contains an id, with
    /// the remedy.
    fn unknown_node(&self, claimed: NodeId, kind: NodeKind) -> String {
        let word = kind_word(kind);
        match self.map.node(claimed) {
            Some(node) => format!(
                "cannot register a {word} service as {claimed}: this id belongs to node '{}' with \
                 another uuid; the directory of the service is of another cluster, or the \
                 directory of management is an old backup",
                node.name
            ),
            // Management assigns ids in ascending order, also after a restore from a backup. So a
            // lower id belonged to a server that was removed, or that registered after the backup
            // was made.
            None if claimed.raw() < self.next_node => format!(
                "cannot register a {word} service as {claimed}: {claimed} is no longer in this \
                 cluster; it was removed, or management was restored from a backup that is older \
                 than the service. {}",
                way_back(kind)
            ),
            None => format!(
                "cannot register a {word} service as {claimed}, which this cluster has not \
                 assigned yet: the directory of the service is of another cluster, or the \
                 directory of management is an old backup"
            ),
        }
    }

    /// Returns the name of a server: the requested name, else the current name, else the next name
    /// of the form `storage-1`, `storage-2`, ... that no server has ever had.
    fn node_name(
        &self,
        id: NodeId,
        registration: &ServerRegistration,
        names: &ServerNames,
    ) -> Result<String> {
        let kind = registration.kind;
        let taken = |name: &str| {
            self.map.nodes.iter().find(|n| n.id != id && n.kind == kind && n.name == name)
        };
        if !registration.name.is_empty() {
            return match taken(&registration.name) {
                None => Ok(registration.name.clone()),
                Some(other) => Err(Error::new(
                    ErrorCode::Exists,
                    format!(
                        "cannot register the service under the name '{}', which belongs to {} \
                         service {}; choose another `node.name`",
                        registration.name,
                        kind_word(kind),
                        other.id
                    ),
                )),
            };
        }
        if let Some(node) = self.map.node(id) {
            return Ok(node.name.clone());
        }
        let first = names.newest(kind) + 1;
        let free = (first..).map(|number| generated(kind, number)).find(|n| taken(n).is_none());
        Ok(free.expect("fewer names are taken than there are numbers"))
    }

    /// Records the host name of a server. Ignores a node that is not a server of the cluster.
    pub(super) fn note_host(
        &self,
        id: NodeId,
        host: &str,
        names: &mut ServerNames,
    ) -> Result<Outcome> {
        check_text("the host name", host)?;
        let node = self.map.node(id).filter(|node| node.kind != NodeKind::Client);
        if node.is_some() {
            names.set_host(id, host);
        }
        Ok(Outcome { node: id, ..Outcome::default() })
    }

    fn register_target(
        &mut self,
        node: NodeId,
        claim: &TargetClaim,
        skipped: &SkippedIds,
    ) -> Result<TargetId> {
        let known = self.target_uuids.iter().find(|(_, known)| *known == claim.uuid);
        let id = match known.map(|(id, _)| *id) {
            Some(id) if claim.target.raw() != 0 && claim.target != id => {
                return Err(foreign(format!(
                    "cannot register directory {} as target {}: the uuid of the directory belongs \
                     to {id}; restore this directory, which was changed by hand",
                    claim.path, claim.target
                )));
            }
            Some(id) => id,
            None if skipped.has_target(claim.target) && self.map.target(claim.target).is_none() => {
                // The target was added after the backup of a restored management, and keeps its id.
                // The target is in no group: a metadata target reports its group to management, and
                // a storage target returns to its group by `Self::return_to_group`.
                self.insert_target(claim.target, node, claim);
                claim.target
            }
            None if claim.target.raw() != 0 => {
                let owner = self
                    .map
                    .target(claim.target)
                    .map_or("which is not in this cluster".to_owned(), |t| {
                        format!("whose directory is {} on {} and has another uuid", t.path, t.node)
                    });
                return Err(foreign(format!(
                    "cannot register directory {} as target {}, {owner}; the target was removed, \
                     the directory is of another cluster, or the directory of management is an \
                     old backup",
                    claim.path, claim.target
                )));
            }
            None => self.add_target(node, claim),
        };
        let index = self.map.targets.binary_search_by_key(&id, |target| target.id);
        let target = &mut self.map.targets[index.expect("a known uuid has its target")];
        if target.kind != claim.kind {
            return Err(foreign(format!(
                "cannot register target {id} ({}): the registered target is of another kind",
                target.path
            )));
        }
        target.node = node;
        target.path.clone_from(&claim.path);
        Ok(id)
    }

    /// Adds a target, and returns its id. Also adds a group whose only member is this target,
    /// except for a metadata target if the setting `metadata-copies` is above 1.
    fn add_target(&mut self, node: NodeId, claim: &TargetClaim) -> TargetId {
        let id = TargetId::new(self.next_target);
        self.next_target += 1;
        self.insert_target(id, node, claim);
        if claim.kind == TargetKind::Metadata && self.map.policy.metadata_copies > 1 {
            return id;
        }
        let group = Group::of_one(GroupId::new(self.next_group), claim.kind, id);
        self.next_group += 1;
        insert_sorted(&mut self.map.groups, group, |group| group.id);
        id
    }

    fn insert_target(&mut self, id: TargetId, node: NodeId, claim: &TargetClaim) {
        insert_sorted(&mut self.target_uuids, (id, claim.uuid), |(id, _)| *id);
        let target = Target::new(id, claim.kind, node, claim.path.clone());
        insert_sorted(&mut self.map.targets, target, |target| target.id);
    }

    /// Makes a storage target the only member of its former group, which was created after the
    /// backup of a restored management. The bytes of the target's files belong to this group.
    /// Changes nothing if the target is in a group, or if the group cannot be the former group of
    /// the target.
    pub(super) fn return_to_group(
        &mut self,
        target: TargetId,
        group: GroupId,
        skipped: &SkippedIds,
    ) -> Outcome {
        let found = self.map.target(target).filter(|it| it.kind == TargetKind::Storage);
        let may_return = found.is_some()
            && self.map.group_of(target).is_none()
            && skipped.has_group(group)
            && self.map.group(group).is_none();
        if may_return {
            self.put_group(Group::of_one(group, TargetKind::Storage, target));
        }
        Outcome { group, ..Outcome::default() }
    }
}

fn check_registration(registration: &ServerRegistration) -> Result<()> {
    let wrong = |what: String| Err(Error::new(ErrorCode::InvalidArgument, what));
    let ServerRegistration { uuid, kind, name, addresses, domain, version, targets, .. } =
        registration;
    if *uuid == 0 || targets.iter().any(|claim| claim.uuid == 0) {
        return wrong(
            "cannot register a node without a uuid: its directory was not initialised".into(),
        );
    }
    if addresses.is_empty() || addresses.len() > MAX_ADDRESSES {
        return wrong(format!(
            "invalid number of addresses of a server: expected 1 to {MAX_ADDRESSES}"
        ));
    }
    if targets.len() > MAX_TARGETS_PER_NODE {
        return wrong(format!(
            "invalid number of targets of a node: expected at most {MAX_TARGETS_PER_NODE}"
        ));
    }
    check_text("the name", name)?;
    check_text("the version", version)?;
    let domain = domain.as_deref().filter(|domain| !domain.is_empty());
    if let Some(problem) = domain.and_then(domain_problem) {
        return wrong(problem);
    }
    addresses.iter().try_for_each(|address| check_text("an address", address))?;
    let allowed = match kind {
        NodeKind::Metadata => Some(TargetKind::Metadata),
        NodeKind::Storage => Some(TargetKind::Storage),
        NodeKind::Management => None,
        NodeKind::Client => return wrong("cannot register a client as a server".into()),
    };
    for (index, claim) in targets.iter().enumerate() {
        check_text("a target's path", &claim.path)?;
        if Some(claim.kind) != allowed {
            return wrong(format!(
                "a {} service cannot have a target of the kind {:?} ({})",
                kind_word(*kind),
                claim.kind,
                claim.path
            ));
        }
        if let Some(twin) = targets[..index].iter().find(|other| other.uuid == claim.uuid) {
            return wrong(format!(
                "directories {} and {} are the same target: one is a copy of the other; remove the \
                 copy from the settings",
                twin.path, claim.path
            ));
        }
    }
    Ok(())
}

/// Returns the steps after which a removed server joins the cluster as a new node. For management,
/// a plain `--init` would create another cluster.
fn way_back(kind: NodeKind) -> String {
    match kind {
        NodeKind::Management => "To join as a new management node, move the directory of the \
                                 management service away, run `skep management --init --join \
                                 --token-file FILE` with its settings, start it, and run `skep \
                                 management add`"
            .to_owned(),
        _ => format!(
            "To join as a new node, move the directory of the {} service and the directories of \
             all its targets away, and start with --init",
            kind_word(kind)
        ),
    }
}

fn foreign(what: String) -> Error {
    Error::new(ErrorCode::NotPermitted, what)
}
