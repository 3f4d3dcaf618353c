//! The properties: conditions that must hold in each state, and conditions that must hold in at
//! least one state.

use crate::GroupModel;
use crate::log::Index;
use crate::state::State;
use stateright::Property;

/// A property of the model: its name, and the condition.
type Statement = (&'static str, fn(&GroupModel, &State) -> bool);

/// The properties that must hold in each state (safety).
const ALWAYS: &[Statement] = &[
    (PRIMARY_HAS_RECORDS, primary_has_acknowledged),
    (MEMBERS_HAVE_RECORDS, members_have_acknowledged),
    (DURABLE_ON_DEVICES, members_have_durable),
    (ONE_REPLIES, one_member_replies),
    (NO_LATE_REPLY, no_late_reply),
    (ONE_PRIMARY, one_primary_in_each_epoch),
    (LOGS_AGREE, logs_agree),
    (COMPLETE_PRIMARY, primary_is_complete),
];

/// The properties that must hold in at least one state. These properties show that the check
/// reaches the events that they describe.
const SOMETIMES: &[Statement] = &[
    (TAKE_OVER, |model, state| {
        state.group.primary != 0
            && !state.group.serving.has(0)
            && state.may_answer(state.group.primary, model)
    }),
    (RETURN, |model, state| {
        let group = &state.group;
        let returned = group.serving.iter().count() == model.bounds.members;
        let is_later = group.primary != 0 && group.epoch > group.since;
        returned && is_later && state.may_answer(group.primary, model)
    }),
    (RECOVERY, |model, state| {
        state.history.has_recovered && state.may_answer(state.group.primary, model)
    }),
    (LATE_CHANGE, |model, state| {
        let group = &state.group;
        let is_alone = group.other_serving(group.primary).is_empty();
        state.history.has_late_change && is_alone && state.may_answer(group.primary, model)
    }),
    (RELEASE, |model, state| {
        let primary = state.group.primary;
        let released = state.primary(primary).and_then(|(_, it)| it.former);
        let has_promised = |it: Index| state.members[it].has_promised;
        released.is_some_and(has_promised) && state.may_answer(primary, model)
    }),
];

/// The primary of the present epoch has each record on which a received reply relies.
pub const PRIMARY_HAS_RECORDS: &str = "primary has all acknowledged records";
/// Each serving member whose host has kept its page cache has each record on which a received reply
/// relies.
pub const MEMBERS_HAVE_RECORDS: &str = "serving members have all acknowledged records";
/// Each serving member has synced each record that a reply has reported to a client as durable.
pub const DURABLE_ON_DEVICES: &str = "serving members have all durable records on the device";
/// At most one member may reply to clients.
pub const ONE_REPLIES: &str = "only one member may reply at a time";
/// No member may reply after a primary of a later term has replied.
pub const NO_LATE_REPLY: &str = "no primary replies after its successor has replied";
/// No two members reply in one epoch.
pub const ONE_PRIMARY: &str = "only one primary replies in each epoch";
/// Serving members have the same records up to *held*.
pub const LOGS_AGREE: &str = "serving members have the same log records up to the held one";
/// No process becomes the primary before it again has the acknowledged records that its host has
/// lost.
pub const COMPLETE_PRIMARY: &str = "a primary has the records that its host lost";
/// A backup member takes over, and replies.
pub const TAKE_OVER: &str = "a backup member takes over";
/// After a take-over, all members serve in the term of the new primary.
pub const RETURN: &str = "a former primary returns";
/// All serving members lose their page caches, and one member continues the group.
pub const RECOVERY: &str = "the group continues after a power loss of all members";
/// Management carries out a late request of a member whose host has lost its page cache, and this
/// member serves alone.
pub const LATE_CHANGE: &str = "a member serves alone after a late request";
/// A new primary replies early, because the previous primary has confirmed an epoch of the new
/// primary.
pub const RELEASE: &str = "a moved primary releases its lease";

/// Returns all properties.
pub(crate) fn all(model: &GroupModel) -> Vec<Property<GroupModel>> {
    let always = ALWAYS.iter().map(|(name, condition)| Property::always(name, *condition));
    let expected = SOMETIMES.iter().filter(|(name, _)| model.expects.contains(name));
    let sometimes = expected.map(|(name, condition)| Property::sometimes(name, *condition));
    always.chain(sometimes).collect()
}

/// Returns the names of the properties that must hold in each state.
pub fn always() -> Vec<&'static str> {
    ALWAYS.iter().map(|(name, _)| *name).collect()
}

/// A process that is the primary in the present epoch has all acknowledged records, even before it
/// may reply.
fn primary_has_acknowledged(_: &GroupModel, state: &State) -> bool {
    state.indices().all(|it| match state.primary(it) {
        Some((member, _)) if member.map.epoch == state.group.epoch => {
            state.history.acknowledged.without(member.log.records()).is_empty()
        }
        _ => true,
    })
}

/// Each serving member whose host has kept its page cache has all acknowledged records, so this
/// member could take over.
fn members_have_acknowledged(_: &GroupModel, state: &State) -> bool {
    state.group.serving.iter().map(|it| &state.members[it]).all(|member| {
        member.lacks_records || state.history.acknowledged.without(member.log.records()).is_empty()
    })
}

/// Each serving member has synced all durable records. So even if all hosts lose power in this
/// state, and only one serving member keeps its disk, the group loses no durable record.
fn members_have_durable(_: &GroupModel, state: &State) -> bool {
    state.group.serving.iter().map(|it| &state.members[it]).all(|member| {
        let on_device = member.log.up_to(member.synced).records();
        state.history.durable.without(on_device).is_empty()
    })
}

fn one_member_replies(model: &GroupModel, state: &State) -> bool {
    let answering = state.indices().filter(|it| state.may_answer(*it, model));
    !model.bounds.leases || answering.count() <= 1
}

fn no_late_reply(model: &GroupModel, state: &State) -> bool {
    let answering = state.indices().filter(|it| state.may_answer(*it, model));
    let mut terms = answering.filter_map(|it| state.primary(it)).map(|(_, primary)| primary.since);
    !model.bounds.leases || terms.all(|term| term >= state.history.answered_term)
}

fn one_primary_in_each_epoch(_: &GroupModel, state: &State) -> bool {
    !state.history.has_two_primaries
}

/// Invariant 4 of the design: the logs of all serving members are equal up to *held*.
fn logs_agree(_: &GroupModel, state: &State) -> bool {
    let Some((member, primary)) = state.primary(state.group.primary) else { return true };
    if member.map.epoch != state.group.epoch {
        return true;
    }
    let held = member.log.up_to(primary.held);
    let serving = state.group.serving.iter().map(|it| &state.members[it]);
    serving.filter(|it| !it.lacks_records).all(|it| it.log.up_to(primary.held) == held)
}

/// A member whose host has lost its page cache is not the primary in any epoch, until it has
/// received the lost acknowledged records.
fn primary_is_complete(_: &GroupModel, state: &State) -> bool {
    state.indices().all(|it| state.primary(it).is_none() || state.history.lost[it].is_empty())
}
