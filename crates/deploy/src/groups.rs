//! Divides the metadata targets of the hosts file into groups. The setting `copies` is the number
//! of targets in a group. The targets of a group hold the same part of the namespace.
//!
//! The module does no I/O. The members of a group lie on different hosts and in different failure
//! domains. In a cluster that is not formatted yet, all targets that have no group form new groups.
//! A formatted cluster keeps its groups, and each group with too few members gets further members.

use crate::cluster::MetadataGroup;
use crate::hosts::{Deployment, Place, Role};
use std::collections::{BTreeMap, BTreeSet};

/// The changes after which all metadata groups have enough members.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupPlan {
    /// New groups. The first member of each group is its primary.
    pub new: Vec<Vec<Place>>,
    /// Further members of existing groups, each with the id of the group.
    pub added: Vec<(u32, Place)>,
    /// Targets that no group of the formatted cluster needs.
    pub waiting: Vec<Place>,
}

/// Divides all metadata targets of the hosts file into groups, as in a new cluster.
///
/// # Errors
/// Returns the problem, with a remedy, if some targets would remain without a group.
pub fn divide(deployment: &Deployment) -> Result<GroupPlan, String> {
    plan(deployment, &[], false)
}

/// Returns the changes after which all metadata groups have as many members as the hosts file asks
/// for. `existing` are the metadata groups of the cluster.
///
/// # Errors
/// Returns the problem, with a remedy, if the hosts file has too few metadata targets on different
/// hosts.
pub fn plan(
    deployment: &Deployment,
    existing: &[MetadataGroup],
    is_formatted: bool,
) -> Result<GroupPlan, String> {
    let copies = deployment.copies.unwrap_or(1);
    let mut free = FreeTargets::new(deployment, existing);
    let mut plan = GroupPlan::default();
    for group in existing {
        let hosts = group.members.iter().map(|it| it.place.host.as_str());
        let mut used: BTreeSet<Domain> = hosts.map(|host| domain(deployment, host)).collect();
        for found in group.members.len()..copies as usize {
            let place = free.take(&used).ok_or_else(|| {
                let members: Vec<_> = group.members.iter().map(|it| it.place.to_string()).collect();
                format!(
                    "copies = {copies}: metadata group {} ({}) has {found} of {copies} copies, and \
                     no other host has a metadata target without a group; give another host the \
                     role metadata, with one target for each group",
                    group.id,
                    members.join(", ")
                )
            })?;
            used.insert(domain(deployment, &place.host));
            plan.added.push((group.id, place));
        }
    }
    if is_formatted {
        plan.waiting = free.places;
        return Ok(plan);
    }
    let mut primaries: BTreeMap<String, u32> = BTreeMap::new();
    while !free.places.is_empty() {
        let mut used = BTreeSet::new();
        let mut members: Vec<Place> = Vec::new();
        for _ in 0..copies {
            let place = free.take(&used).ok_or_else(|| uneven(deployment, copies))?;
            used.insert(domain(deployment, &place.host));
            members.push(place);
        }
        // The primary does most of the work of a group, so each host gets the same number of
        // primaries.
        let load = |place: &Place| primaries.get(&place.host).copied().unwrap_or_default();
        let first = (0..members.len()).min_by_key(|index| load(&members[*index]));
        members.swap(0, first.unwrap_or_default());
        *primaries.entry(members[0].host.clone()).or_default() += 1;
        plan.new.push(members);
    }
    Ok(plan)
}

/// A failure domain of hosts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Domain {
    /// The domain with this name in the hosts file.
    Named(String),
    /// The host with this name. The hosts file names no domain for the host.
    Host(String),
}

/// Returns the failure domain of a host. A host without a domain is a domain by itself.
fn domain(deployment: &Deployment, host: &str) -> Domain {
    let found = deployment.hosts.iter().find(|it| it.name == host);
    match found.map(|it| it.domain.as_str()) {
        None | Some("") => Domain::Host(host.to_owned()),
        Some(domain) => Domain::Named(domain.to_owned()),
    }
}

/// Returns the problem of targets that cannot all be in a group.
fn uneven(deployment: &Deployment, copies: u32) -> String {
    let having = deployment.hosts.iter().filter(|host| host.has(Role::Metadata));
    let domains: BTreeSet<_> = having.clone().map(|it| domain(deployment, &it.name)).collect();
    let hosts: Vec<_> = having
        .map(|host| format!("{} has {}", host.name, host.targets(Role::Metadata).len()))
        .collect();
    let hosts = hosts.join(", ");
    match domains.len() < copies as usize {
        true => format!(
            "copies = {copies} needs metadata targets on {copies} hosts in different failure \
             domains ({hosts}); give more hosts the role metadata, or lower `copies`"
        ),
        false => format!(
            "copies = {copies}: the metadata targets cannot be divided into groups of {copies} on \
             different hosts and in different failure domains ({hosts}); give all these hosts the \
             same number of targets, in all a multiple of {copies}"
        ),
    }
}

/// The metadata targets that have no group yet, in the order of the hosts file.
struct FreeTargets<'a> {
    deployment: &'a Deployment,
    places: Vec<Place>,
}

impl<'a> FreeTargets<'a> {
    fn new(deployment: &'a Deployment, existing: &[MetadataGroup]) -> Self {
        let members: BTreeSet<_> =
            existing.iter().flat_map(|group| &group.members).map(|it| &it.place).collect();
        let mut places = Vec::new();
        for host in &deployment.hosts {
            let all = host.targets(Role::Metadata).into_iter();
            let all = all.map(|path| Place { host: host.name.clone(), path });
            places.extend(all.filter(|place| !members.contains(place)));
        }
        Self { deployment, places }
    }

    /// Removes and returns a free target outside of the failure domains `used`. Chooses the domain
    /// with the most free targets, because otherwise targets of this domain could remain without a
    /// group.
    fn take(&mut self, used: &BTreeSet<Domain>) -> Option<Place> {
        let mut counts: BTreeMap<Domain, usize> = BTreeMap::new();
        for place in &self.places {
            *counts.entry(domain(self.deployment, &place.host)).or_default() += 1;
        }
        let mut best: Option<(usize, usize)> = None;
        for (index, place) in self.places.iter().enumerate() {
            let domain = domain(self.deployment, &place.host);
            let count = counts[&domain];
            if !used.contains(&domain) && best.is_none_or(|(_, most)| count > most) {
                best = Some((index, count));
            }
        }
        best.map(|(index, _)| self.places.remove(index))
    }
}

#[cfg(test)]
#[path = "groups/tests.rs"]
mod tests;
