//! `skep deploy` refuses to remove a host that belongs to another cluster, or that the cluster
//! needs. It also refuses a removal that would delete data.
//!
//! The module `removal` asks management whether the cluster uses the targets of a host.

use super::{Run, Survey};
use crate::hosts::{Deployment, Host, Role};
use crate::plan::{self, AllFacts};
use crate::removal;
use crate::ssh::Ssh;
use skep_types::{Error, ErrorCode, Result};
use std::path::Path;

/// The last word of a line about a disk whose files cannot be listed (`scripts/stored.sh`).
const NOT_MOUNTED: &str = " not-mounted";

impl Run<'_> {
    /// Returns an error if a host belongs to another cluster. A removal would unmount the mounts of
    /// that cluster.
    pub(super) fn refuse_foreign(&self, host: &Host, survey: &Survey) -> Result<()> {
        let deployed = survey.facts.get(&host.name).and_then(|it| it.deployed.as_ref());
        let Some(other) = deployed.filter(|it| **it != self.deployment.cluster) else {
            return Ok(());
        };
        let what = format!(
            "cannot remove host {}: this host belongs to the cluster '{other}' of another hosts \
             file; remove this host with that hosts file",
            host.name
        );
        Err(Error::new(ErrorCode::NotPermitted, what))
    }

    /// Returns an error if the cluster uses targets of a host, or if management does not answer and
    /// the host has data.
    pub(super) fn refuse_used(&self, host: &Host, survey: &Survey) -> Result<()> {
        // A host of management can only be removed as the last host of its cluster.
        let Some(facts) = survey.facts.get(&host.name).filter(|_| !host.has(Role::Management))
        else {
            return Ok(());
        };
        let Some(cluster) = &survey.facts.cluster else {
            return match facts.initialised.is_empty() && facts.stored.is_empty() {
                true => Ok(()),
                false => Err(removal::unknown_uses(host)),
            };
        };
        let acting = plan::acting(self.deployment, &survey.facts);
        let ssh = Ssh::new(self.deployment);
        let mut output = String::new();
        // Each target is checked in a session of its own, because a session has a time limit.
        for target in removal::storage_targets(cluster, host) {
            output.push_str(&ssh.observe(acting, &removal::script(&[target]))?.text);
        }
        removal::refuse_used(cluster, host, &output)
    }

    /// Returns an error if a host runs management and cannot be removed for this reason.
    pub(super) fn refuse_management(&self, host: &Host, survey: &Survey) -> Result<()> {
        let facts = survey.facts.get(&host.name);
        let is_former = facts.is_some_and(|it| it.initialised.contains(&Role::Management));
        let name = &host.name;
        let what = match (host.has(Role::Management), self.deployment.managers().count()) {
            (true, 1) if self.deployment.hosts.len() > 1 => format!(
                "cannot remove host {name}: this host runs management, which the cluster needs; \
                 `skep deploy destroy` removes the whole cluster"
            ),
            (true, count) if count > 1 => format!(
                "cannot remove host {name}: this host runs management, and the {} other management \
                 nodes would survive fewer failures; give the role management to another host in \
                 the place of this one, run `skep deploy apply`, and then remove the host",
                count - 1
            ),
            (false, _) if is_former => format!(
                "cannot remove host {name}: the management node of this host is still a part of \
                 the cluster; run `skep deploy apply` first, which removes this node"
            ),
            _ => return Ok(()),
        };
        Err(Error::new(ErrorCode::NotPermitted, what))
    }
}

/// Returns an error if a host has a member of a metadata group with several members. Without the
/// host, this group would wait for its lost member. Also returns an error if the groups are
/// unknown, because this host may be the only one that has all data of a group.
pub(super) fn refuse_copies(host: &Host, survey: &Survey) -> Result<()> {
    let facts = survey.facts.get(&host.name);
    let has_metadata = facts.is_some_and(|it| it.initialised.contains(&Role::Metadata));
    // A host of management is not refused here: it may be the last host of the cluster, on which
    // management has stopped.
    if survey.facts.cluster.is_none() && has_metadata && !host.has(Role::Management) {
        let what = format!(
            "cannot remove host {}: management does not answer, so this command cannot check \
             whether the host has the only complete copy of a metadata group; start management, \
             for example with `skep deploy apply`. `skep deploy destroy` removes the whole cluster",
            host.name
        );
        return Err(Error::new(ErrorCode::NotReady, what));
    }
    let groups = survey.facts.cluster.iter().flat_map(|cluster| &cluster.groups);
    for group in groups.filter(|group| group.members.len() > 1) {
        let member = group.members.iter().find(|member| member.place.host == host.name);
        if let Some(member) = member {
            let (group, target) = (group.id, member.target);
            let what = format!(
                "cannot remove host {}: the metadata target {} [ID: {target}] of this host holds a \
                 copy of group {group}; take the target out first with `skep group remove {group} \
                 {target}` and `skep target remove {target}` (before that, `skep group add` gives \
                 the group another copy)",
                host.name, member.place.path
            );
            return Err(Error::new(ErrorCode::NotPermitted, what));
        }
    }
    Ok(())
}

/// Returns an error if the hosts store data and the user has not given `--destroy-data`. A service
/// that `deploy.list` of a host records as initialised counts as data. This file may be incomplete,
/// so data in the directories and on the disks of a host counts too.
pub(super) fn refuse_data(
    deployment: &Deployment,
    names: &[String],
    facts: &AllFacts,
    destroy_data: bool,
) -> Result<()> {
    if destroy_data {
        return Ok(());
    }
    let mut lost = Vec::new();
    for name in names {
        let Some(facts) = facts.get(name) else { continue };
        let host = deployment.host(name)?;
        let mut named = Vec::new();
        for role in &facts.initialised {
            let targets = host.targets(*role);
            let places = match targets.is_empty() {
                true => vec![format!("/srv/skep/{role}")],
                false => targets,
            };
            lost.push(format!("{role} on host {name} ({})", places.join(", ")));
            named.extend(places);
        }
        for stored in &facts.stored {
            let path = stored.split(' ').next().unwrap_or_default();
            // A mount point is left out if `named` has a directory below this mount point.
            if named.iter().all(|it| !Path::new(it).starts_with(path)) {
                lost.push(format!("{stored} on host {name}"));
                named.push(path.to_owned());
            }
        }
    }
    if lost.is_empty() {
        return Ok(());
    }
    let note = match lost.iter().any(|place| place.contains(NOT_MOUNTED)) {
        true => {
            ". A disk that is `not-mounted` counts as data, also if an interrupted deployment has \
             left it without files; `skep deploy apply` continues that deployment"
        }
        false => "",
    };
    let what = format!(
        "cannot remove {}: the removal would delete data of the cluster; to delete the data, add \
         --destroy-data{note}",
        lost.join("; ")
    );
    Err(Error::new(ErrorCode::NotPermitted, what))
}
