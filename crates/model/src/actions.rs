//! The steps of the model: the list of steps that may be possible in a state, and their effects.

use crate::GroupModel;
use crate::bugs::PlantedBug;
use crate::log::{Index, Members};
use crate::member::Role;
use crate::messages::{LateChange, LateMessage};
use crate::primary::{Link, Standing};
use crate::state::{State, pairs};

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A primary appends a record for a client.
    Write(Index),
    /// A member syncs all records of its log.
    Sync(Index),
    /// A request of the first member arrives at the second member, and the reply arrives at the
    /// first member.
    Exchange(Index, Index),
    /// A request of the first member arrives at the second member, and the reply is lost.
    LoseReply(Index, Index),
    /// The network delays a request of the first member to the second member.
    DelayRequest(Index, Index),
    /// A request of the first member arrives at the second member, and the network delays the
    /// reply.
    DelayReply(Index, Index),
    /// The delayed message arrives.
    DeliverLate,
    /// A member receives the newest cluster map.
    ReceiveMap(Index),
    /// A member receives the cluster map that its previous process had received and not stored.
    ReceiveUnstoredMap(Index),
    /// All promises of a member have ended.
    EndPromise(Index),
    /// A primary begins to count an absent member: the replies of the primary wait for this member.
    Count(Index, Index),
    /// A primary stops counting a member.
    StopCounting(Index, Index),
    /// A primary asks management to mark a counted member as in sync. A primary that still waits
    /// for the end of its promises to earlier primaries does not ask.
    AskToMark(Index, Index),
    /// Management marks a member as in sync.
    MarkInSync(Index),
    /// Management drops a member at the request of the primary.
    Drop(Index, Index),
    /// Management makes a backup member the primary at its request.
    TakeOver(Index),
    /// Management makes a backup member the primary at the request of an administrator or of the
    /// primary.
    HandOver(Index),
    /// A backup member asks to take over, and the request is delayed before management carries it
    /// out.
    DelayTakeOver(Index),
    /// A primary asks to drop a member, and the request is delayed before management carries it
    /// out.
    DelayDrop(Index, Index),
    /// A backup member whose map is older than its member mark asks to take over, and management
    /// refuses.
    AskWithOldMap(Index),
    /// Management carries out the delayed request.
    CarryOutLate,
    /// Management makes the member with the longest log the primary, after all serving members have
    /// reported a loss.
    RecoverFromLoss,
    /// A process is killed, and a new process starts.
    Kill(Index),
    /// A process is killed before it has stored its newest cluster map, and a new process starts.
    /// If the next step is a power loss, the two steps represent a power loss before the map was
    /// stored.
    KillWithOldMap(Index),
    /// A host loses power. Only the given number of records of the member's log is left.
    LosePower(Index, u8),
}

/// Adds the steps that may be possible in `state` to `actions`. [`perform`] refuses some of these
/// steps.
pub(crate) fn possible(model: &GroupModel, state: &State, actions: &mut Vec<Action>) {
    let left = state.left;
    let may_change = state.group.epoch < model.bounds.epochs;
    let may_delay = may_change && left.late_changes > 0 && state.late_change.is_none();
    for member in state.indices() {
        actions.extend([Action::Sync(member), Action::ReceiveMap(member)]);
        if state.members[member].unstored_map.is_some() {
            actions.extend([Action::ReceiveUnstoredMap(member), Action::AskWithOldMap(member)]);
        }
        if model.bounds.leases {
            actions.push(Action::EndPromise(member));
        }
        if left.writes > 0 {
            actions.push(Action::Write(member));
        }
        if left.kills > 0 {
            actions.push(Action::Kill(member));
        }
        if left.old_maps > 0 {
            actions.push(Action::KillWithOldMap(member));
        }
        if left.power_losses > 0 {
            let of = &state.members[member];
            actions.extend((of.synced..=of.log.last()).map(|it| Action::LosePower(member, it)));
        }
        if may_delay {
            actions.push(Action::DelayTakeOver(member));
        }
        if may_change {
            actions.extend([Action::TakeOver(member), Action::MarkInSync(member)]);
            if model.bounds.moves {
                actions.push(Action::HandOver(member));
            }
        }
    }
    for (from, to) in pairs(state.members.len()) {
        if state.primary(from).is_some() {
            actions.extend([
                Action::Exchange(from, to),
                Action::LoseReply(from, to),
                Action::StopCounting(from, to),
            ]);
            if may_change {
                actions.extend([
                    Action::Count(from, to),
                    Action::AskToMark(from, to),
                    Action::Drop(from, to),
                ]);
            }
            if may_delay {
                actions.push(Action::DelayDrop(from, to));
            }
        }
        if left.late_messages > 0 && state.late.is_none() {
            actions.extend([Action::DelayRequest(from, to), Action::DelayReply(from, to)]);
        }
    }
    if state.late.is_some() {
        actions.push(Action::DeliverLate);
    }
    if state.late_change.is_some() && may_change {
        actions.push(Action::CarryOutLate);
    }
    let others = state.group.serving.iter().count() as u8;
    if state.group.epoch + others <= model.bounds.epochs {
        actions.push(Action::RecoverFromLoss);
    }
}

/// Performs a step. Returns `false` if the action is not possible.
pub(crate) fn perform(model: &GroupModel, state: &mut State, action: Action) -> bool {
    let bug = model.bug;
    match action {
        Action::Write(own) => {
            if state.primary(own).is_none() {
                return false;
            }
            state.left.writes -= 1;
            state.append(own);
            true
        }
        Action::Sync(own) => {
            let member = &mut state.members[own];
            member.synced = member.log.last();
            member.store();
            state.rise(own);
            true
        }
        Action::Exchange(from, to)
        | Action::LoseReply(from, to)
        | Action::DelayRequest(from, to)
        | Action::DelayReply(from, to) => send(state, &action, (from, to), bug),
        Action::DeliverLate => match state.late.take() {
            Some(LateMessage::Request { to, request }) => {
                let reply = state.members[to].receive(to, &request, bug);
                if let Some(reply) = reply.filter(|_| request.has_sender) {
                    state.deliver_reply(to, request.primary, &reply);
                }
                true
            }
            Some(LateMessage::Reply { from, to, reply }) => state.deliver_reply(from, to, &reply),
            None => false,
        },
        Action::ReceiveMap(own) => state.receive_map(own, bug, model.bounds.faults.old_maps > 0),
        Action::ReceiveUnstoredMap(own) => state.receive_unstored_map(own, bug),
        Action::EndPromise(own) => state.end_promise(own),
        Action::Count(from, to) | Action::StopCounting(from, to) | Action::AskToMark(from, to) => {
            perform_counting(state, &action, (from, to), bug)
        }
        Action::DelayTakeOver(_) | Action::DelayDrop(..) => delay_change(state, &action, bug),
        Action::AskWithOldMap(own) => ask_with_old_map(state, own, bug),
        Action::MarkInSync(_)
        | Action::Drop(..)
        | Action::TakeOver(_)
        | Action::HandOver(_)
        | Action::CarryOutLate
        | Action::RecoverFromLoss => change_group(state, &action, bug),
        Action::Kill(own) => {
            state.left.kills -= 1;
            state.restart(own, false, bug);
            true
        }
        Action::KillWithOldMap(own) => {
            state.left.old_maps -= 1;
            state.restart(own, true, bug);
            true
        }
        Action::LosePower(own, kept) => {
            state.left.power_losses -= 1;
            state.lose_power(own, kept, bug);
            true
        }
    }
}

/// Sends a request of a primary to another member. Depending on `action`, the reply also arrives.
fn send(
    state: &mut State,
    action: &Action,
    (from, to): (Index, Index),
    bug: Option<PlantedBug>,
) -> bool {
    let Some(request) = state.request(from, to, bug) else { return false };
    if *action == Action::DelayRequest(from, to) {
        state.left.late_messages -= 1;
        state.late = Some(LateMessage::Request { to, request });
        return true;
    }
    let Some(reply) = state.members[to].receive(to, &request, bug) else { return false };
    match action {
        Action::Exchange(..) => _ = state.deliver_reply(to, from, &reply),
        Action::DelayReply(..) => {
            state.left.late_messages -= 1;
            state.late = Some(LateMessage::Reply { from: to, to: from, reply });
        }
        _ => {}
    }
    true
}

/// Performs `Count`, `StopCounting` or `AskToMark` of the primary `own` for the member `other`.
fn perform_counting(
    state: &mut State,
    action: &Action,
    (own, other): (Index, Index),
    bug: Option<PlantedBug>,
) -> bool {
    let member = &mut state.members[own];
    let Role::Primary(primary) = &mut member.role else { return false };
    let needed = primary.needed_to_serve(bug);
    let may_mark = !member.has_promised || bug == Some(PlantedBug::MarkDuringWait);
    let link = &mut primary.links[other];
    match (action, link.standing) {
        // The primary counts a member only after the member has compared its log in this epoch.
        (Action::Count(..), Standing::Absent) if link.progress.appended > 0 => {
            link.standing = Standing::Counted;
        }
        (Action::StopCounting(..), Standing::Counted) if may_stop(link, bug) => {
            link.standing = Standing::Absent;
        }
        (Action::AskToMark(..), Standing::Counted) if may_mark && link.progress.reaches(needed) => {
            link.may_serve = true;
            let epoch = member.map.epoch;
            let before =
                if member.counted.0 == epoch { member.counted.1 } else { Members::default() };
            member.counted = (epoch, before.with(other));
            if epoch == state.group.epoch {
                state.mark_requests = state.mark_requests.with(other);
            }
        }
        _ => return false,
    }
    state.rise(own);
    true
}

fn may_stop(link: &Link, bug: Option<PlantedBug>) -> bool {
    !link.may_serve || bug == Some(PlantedBug::StopCountingAsked)
}

/// Whether `member` may ask to take over in the present epoch: the member is a serving backup
/// member with a synced log, and lacks no records.
fn may_ask_to_take_over(state: &State, member: Index, bug: Option<PlantedBug>) -> bool {
    let asker = &state.members[member];
    let lacks_records = asker.lacks_records && bug != Some(PlantedBug::PromoteAfterPowerLoss);
    let is_synced = asker.synced == asker.log.last() || bug == Some(PlantedBug::AskUnsynced);
    let is_current = asker.map.epoch == state.group.epoch;
    is_current && is_backup(state, member) && !lacks_records && is_synced
}

/// Whether the process `from` may ask to drop `member` in the present epoch.
fn may_ask_to_drop(state: &State, (from, member): (Index, Index), bug: Option<PlantedBug>) -> bool {
    let Some((sender, primary)) = state.primary(from) else { return false };
    let link = &primary.links[member];
    let is_useful =
        link.standing == Standing::Serving || link.standing == Standing::Counted && link.may_serve;
    let is_synced = sender.synced >= primary.needed_to_serve(bug).appended
        || bug == Some(PlantedBug::DropUnsynced);
    let is_current = sender.map.epoch == state.group.epoch;
    is_current && is_useful && is_synced && state.group.primary != member
}

fn is_backup(state: &State, member: Index) -> bool {
    state.group.serving.has(member) && state.group.primary != member
}

/// Sends a request to management that is delayed before management carries it out.
fn delay_change(state: &mut State, action: &Action, bug: Option<PlantedBug>) -> bool {
    let (sender, change, is_known) = match *action {
        Action::DelayTakeOver(member) if may_ask_to_take_over(state, member, bug) => {
            let is_known = bug != Some(PlantedBug::ConfirmAfterAsking);
            (member, LateChange::TakeOver(member), is_known)
        }
        Action::DelayDrop(from, member) if may_ask_to_drop(state, (from, member), bug) => {
            (from, LateChange::Drop(member), bug != Some(PlantedBug::ReplyAfterAsking))
        }
        _ => return false,
    };
    state.left.late_changes -= 1;
    state.late_change = Some(change);
    state.members[sender].ask(is_known, bug);
    true
}

/// Lets a backup member whose map is older than its member mark ask to take over. Management
/// refuses the request.
fn ask_with_old_map(state: &mut State, own: Index, bug: Option<PlantedBug>) -> bool {
    let asker = &mut state.members[own];
    let is_old = asker.map.epoch < asker.counted.0;
    let is_backup = asker.map.serving.has(own) && asker.map.primary != own;
    let is_synced = asker.synced == asker.log.last();
    if !is_old || !is_backup || asker.lacks_records || !is_synced {
        return false;
    }
    asker.ask(true, bug);
    true
}

/// Performs a change of the group by management. Management refuses a request of an earlier epoch.
fn change_group(state: &mut State, action: &Action, bug: Option<PlantedBug>) -> bool {
    let group = state.group;
    match *action {
        Action::MarkInSync(member) => {
            if !state.mark_requests.has(member) || group.serving.has(member) {
                return false;
            }
            state.group.mark_in_sync(member);
        }
        Action::Drop(from, member) => {
            if !may_ask_to_drop(state, (from, member), bug) {
                return false;
            }
            state.group.drop_member(member);
        }
        Action::TakeOver(member) => {
            if !may_ask_to_take_over(state, member, bug) {
                return false;
            }
            state.group.take_over(member);
        }
        Action::HandOver(member) => {
            if !is_backup(state, member) {
                return false;
            }
            state.group.hand_over(member);
        }
        Action::CarryOutLate => {
            let Some(change) = state.late_change else { return false };
            let sender = match change {
                LateChange::TakeOver(member) => member,
                LateChange::Drop(_) => group.primary,
            };
            state.history.has_late_change |= state.members[sender].lacks_records;
            match change {
                LateChange::TakeOver(member) => state.group.take_over(member),
                LateChange::Drop(member) => state.group.drop_member(member),
            }
        }
        _ => return state.recover_from_loss(bug),
    }
    state.revoke_requests();
    true
}
