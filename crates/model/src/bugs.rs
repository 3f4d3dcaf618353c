//! Errors that tests plant into the protocol. The checker must find each of them.

/// An error in the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// The primary replies when it has appended the record itself.
    ReplyBeforeHeld,
    /// The primary reports records as durable that are only held.
    ReplyDurableBeforeSafe,
    /// A member serves again when it has appended the records, before it has synced the safe ones
    /// (hole H31).
    ServeAfterAppend,
    /// A member serves again without the records that the primary had when it began (hole H30).
    ForgetBegin,
    /// A member handles requests of an earlier epoch.
    AcceptOlderEpoch,
    /// A backup member takes over although its host has lost its page cache.
    PromoteAfterPowerLoss,
    /// A primary whose host has lost its page cache leads although another member serves.
    LeadAfterPowerLoss,
    /// A restarted member takes a request to an earlier process for a request to itself.
    TrustLateRequest,
    /// If all serving members have lost their page caches, the first one of them goes on.
    FirstLogWins,
    /// The primary ships records to absent members before it has synced them.
    ShipUnsynced,
    /// The primary replies without leases.
    ReplyWithoutLease,
    /// A new primary replies before its promises to its predecessor have ended.
    ForgetPromise,
    /// The primary stops waiting for a counted member that management may mark as in sync.
    StopCountingAsked,
    /// A primary does not record the members that management may mark as in sync. It starts with an
    /// older cluster map, and replies alone.
    ForgetCounted,
    /// A primary whose host has lost its page cache leads alone, although management may have
    /// marked a member as in sync at its request.
    LeadDespiteCounted,
    /// A primary does not record the epoch in which it begins to lead. It starts with an older
    /// cluster map, and follows the previous primary.
    ForgetTerm,
    /// A backup member does not record the epoch in which it confirms records. It starts with an
    /// older cluster map after a power loss, and is complete when it has the records of the
    /// previous primary.
    ForgetConfirmed,
    /// A deposed primary takes the epoch of its successor for its own one.
    GoOnDeposed,
    /// A member handles requests of a primary although its log has records of a newer epoch than
    /// its cluster map.
    IgnoreNewerLog,
    /// A previous primary that confirms the new epoch ends the wait of its successor, also if
    /// leases of earlier primaries may not have ended.
    ReleaseAll,
    /// A backup member asks to take over before it has synced its log (hole H35).
    AskUnsynced,
    /// A primary asks to drop a member before it has synced the records on which replies depend.
    DropUnsynced,
    /// A backup member that has asked to take over confirms records that it has not synced.
    ConfirmAfterAsking,
    /// A primary that has asked to drop a member replies about records that it has not synced.
    ReplyAfterAsking,
    /// A process does not find in the member mark that an earlier process has sent such a request.
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
