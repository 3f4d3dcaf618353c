//! Messages to metadata targets: sessions, names, files, attributes, and transactions between
//! groups.
//!
//! A client sends a modifying request in a slot of its session. If the client repeats the request
//! with the same sequence number, the target returns the stored reply instead of a second execution
//! of the request.

mod attributes;
mod files;
mod names;
mod sessions;
mod transactions;

pub use attributes::{
    AttributesReply, EntryInfo, GetAttributes, GetEntryInfo, GetXattr, ListXattrs, RemoveXattr,
    SetAttributes, SetAttributesReply, SetPattern, SetTime, SetXattr, TruncatedChunk, XattrMode,
    XattrNames,
};
pub use files::{
    AwaitTruncation, AwaitTruncationReply, Close, CloseMany, ClosedFile, ClosingReport, Create,
    CreateUnnamed, GroupFile, GroupFiles, ListGroupFiles, Open, OpenMode, OpenReply, ReportWritten,
    SyncedChunkFiles, TrimFile, WrittenExtent, add_inline,
};
pub use names::{
    BytesReply, DirectoryEntries, DirectoryEntry, EntryReply, Exchange, Link, Lookup,
    MakeDirectory, MakeSymlink, NamesReply, NewEntryReply, NewInode, ReadDirectory, ReadLink,
    RemoveDirectory, Rename, Unlink, add_directory,
};
pub use sessions::{
    AskOutcome, CloseSession, CompareOpens, CompareOpensReply, CompareSlots, CompareSlotsReply,
    EndReplay, KeepAlive, KeepAliveReply, ListSessions, OpenSession, OpenSessionReply, OpenedFile,
    Outcome, OutcomeReply, Replay, ReplayReply, SessionEntry, SessionList, SlotSequence, SyncAll,
};
pub use transactions::{
    ApplyPrepared, AskDecision, BeginPrepare, BeginPrepareReply, ConfirmPrepared,
    ConfirmPreparedReply, CoordinatedEntry, CoordinatedList, Decide, Decision, DecisionReply,
    ListCoordinated, ListTransactions, Prepare, PrepareReply, ResolveTransaction, Step,
    TransactionEntry, TransactionId, TransactionList,
};
