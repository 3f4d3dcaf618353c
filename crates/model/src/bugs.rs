//! Errors that tests plant into the protocol. The checker must find each of them.

/// An error in the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// The primary replies when it has appended the record itself, before the record is held.
    ReplyBeforeHeld,
    /// The primary reports records as durable that are held but not safe.
    ReplyDurableBeforeSafe,
    /// An absent member serves again when it has appended the records of the primary, before it has
    /// synced the safe records (hole H31).
    ServeAfterAppend,
    /// An absent member serves again without some records that the primary had when it became the
    /// primary (hole H30).
    ForgetBegin,
    /// A member handles requests of an earlier epoch.
    AcceptOlderEpoch,
    /// A backup member takes over although its host has lost its page cache.
    PromoteAfterPowerLoss,
    /// A primary whose host has lost its page cache leads although another member serves.
    LeadAfterPowerLoss,
    /// A restarted member treats a request that was sent to its earlier process as one that was
    /// sent to its present process.
    TrustLateRequest,
    /// If all serving members have lost their page caches, the first of them becomes the primary,
    /// although another one may have a longer log.
    FirstLogWins,
    /// The primary ships records to absent members before it has synced them.
    ShipUnsynced,
    /// The primary replies without a lease of each serving member.
    ReplyWithoutLease,
    /// A new primary replies before its promises to its predecessor have ended.
    ForgetPromise,
    /// The primary stops waiting for a counted member that management may mark as in sync.
    StopCountingAsked,
    /// A process becomes the primary and does not count the members that an earlier process has
    /// asked management to mark as in sync. It has an older cluster map without these members, and
    /// replies without them.
    ForgetCounted,
    /// A member whose host has lost its page cache leads as the only serving member of its map,
    /// although management may have marked another member as in sync at the request of an earlier
    /// process.
    LeadDespiteCounted,
    /// A primary does not record in its member mark the epoch in which it begins to lead. Its next
    /// process has an older cluster map, and follows the previous primary.
    ForgetTerm,
    /// A backup member does not record in its member mark the epoch in which it confirms records.
    /// After a power loss, it has an older cluster map, and treats its log as complete when it has
    /// the records of the previous primary.
    ForgetConfirmed,
    /// A deposed primary continues to lead in the epoch of its successor.
    GoOnDeposed,
    /// A member handles requests of a primary although its log has records of a newer epoch than
    /// its cluster map.
    IgnoreNewerLog,
    /// The confirmation of the previous primary ends the wait of its successor, although leases of
    /// still earlier primaries may not have ended.
    ReleaseAll,
    /// A backup member asks to take over before it has synced its log (hole H35).
    AskUnsynced,
    /// A primary asks to drop a member before it has synced the records on which replies depend.
    DropUnsynced,
    /// A backup member that has asked to take over confirms records that it has not synced.
    ConfirmAfterAsking,
    /// A primary that has asked to drop a member replies about records that it has not synced.
    ReplyAfterAsking,
    /// A process does not find in the member mark that an earlier process has asked to take over or
    /// to drop a member.
    ForgetAsked,
    /// A backup member that started with an old map asks to take over, and its member mark forgets
    /// the members that the target has asked to mark as in sync in a later epoch (hole H36).
    ForgetLaterEpoch,
}

impl PlantedBug {
    /// All bugs.
    pub const ALL: [Self; 26] = [
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
    ];
}
