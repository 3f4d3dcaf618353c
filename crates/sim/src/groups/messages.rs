//! Messages between the processes, and the links that transfer these messages.
//!
//! # Faults
//! A link loses, duplicates, delays or reorders messages. A link that is cut in one direction loses
//! the messages of this direction, or delivers them after the cut.

use super::authority::group_of;
use super::cluster::{Cluster, GroupEvent};
use super::knobs::GroupBug;
use super::member::Role;
use skep_metadata::shipping::{MemberMessage, MemberRequest};
use skep_types::group_change::GroupChange;
use skep_types::{ClusterMap, Epoch, ErrorCode, Lsn, Result, TargetId};
use skep_wire::frame::Header;
use skep_wire::log_shipping::{LogHeld, StoreCopied};
use skep_wire::management::AskTakeOver;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A process of a member: the index of the member in the cluster, and the id of the process.
pub(super) type Process = (usize, u64);

/// An end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Management,
    Member(usize),
    Client(usize),
}

/// The reply of one member to another member.
#[derive(Debug, Clone)]
pub(super) enum MemberReply {
    Log(Result<LogHeld>),
    Copy(Result<StoreCopied>),
}

/// A request of a member to management.
#[derive(Debug, Clone)]
pub(super) enum Ask {
    /// The request to change the group. The epoch is the group's epoch in the sender's map.
    Change(GroupChange, Epoch),
    TakeOver(AskTakeOver),
}

/// A message.
#[derive(Debug, Clone)]
pub(super) enum Message {
    /// A request of a primary to another member.
    ToMember {
        from: Process,
        sender_epoch: Epoch,
        to: usize,
        request: MemberRequest,
    },
    FromMember {
        from: usize,
        to: Process,
        member: TargetId,
        number: u64,
        reply: MemberReply,
    },
    ToManagement {
        from: Process,
        number: u64,
        ask: Ask,
    },
    /// The reply of management. `None` means that there is no error.
    FromManagement {
        to: Process,
        number: u64,
        error: Option<ErrorCode>,
    },
    Map {
        to: Place,
        map: Arc<ClusterMap>,
    },
    /// A request of a client. `attempt` is the id of the connection.
    Request {
        client: usize,
        call: u64,
        attempt: u64,
        to: Process,
        header: Header,
        body: Vec<u8>,
    },
    /// The reply to a client. `term` is the term of the primary that replies.
    Reply {
        from: usize,
        client: usize,
        call: u64,
        attempt: u64,
        term: Epoch,
        result: Result<Vec<u8>>,
    },
}

impl Message {
    fn link(&self) -> (Place, Place) {
        match self {
            Self::ToMember { from, to, .. } => (Place::Member(from.0), Place::Member(*to)),
            Self::FromMember { from, to, .. } => (Place::Member(*from), Place::Member(to.0)),
            Self::ToManagement { from, .. } => (Place::Member(from.0), Place::Management),
            Self::FromManagement { to, .. } => (Place::Management, Place::Member(to.0)),
            Self::Map { to, .. } => (Place::Management, *to),
            Self::Request { client, to, .. } => (Place::Client(*client), Place::Member(to.0)),
            Self::Reply { from, client, .. } => (Place::Member(*from), Place::Client(*client)),
        }
    }

    /// Returns the index of the receiving member. `None` means that the receiver is not a member.
    pub(super) fn receiving_member(&self) -> Option<usize> {
        match self.link().1 {
            Place::Member(member) => Some(member),
            Place::Management | Place::Client(_) => None,
        }
    }

    /// Whether the receiver may get the message twice.
    fn may_repeat(&self) -> bool {
        matches!(self, Self::ToMember { .. } | Self::FromMember { .. } | Self::ToManagement { .. })
    }
}

/// The links that are cut.
#[derive(Debug, Default)]
pub(super) struct Links {
    cuts: BTreeMap<(Place, Place), Duration>,
}

impl Links {
    /// Cuts the direction from `from` to `to` until a time.
    pub(super) fn cut(&mut self, from: Place, to: Place, until: Duration) {
        let end = self.cuts.entry((from, to)).or_default();
        *end = until.max(*end);
    }

    pub(super) fn heal(&mut self) {
        self.cuts.clear();
    }

    /// Returns the time at which the cut of a link direction ends. `None` means that the direction
    /// is not cut now.
    fn cut_until(&self, link: (Place, Place), now: Duration) -> Option<Duration> {
        self.cuts.get(&link).copied().filter(|until| *until > now)
    }

    /// Whether messages travel from `from` to `to`.
    pub(super) fn is_open(&self, from: Place, to: Place, now: Duration) -> bool {
        self.cut_until((from, to), now).is_none()
    }
}

/// Maximum delay of a message, in microseconds. The first constant is for usual links, the second
/// for slow links.
const USUAL_TRAVEL_MICROS: u64 = 2_000;
const SLOW_TRAVEL_MICROS: u64 = 60_000;
/// Maximum delay of the few messages that arrive after all others, in microseconds.
const LATE_TRAVEL_MICROS: u64 = 4_000_000;

impl Cluster {
    /// Sends a message.
    pub(super) fn post(&mut self, message: Message) {
        let (faults, is_busy) = (self.knobs.faults, self.is_busy);
        let has_losses = faults.losses && is_busy;
        if has_losses && message.may_repeat() && self.random.percent(3) {
            self.post_one(message.clone());
        }
        let is_map = matches!(message, Message::Map { .. });
        if has_losses && !is_map && self.random.percent(2) {
            return;
        }
        self.post_one(message);
    }

    fn post_one(&mut self, message: Message) {
        let faults = self.knobs.faults;
        let is_map = matches!(message, Message::Map { .. });
        let is_late = faults.losses && self.is_busy && self.random.percent(2);
        let is_slow =
            faults.slowness && self.random.percent(5) || is_map && self.random.percent(10);
        let most = match (is_late, is_slow) {
            (true, _) => LATE_TRAVEL_MICROS,
            (_, true) if is_map => LATE_TRAVEL_MICROS / 4,
            (_, true) => SLOW_TRAVEL_MICROS,
            _ => USUAL_TRAVEL_MICROS,
        };
        let mut arrival = self.now + self.random.micros(30, most);
        if let Some(until) = self.links.cut_until(message.link(), self.now) {
            // A cut link delays maps and never loses a map, because nodes request the newest map
            // repeatedly.
            if !is_map && self.random.percent(70) {
                return;
            }
            arrival = arrival.max(until + self.random.micros(1, USUAL_TRAVEL_MICROS));
        }
        self.at(arrival, GroupEvent::Arrival(message));
    }

    /// Handles the arrival of a message.
    pub(super) fn receive(&mut self, message: Message) {
        match message {
            Message::ToMember { from, sender_epoch, to, request } => {
                if let Some(held) = self.release_in_office(to, &request) {
                    let (member, number) = (self.members[to].target, request.number);
                    let reply = MemberReply::Log(Ok(held));
                    let (from, to) = (to, from);
                    return self.post(Message::FromMember { from, to, member, number, reply });
                }
                self.receive_request_of_member(from, sender_epoch, to, request);
            }
            Message::FromMember { to, member, number, reply, .. } => {
                self.receive_reply_of_member(to, member, number, reply);
            }
            Message::ToManagement { .. } if self.now < self.authority.is_back => {}
            Message::ToManagement { from, number, ask } => self.receive_ask(from, number, ask),
            Message::FromManagement { to, number, error } => {
                self.management_replied(to, number, error);
            }
            Message::Map { to: Place::Member(member), map } => self.map_arrived(member, map),
            Message::Map { to: Place::Client(client), map } => self.map_of_client(client, map),
            Message::Map { to: Place::Management, .. } => {}
            Message::Request { client, call, attempt, to, header, body } => {
                self.receive_request_of_client((client, call, attempt), to, header, body);
            }
            Message::Reply { client, call, attempt, term, result, .. } => {
                self.receive_reply(client, (call, attempt), term, result);
                self.lose_power_of_late_sender();
            }
        }
    }

    /// For a planted bug: returns a confirmation of records from a primary that does not have its
    /// successor's map yet. The primary continues in its role.
    fn release_in_office(&self, to: usize, request: &MemberRequest) -> Option<LogHeld> {
        let member = &self.members[to];
        let is_planted = self.knobs.plant == Some(GroupBug::ReleaseInOffice);
        let MemberMessage::Ship(ship) = &request.message else { return None };
        let is_later = ship.epoch > group_of(&member.map).epoch;
        if !is_planted || !is_later || !matches!(member.role, Role::Primary(_)) {
            return None;
        }
        let last = Lsn::new(ship.first.raw().saturating_sub(1) + ship.records.len() as u64);
        Some(LogHeld {
            epoch: ship.epoch,
            appended: last,
            synced: last,
            ship_after: last,
            lease_ms: 2_000,
            ..LogHeld::default()
        })
    }
}
