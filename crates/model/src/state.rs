//! The state of the whole group, and the parts of the steps that involve several members.

use crate::GroupModel;
use crate::bounds::Faults;
use crate::bugs::PlantedBug;
use crate::group::Group;
use crate::history::History;
use crate::log::{Index, Log, Members, Progress, Record};
use crate::member::{Member, Role};
use crate::messages::{LateChange, LateMessage, Reply, Request};
use crate::primary::{Primary, Standing};

/// The state of the group and of the network, and of the history that the properties need.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The members.
    pub members: Vec<Member>,
    /// The group as recorded in management's state.
    pub group: Group,
    /// Members that the primary has asked management to mark as in sync in this epoch.
    pub mark_requests: Members,
    /// The message that the network delays. `None` means that the network delays no message.
    pub late: Option<LateMessage>,
    /// The delayed request to management in this epoch. `None` means that no request is delayed.
    pub late_change: Option<LateChange>,
    /// Numbers of operations and faults that may still happen.
    pub left: Faults,
    /// The replies that clients have received.
    pub history: History,
}

impl State {
    /// Returns the state of a new group, in which all members have the first record. The primary
    /// has leases from all other members.
    pub fn new(model: &GroupModel) -> Self {
        let bounds = &model.bounds;
        let group = Group::new(bounds.members);
        let first = Progress { appended: 1, synced: 1 };
        let log = Log::default().with(Record { epoch: 1, identity: 1 });
        let member = Member {
            log,
            synced: 1,
            stored: 1,
            lacks_records: false,
            counted: (0, Members::default()),
            asked: 0,
            has_promised: true,
            map: group,
            stored_map: group,
            unstored_map: None,
            role: Role::Backup(crate::member::Backup::default()),
        };
        let mut members = vec![member; bounds.members];
        members.iter_mut().for_each(Member::begin_backup);
        let mut primary = Primary::new(&group, first, 1, None);
        primary.begin_epoch(group.other_serving(0));
        for link in &mut primary.links[1..bounds.members] {
            (link.is_leased, link.progress, link.knows_process) = (true, first, true);
        }
        (members[0].role, members[0].has_promised) = (Role::Primary(primary), false);
        let mut state = Self {
            members,
            group,
            mark_requests: Members::default(),
            late: None,
            late_change: None,
            left: bounds.faults,
            history: History::new(),
        };
        state.settle(model);
        state
    }

    /// Returns the positions of all members.
    pub fn indices(&self) -> impl Iterator<Item = Index> + use<> {
        0..self.members.len()
    }

    /// Returns the member, and the member's state as primary. `None` means that the process of the
    /// member is not the primary.
    pub fn primary(&self, member: Index) -> Option<(&Member, &Primary)> {
        let member = &self.members[member];
        Some((member, member.as_primary()?))
    }

    /// Whether this member may reply to clients now.
    pub fn may_answer(&self, member: Index, model: &GroupModel) -> bool {
        let bug = model.bug;
        let Some((member, primary)) = self.primary(member) else { return false };
        if !model.bounds.leases {
            return true;
        }
        let has_leases = primary.has_leases() || bug == Some(PlantedBug::ReplyWithoutLease);
        let waits = member.has_promised && bug != Some(PlantedBug::ForgetPromise);
        has_leases && !waits
    }

    /// Makes a primary append a record.
    pub fn append(&mut self, own: Index) {
        let record = self.history.make(self.members[own].map.epoch);
        let member = &mut self.members[own];
        member.log = member.log.with(record);
        self.rise(own);
    }

    /// Recomputes the watermarks of a primary, and moves its safe records to its store. The method
    /// does nothing for a backup member.
    pub fn rise(&mut self, own: Index) {
        let confirmed = self.members[own].confirmed(self.members[own].log.last());
        let Member { synced, stored, role, .. } = &mut self.members[own];
        if let Role::Primary(primary) = role {
            primary.rise(Progress { appended: confirmed, synced: *synced });
            *stored = (*stored).max(primary.safe);
        }
    }

    /// Begins the first role of a new process of a member.
    pub fn begin_process(&mut self, own: Index, bug: Option<PlantedBug>) {
        for member in &mut self.members {
            if let Role::Primary(primary) = &mut member.role {
                primary.links[own].knows_process = false;
            }
        }
        self.late.take_if(|it| !it.end_process(own));
        self.members[own].begin_backup();
        self.lead_if_possible(own, bug);
    }

    /// Makes a backup member the primary if its map names this member as the primary, and
    /// [`Member::may_lead`] returns true.
    fn lead_if_possible(&mut self, own: Index, bug: Option<PlantedBug>) {
        let member = &mut self.members[own];
        if !member.may_lead(own, bug) {
            return;
        }
        let Role::Backup(backup) = &member.role else { return };
        member.lacks_records = false;
        let map = member.map;
        let former = backup.former_primary(map.epoch, bug);
        let progress = Progress { appended: member.log.last(), synced: member.synced };
        let mut primary = Primary::new(&map, progress, member.stored, former);
        primary.begin_epoch(map.other_serving(own));
        if bug != Some(PlantedBug::ForgetCounted) {
            for counted in member.may_serve().iter() {
                primary.links[counted].standing = Standing::Counted;
                primary.links[counted].may_serve = true;
            }
        }
        if bug != Some(PlantedBug::ForgetTerm) {
            member.counted = (map.epoch, member.may_serve());
        }
        member.role = Role::Primary(primary);
        self.rise(own);
        // A primary logs its start before it replies.
        self.append(own);
    }

    /// Delivers the newest cluster map to a member. Returns `false` if the member already has this
    /// map.
    pub fn receive_map(&mut self, own: Index, bug: Option<PlantedBug>, keeps_old: bool) -> bool {
        let newest = self.group;
        if self.members[own].map.epoch == newest.epoch {
            return false;
        }
        self.set_map(own, newest, bug, keeps_old);
        true
    }

    /// Delivers to a member the map that its killed process had received and not stored. Returns
    /// `false` if the process has no unstored map.
    pub fn receive_unstored_map(&mut self, own: Index, bug: Option<PlantedBug>) -> bool {
        let Some(map) = self.members[own].unstored_map else { return false };
        self.set_map(own, map, bug, true);
        true
    }

    /// Delivers a newer map to a member. `keeps_old` means that the process has received the map,
    /// and the device still has the previous map.
    fn set_map(&mut self, own: Index, map: Group, bug: Option<PlantedBug>, keeps_old: bool) {
        let member = &mut self.members[own];
        member.stored_map = if keeps_old { member.map } else { map };
        member.map = map;
        match &mut member.role {
            Role::Primary(primary) => {
                let goes_on = map.primary == own && map.since == primary.since;
                if goes_on || bug == Some(PlantedBug::GoOnDeposed) {
                    primary.begin_epoch(map.other_serving(own));
                    self.rise(own);
                } else {
                    self.begin_process(own, bug);
                }
            }
            Role::Backup(backup) => {
                (backup.matched, backup.goal) = (member.stored, None);
                self.lead_if_possible(own, bug);
            }
        }
    }

    /// Returns the request that a primary sends to another member now.
    pub fn request(&self, own: Index, to: Index, bug: Option<PlantedBug>) -> Option<Request> {
        let (member, primary) = self.primary(own)?;
        let link = &primary.links[to];
        let ships_all = link.standing == Standing::Serving || bug == Some(PlantedBug::ShipUnsynced);
        let end = if ships_all { member.log.last() } else { member.synced };
        Some(Request {
            primary: own,
            epoch: member.map.epoch,
            before: link.progress.appended.min(end),
            log: member.log.up_to(end),
            last: member.log.last(),
            safe: primary.safe,
            names_process: link.knows_process,
            waits: member.has_promised,
            is_fresh: true,
            has_sender: true,
        })
    }

    /// Delivers a reply. Returns `false` if the receiver ignores the reply.
    pub fn deliver_reply(&mut self, from: Index, to: Index, reply: &Reply) -> bool {
        let member = &mut self.members[to];
        if reply.epoch != member.map.epoch {
            return false;
        }
        let Role::Primary(primary) = &mut member.role else { return false };
        primary.receive(from, reply, member.log.last());
        if primary.former == Some(from) {
            member.has_promised = false;
        }
        self.rise(to);
        true
    }

    /// Ends the promises of a member. The leases that the member has granted have ended before this
    /// moment.
    pub fn end_promise(&mut self, own: Index) -> bool {
        if !self.members[own].has_promised {
            return false;
        }
        self.members[own].has_promised = false;
        for member in &mut self.members {
            if let Role::Primary(primary) = &mut member.role {
                primary.links[own].is_leased = false;
            }
        }
        self.late.iter_mut().for_each(|it| it.end_promise(own));
        true
    }

    /// Starts a new process of a member after the previous process was killed. `has_old_map` means
    /// that the previous process had not stored its newest map.
    pub fn restart(&mut self, own: Index, has_old_map: bool, bug: Option<PlantedBug>) {
        let member = &mut self.members[own];
        if bug == Some(PlantedBug::ForgetAsked) {
            member.asked = 0;
        }
        if has_old_map {
            if member.map.epoch > member.stored_map.epoch {
                member.unstored_map = Some(member.map);
            }
            member.map = member.stored_map;
        } else {
            member.stored_map = member.map;
        }
        self.begin_process(own, bug);
    }

    /// Removes the page cache of a member's host, so that only the first `kept` records are left,
    /// and begins a new process.
    pub fn lose_power(&mut self, own: Index, kept: u8, bug: Option<PlantedBug>) {
        let member = &mut self.members[own];
        let before = member.log.records();
        member.log = member.log.up_to(kept);
        let lost = before.without(member.log.records());
        // The store on the device may be older than the log, so begin with an empty store. The
        // records of the store are in the log.
        (member.synced, member.stored, member.lacks_records) = (kept, 0, true);
        self.history.note_loss(own, lost);
        let serving = || self.group.serving.iter().map(|it| &self.members[it]);
        if serving().all(|it| it.lacks_records) {
            let logs = serving().map(|it| it.log.records());
            self.history.forgive(logs.reduce(|all, log| all.or(log)).unwrap_or_default());
        }
        self.restart(own, false, bug);
    }

    /// Makes the member with the longest log the primary, if all serving members have reported the
    /// loss of their page caches in this epoch. Returns `false` if such a report is missing.
    pub fn recover_from_loss(&mut self, bug: Option<PlantedBug>) -> bool {
        let group = self.group;
        let reports = |it: Index| {
            let member = &self.members[it];
            member.lacks_records && member.map.epoch == group.epoch && member.as_primary().is_none()
        };
        if !group.serving.iter().all(reports) {
            return false;
        }
        let end = |it: &Index| {
            let member = &self.members[*it];
            (member.log_epoch(), member.log.last(), *it == group.primary, *it)
        };
        let longest = match bug {
            Some(PlantedBug::FirstLogWins) => group.serving.iter().next(),
            _ => group.serving.iter().max_by_key(end),
        };
        let Some(longest) = longest else { return false };
        for other in group.serving.iter().filter(|it| *it != longest && *it != group.primary) {
            self.group.drop_member(other);
        }
        if longest != group.primary {
            self.group.take_over(longest);
        }
        if self.group.epoch == group.epoch {
            // The primary was the only serving member. Begin a new epoch nevertheless, to revoke
            // its requests to mark members as in sync.
            let absent = self.indices().find(|it| !group.serving.has(*it));
            absent.into_iter().for_each(|it| self.group.drop_member(it));
        }
        self.history.has_recovered = true;
        self.revoke_requests();
        true
    }

    /// Removes the requests to management, which belong to the previous epoch.
    pub fn revoke_requests(&mut self) {
        self.mark_requests = Members::default();
        self.late_change = None;
    }

    /// Completes a step: records the replies that clients may have received, and removes values and
    /// messages that have no effect any more.
    pub fn settle(&mut self, model: &GroupModel) {
        let bug = model.bug;
        for own in self.indices() {
            if self.may_answer(own, model) {
                let member = &self.members[own];
                if let Role::Primary(primary) = &member.role {
                    self.history.answer(own, member, primary, model);
                }
            }
        }
        self.history.forget_regained(&self.members);
        for member in &mut self.members {
            let oldest = member.map.epoch.min(member.stored_map.epoch);
            member.unstored_map.take_if(|it| it.epoch <= member.map.epoch);
            let Member { role, lacks_records, map, counted, asked, has_promised, .. } = member;
            match role {
                Role::Backup(backup) => backup.forget_unused(*lacks_records, map.epoch, bug),
                Role::Primary(primary) => primary.forget_unused(),
            }
            if !model.bounds.leases {
                *has_promised = false;
                role.forget_leases();
            }
            if counted.0 < oldest {
                *counted = (0, Members::default());
            }
            if *asked < oldest {
                *asked = 0;
            }
        }
        let lowest = |it: Index| self.members[it].map.epoch.min(self.members[it].stored_map.epoch);
        let is_over = |it: &mut LateMessage| match it {
            LateMessage::Request { to, request } => request.epoch < lowest(*to),
            LateMessage::Reply { to, reply, .. } => reply.epoch < lowest(*to),
        };
        if bug != Some(PlantedBug::AcceptOlderEpoch) {
            self.late.take_if(is_over);
        }
    }
}

/// Returns all ordered pairs of two different members.
pub fn pairs(members: usize) -> impl Iterator<Item = (Index, Index)> {
    let all = (0..members).flat_map(move |from| (0..members).map(move |to| (from, to)));
    all.filter(|(from, to)| from != to)
}
