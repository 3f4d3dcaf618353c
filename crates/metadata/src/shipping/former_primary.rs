//! The last replies of a former primary whose disk hangs.
//!
//! A primary whose disk hangs asks management to hand its group over. After each hand-over, the
//! former primary opens its directory as a backup member, and its first confirmation releases its
//! lease ([`super::succession`]). But no target can open its directory while its disk hangs. So the
//! new primary would first wait for the end of the lease, and would have the silent member dropped
//! only then. This module replies to the new primary without the disk:
//!
//! - The reply to its first `ShipLog` confirms no record. This reply releases the lease, and grants
//!   none.
//! - The reply to each later request is `DeviceFailed`. The new primary then has this member
//!   dropped immediately.
//!
//! # Hazard: a release by a primary
//! After the release, the new primary replies to clients. So the caller creates a
//! [`FormerPrimary`] only when the target has ended its role, and sends no reply of that role from
//! then on. A [`FormerPrimary`] itself replies to clients only with refusals.
//!
//! This module does not own the decision whether the disk hangs (`service::former_primary`).

use super::own_group::OwnGroup;
use super::preceding;
use crate::target::{Action, Event};
use skep_types::codec::Codec;
use skep_types::{ClusterMap, Epoch, Error, ErrorCode, GroupId, Result, TargetId};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::log_shipping::{LogHeld, ShipLog};
use std::sync::Arc;

/// A target that was the primary of its group, and whose disk hangs.
#[derive(Debug)]
pub struct FormerPrimary {
    own: OwnGroup,
    /// The newest group epoch in which this target has released its lease. `None` means that this
    /// target has released no lease.
    released_in: Option<Epoch>,
}

impl FormerPrimary {
    /// Creates the state of a target whose role as the primary of `group` has ended. `map` is the
    /// newest cluster map. The map may still name this target as the primary.
    pub fn new(group: GroupId, target: TargetId, map: Arc<ClusterMap>) -> Self {
        Self { own: OwnGroup::new(group, target, map, Epoch::default()), released_in: None }
    }

    /// Handles events as one batch. Returns the replies, which are the only actions.
    pub fn handle(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Action> {
        let mut replies = Vec::new();
        for event in events {
            match event {
                Event::Request { connection, header, body } => {
                    let result = self.answer(&header, &body).map(|held| held.to_bytes());
                    replies.push(Action::Reply { connection, request: header, result });
                }
                Event::Map(map) => _ = self.own.set_map(map),
                Event::Answer { .. }
                | Event::Synced { .. }
                | Event::MemberReply { .. }
                | Event::CopyReply { .. }
                | Event::LogRead { .. }
                | Event::Checkpointed { .. }
                | Event::FreeSpace { .. }
                | Event::Tick => {}
            }
        }
        replies
    }

    /// Whether the new primary may still wait for this target. This is the case if the target
    /// serves in the newest map, or has not received the map with the new primary yet.
    pub fn is_awaited(&self) -> bool {
        self.own.serves() || self.own.is_primary()
    }

    fn answer(&mut self, header: &Header, body: &[u8]) -> Result<LogHeld> {
        self.own.admit(header)?;
        let epoch = self.own.epoch();
        if header.message == ShipLog::ID && self.released_in != Some(epoch) {
            let ship = ShipLog::from_bytes(body)
                .map_err(|error| Error::new(ErrorCode::Protocol, error.context()))?;
            self.released_in = Some(epoch);
            let ship_after = preceding(ship.first);
            return Ok(LogHeld { epoch, ship_after, is_behind: true, ..LogHeld::default() });
        }
        let what = format!(
            "target {} cannot follow the primary of group {}: its disk completes no sync of its \
             log, so the target cannot open its directory; check this disk",
            self.own.target, self.own.group
        );
        Err(Error::new(ErrorCode::DeviceFailed, what))
    }
}
