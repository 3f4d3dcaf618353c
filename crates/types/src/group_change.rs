//! Changes of the members of a group, as management stores them in its log.
//!
//! Contains data types only. The rules for such changes are in `skep-cluster`.

use crate::byte_enum;
use crate::codec::record;
use crate::{Epoch, GroupId, TargetId};

byte_enum! {
    /// Kind of a change of a group's members.
    pub enum MemberChange {
        /// Adds a target, which must not be in any group yet, as a waiting member.
        Add = 1,
        /// A waiting or syncing member has all data now, and serves from the next epoch on.
        MarkInSync = 2,
        /// A serving member becomes the primary, because the previous primary does not answer. The
        /// previous primary becomes a waiting member.
        TakeOver = 3,
        /// A serving member other than the primary becomes a waiting member. If the member waits
        /// already, only the epoch rises, so that management refuses earlier requests to mark the
        /// member as in sync.
        Drop = 4,
        /// A serving member becomes the primary. The previous primary remains a serving member.
        HandOver = 5,
        /// Removes a member that does not serve from the group.
        Remove = 6,
    }
}

record! {
    /// A change of the members of a group. Management carries out the change only if the epoch of
    /// the group still equals `epoch`.
    #[derive(Copy)]
    pub struct GroupChange {
        /// The group.
        pub group: GroupId,
        /// Epoch of the group on which the sender has based its decision.
        pub epoch: Epoch,
        /// Kind of the change.
        pub change: MemberChange,
        /// The target to add, or the member that the change concerns.
        pub target: TargetId,
    }
}
