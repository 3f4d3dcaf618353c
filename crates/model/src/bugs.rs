//! Protocol errors that tests plant into the model. The checker must find each of these bugs.

/// An error in the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// The primary replies about a record when only the primary has appended the record, before the
    /// record is held.
    ReplyBeforeHeld,
    /// The primary reports that records are durable when these records are held but not safe.
    ReplyDurableBeforeSafe,
    /// An absent member serves again when it has appended the records of the primary, before it has
    /// synced the safe records (hole H31).
    ServeAfterAppend,
    /// An absent member serves again although it lacks records that the primary had in its log when
    /// it became the primary (hole H30).
    ForgetBegin,
    /// A member accepts requests of an earlier epoch.
    AcceptOlderEpoch,
    /// A backup member takes over although its host has lost its page cache.
    PromoteAfterPowerLoss,
    /// A primary whose host has lost its page cache acts as the primary although another member
    /// serves.
    LeadAfterPowerLoss,
    /// A restarted member treats a request to its previous process like a request to its present
    /// process.
    TrustLateRequest,
    /// If all serving members have lost their page caches, the first of these members becomes the
    /// primary, although another member may have a longer log.
    FirstLogWins,
    /// The primary ships records to absent members before it has synced them.
    ShipUnsynced,
    /// The primary replies although it does not have the lease of each serving member.
    ReplyWithoutLease,
    /// A new primary replies before its promises to the previous primary have ended.
    ForgetPromise,
    /// The primary stops waiting for a counted member that management may mark as in sync.
    StopCountingAsked,
    /// A process becomes the primary with an older cluster map. This process does not count the
    /// members that an earlier process has asked management to mark as in sync, and replies without
    /// these members.
    ForgetCounted,
    /// A member whose host has lost its page cache acts as the primary, because this member is the
    /// only serving member in its map. But management may have marked another member as in sync at
    /// the request of an earlier process.
    LeadDespiteCounted,
    /// A primary does not record its first epoch in its member mark. The next process of this
    /// member has an older cluster map, and accepts requests of the previous primary.
    ForgetTerm,
    /// A backup member does not record in its member mark the epoch in which it confirms records.
    /// After a power loss, the member has an older cluster map, and treats its log as complete when
    /// it has the records of the previous primary.
    ForgetConfirmed,
    /// A deposed primary continues to act as the primary in the epoch of its successor.
    GoOnDeposed,
    /// A member handles requests of a primary although its log has records of a newer epoch than
    /// its cluster map.
    IgnoreNewerLog,
    /// A new primary stops waiting for leases when the previous primary confirms the new epoch,
    /// although leases of earlier primaries may not have ended.
    ReleaseAll,
    /// A backup member asks to take over before it has synced its log (hole H35).
    AskUnsynced,
    /// A primary asks to drop a member before it has synced the records on which replies depend.
    DropUnsynced,
    /// A backup member that has asked to take over confirms records that it has not synced.
    ConfirmAfterAsking,
    /// A primary that has asked to drop a member replies about records that it has not synced.
    ReplyAfterAsking,
    /// A process forgets that an earlier process has asked to take over or to drop a member.
    ForgetAsked,
    /// A backup member with an old cluster map asks to take over. This request removes from its
    /// member mark the members about which it has sent requests in a later epoch (hole H36).
    ForgetLaterEpoch,
    /// A new primary asks management to mark a member as in sync although its promises to earlier
    /// primaries have not ended. The member may have promised nothing to these primaries (hole
    /// H44).
    MarkDuringWait,
}

impl PlantedBug {
    /// All bugs.
    pub const ALL: [Self; 27] = [
        Self::ReplyBeforeHeld,
        Self::ReplyDurableBeforeSafe,
        Self::ServeAfterAppend,
        Self::ForgetBegin,
        Self::AcceptOlderEpoch,
        Self::PromoteAfterPowerLoss,
        Self::LeadAfterPowerLoss,
        Self::TrustLateRequest,
        Self::FirstLogWins,
        Self::ShipUnsynced,
        Self::ReplyWithoutLease,
        Self::ForgetPromise,
        Self::StopCountingAsked,
        Self::ForgetCounted,
        Self::LeadDespiteCounted,
        Self::ForgetTerm,
        Self::ForgetConfirmed,
        Self::GoOnDeposed,
        Self::IgnoreNewerLog,
        Self::ReleaseAll,
        Self::AskUnsynced,
        Self::DropUnsynced,
        Self::ConfirmAfterAsking,
        Self::ReplyAfterAsking,
        Self::ForgetAsked,
        Self::ForgetLaterEpoch,
        Self::MarkDuringWait,
    ];
}
