//! The table of all messages. Dispatch, metric names and the generated reference use the table.
//! Message numbers are never reused.

use crate::{
    Request, benchmark as bm, consensus as cs, file_locks as fl, inline as il, log_shipping as ls,
    management as mg, metadata as md, node, session, sharing as sh, storage as st, traces as tr,
};
use skep_types::ErrorCode;
use skep_types::codec::{Described, FieldDoc};

/// Description of a request and its reply.
#[derive(Debug, Clone, Copy)]
pub struct Message {
    /// Id of the message type in the frame header.
    pub id: u16,
    /// Name of the request.
    pub name: &'static str,
    /// The service that handles the request.
    pub service: &'static str,
    /// Whether clients must send the request in a slot of their session. The slot ensures that the
    /// target executes the request exactly once.
    pub modifies: bool,
    /// Doc comment of the request.
    pub doc: &'static str,
    /// Fields of the request.
    pub fields: &'static [FieldDoc],
    /// Name of the reply.
    pub reply: &'static str,
    /// Doc comment of the reply.
    pub reply_doc: &'static str,
    /// Fields of the reply.
    pub reply_fields: &'static [FieldDoc],
}

macro_rules! catalog {
    ($($id:literal $service:literal $mode:ident $request:ty => $reply:ty;)*) => {
        $(impl Request for $request {
            const ID: u16 = $id;
            const VERSION: u16 = 1;
            const MODIFIES: bool = catalog!(@ $mode);
            type Reply = $reply;
        })*

        /// All messages in ascending order of their numbers.
        pub const CATALOG: &[Message] = &[$(Message {
            id: $id,
            name: <$request>::NAME,
            service: $service,
            modifies: catalog!(@ $mode),
            doc: <$request>::DOC,
            fields: <$request>::FIELDS,
            reply: <$reply>::NAME,
            reply_doc: <$reply>::DOC,
            reply_fields: <$reply>::FIELDS,
        },)*];

        /// Decodes the body of a request or a reply and encodes it again, for test vectors and
        /// fuzzing. `None` means that no message has the number `id`.
        pub fn recode(id: u16, is_reply: bool, body: &[u8]) -> Option<skep_types::Result<Vec<u8>>> {
            use skep_types::codec::Codec;
            match (id, is_reply) {
                $(($id, false) => Some(<$request>::from_bytes(body).map(|value| value.to_bytes())),
                  ($id, true) => Some(<$reply>::from_bytes(body).map(|value| value.to_bytes())),)*
                _ => None,
            }
        }
    };
    (@ modifies) => { true };
    (@ reads) => { false };
}

catalog! {
    // Handshake of a connection.
    1 "any" reads session::Hello => session::Challenge;
    2 "any" reads session::Proof => session::Welcome;
    // Requests to any running service.
    3 "any" reads node::SetLogLevel => node::LogLevel;
    // Benchmarks of the network between services.
    4 "any" reads bm::DiscardData => mg::EmptyReply;
    5 "any" reads bm::GiveData => bm::GiveDataReply;
    6 "any" reads bm::MeasureLink => bm::MeasureLinkReply;
    // Requests to any running service.
    7 "any" reads node::GetStatistics => node::Statistics;
    // Metadata and storage services: requests about their targets. The contents of a request make
    // it idempotent.
    8 "metadata and storage" reads node::AddTarget => node::AddTargetReply;
    9 "metadata and storage" reads node::StopTarget => mg::EmptyReply;
    // Requests to any running service.
    10 "any" reads tr::ListTraces => tr::TraceList;
    // Management. The sender and the request id in the header make a request idempotent.
    16 "management" reads mg::RegisterServer => mg::RegisterReply;
    17 "management" reads mg::RegisterClient => mg::RegisterReply;
    18 "management" reads mg::Heartbeat => mg::HeartbeatReply;
    19 "management" reads mg::GetMap => mg::MapUpdate;
    20 "management" reads mg::Leave => mg::EmptyReply;
    21 "management" reads mg::Format => mg::MapUpdate;
    22 "management" reads mg::SetPolicy => mg::MapUpdate;
    23 "management" reads mg::ChangeSetting => mg::ChangeSettingReply;
    24 "management" reads mg::ListClients => mg::ClientList;
    25 "management" reads mg::SetClientLogLevel => node::LogLevel;
    26 "management" reads mg::ConfirmLogLevel => mg::EmptyReply;
    27 "management" reads mg::CreateGroup => mg::CreateGroupReply;
    28 "management" reads tr::ReportTraces => mg::EmptyReply;
    29 "management" reads mg::AskTakeOver => mg::EmptyReply;
    30 "management" reads mg::Evict => mg::EmptyReply;
    31 "management" reads mg::ChangeGroup => mg::ChangeGroupReply;
    // Metadata: requests about sessions.
    32 "metadata" reads md::OpenSession => md::OpenSessionReply;
    33 "metadata" reads md::KeepAlive => md::KeepAliveReply;
    34 "metadata" reads md::CloseSession => mg::EmptyReply;
    35 "metadata" reads md::AskOutcome => md::OutcomeReply;
    36 "metadata" reads md::CompareOpens => md::CompareOpensReply;
    37 "metadata" reads md::CompareSlots => md::CompareSlotsReply;
    38 "metadata" modifies md::Replay => md::ReplayReply;
    39 "metadata" reads md::EndReplay => mg::EmptyReply;
    // Metadata: requests about the namespace.
    40 "metadata" reads md::Lookup => md::EntryReply;
    41 "metadata" reads md::GetAttributes => md::AttributesReply;
    42 "metadata" modifies md::SetAttributes => md::SetAttributesReply;
    43 "metadata" modifies md::Create => md::OpenReply;
    44 "metadata" modifies md::Open => md::OpenReply;
    45 "metadata" modifies md::Close => md::AttributesReply;
    46 "metadata" modifies md::ReportWritten => md::AttributesReply;
    47 "metadata" modifies md::MakeDirectory => md::NewEntryReply;
    48 "metadata" modifies md::MakeSymlink => md::NewEntryReply;
    49 "metadata" reads md::ReadLink => md::BytesReply;
    50 "metadata" modifies md::Link => md::NewEntryReply;
    51 "metadata" modifies md::Unlink => md::NamesReply;
    52 "metadata" modifies md::RemoveDirectory => md::NamesReply;
    53 "metadata" modifies md::Rename => md::NamesReply;
    54 "metadata" reads md::ReadDirectory => md::DirectoryEntries;
    55 "metadata" reads md::GetXattr => md::BytesReply;
    56 "metadata" modifies md::SetXattr => mg::EmptyReply;
    57 "metadata" reads md::ListXattrs => md::XattrNames;
    58 "metadata" modifies md::RemoveXattr => mg::EmptyReply;
    59 "metadata" modifies md::SetPattern => mg::EmptyReply;
    60 "metadata" reads md::GetEntryInfo => md::EntryInfo;
    61 "metadata" reads md::SyncAll => mg::EmptyReply;
    62 "metadata" modifies md::CloseMany => mg::EmptyReply;
    63 "metadata" reads md::AwaitTruncation => md::AwaitTruncationReply;
    // Metadata: requests about locks of applications.
    64 "metadata" modifies fl::SetLock => fl::SetLockReply;
    65 "metadata" reads fl::TestLock => fl::TestLockReply;
    66 "metadata" reads fl::WaitLock => fl::WaitLockReply;
    67 "metadata" reads fl::EndWait => mg::EmptyReply;
    68 "metadata" reads fl::ListLocks => fl::LockList;
    69 "metadata" reads fl::ListWaits => fl::WaitList;
    70 "metadata" modifies md::Exchange => md::NamesReply;
    71 "metadata" modifies md::CreateUnnamed => md::OpenReply;
    // Metadata: requests about inline bytes, the first bytes of files.
    72 "metadata" modifies il::WriteInline => il::WriteInlineReply;
    73 "metadata" reads il::ReadInline => il::ReadInlineReply;
    74 "metadata" reads il::SyncInline => il::SyncInlineReply;
    // Metadata: removal of bytes beyond the end of a file.
    75 "metadata" modifies md::TrimFile => md::AttributesReply;
    // Metadata: requests of administrators.
    76 "metadata" reads md::ListSessions => md::SessionList;
    77 "metadata" reads md::ListTransactions => md::TransactionList;
    78 "metadata" reads md::ResolveTransaction => mg::EmptyReply;
    // Metadata: the end of an inline component.
    79 "metadata" modifies il::RemoveInline => il::RemoveInlineReply;
    // Metadata: transactions between groups. The transaction id makes these requests idempotent.
    80 "metadata" reads md::Prepare => md::PrepareReply;
    81 "metadata" reads md::Decide => mg::EmptyReply;
    82 "metadata" reads md::AskDecision => md::DecisionReply;
    // Metadata: requests from storage targets.
    83 "metadata" reads st::WhichExist => st::WhichExistReply;
    // Metadata: notifications to clients about shared files.
    84 "metadata" reads sh::WaitNotifications => sh::Notifications;
    85 "metadata" reads sh::AcknowledgeNotifications => mg::EmptyReply;
    // Metadata: requests of administrators.
    86 "metadata" reads md::ListGroupFiles => md::GroupFiles;
    // Metadata: from the primary of a group to the other members. LSNs make these requests
    // idempotent.
    87 "metadata" reads ls::ShipLog => ls::LogHeld;
    88 "metadata" reads ls::AwaitLogSync => ls::LogHeld;
    // Metadata: requests of administrators.
    89 "metadata" reads ls::AskGroup => ls::GroupProgress;
    // Metadata: from the primary of a group to the other members. Keys and LSNs make the request
    // idempotent.
    90 "metadata" reads ls::CopyStore => ls::StoreCopied;
    // Metadata: staged transactions between groups. The transaction id makes these requests
    // idempotent.
    91 "metadata" reads md::BeginPrepare => md::BeginPrepareReply;
    92 "metadata" reads md::ConfirmPrepared => md::ConfirmPreparedReply;
    93 "metadata" reads md::ApplyPrepared => mg::EmptyReply;
    // Metadata: requests of administrators.
    94 "metadata" reads md::ListCoordinated => md::CoordinatedList;
    // Storage: requests about chunk files.
    96 "storage" reads st::WriteChunk => st::WriteChunkReply;
    97 "storage" reads st::ReadChunk => st::ReadChunkReply;
    98 "storage" reads st::SyncChunk => st::SyncChunkReply;
    99 "storage" reads st::TruncateChunk => st::TruncateChunkReply;
    100 "storage" reads st::StatChunk => st::ChunkStat;
    101 "storage" reads st::RemoveChunks => mg::EmptyReply;
    102 "storage" reads st::ListChunks => st::ChunkList;
    103 "storage" reads st::ReserveChunk => st::ChunkRangeReply;
    104 "storage" reads st::ClearChunk => st::ChunkRangeReply;
    105 "storage" reads st::SeekChunk => st::SeekChunkReply;
    106 "storage" reads st::CopyChunk => st::CopyChunkReply;
    // Storage: benchmarks. The id of the benchmark makes these requests idempotent.
    107 "storage" reads bm::StartBenchmark => mg::EmptyReply;
    108 "storage" reads bm::AskBenchmark => bm::BenchmarkProgress;
    109 "storage" reads bm::StopBenchmark => mg::EmptyReply;
    // Management: requests to close, remove and rename targets and servers.
    112 "management" reads mg::SetTargetState => mg::MapUpdate;
    113 "management" reads mg::RemoveTarget => mg::EmptyReply;
    114 "management" reads mg::RemoveServer => mg::EmptyReply;
    115 "management" reads mg::RenameServer => mg::EmptyReply;
    // Management: from one member to another. Each message may be lost, and may arrive more than
    // once.
    116 "management" reads cs::AskMember => cs::MemberReply;
    // Management: the durations of outages of servers and targets.
    117 "management" reads mg::ListOutages => mg::OutageList;
    // Management: evicted clients.
    118 "management" reads mg::ListEvictions => mg::EvictionList;
    // Management: requests of nodes that wait for a group.
    119 "management" reads mg::ListRequestWaits => mg::RequestWaitList;
    // Management: the hosts of servers.
    120 "management" reads mg::ListHosts => mg::HostList;
    // Management: requests of administrators about the members of management. Clients can retry
    // these requests.
    124 "management" reads cs::AddMember => mg::EmptyReply;
    125 "management" reads cs::RemoveMember => mg::EmptyReply;
    126 "management" reads cs::ListMembers => cs::MemberList;
}

/// Returns the message with the number `id`.
pub fn message(id: u16) -> Option<&'static Message> {
    let index = CATALOG.binary_search_by_key(&id, |line| line.id).ok()?;
    CATALOG.get(index)
}

/// Whether an error only means that the name or the extended attribute in the request does not
/// exist. Programs often ask for names that do not exist, so metrics do not count such a reply as
/// an error.
pub fn is_ordinary_absence(message: u16, code: ErrorCode) -> bool {
    match code {
        ErrorCode::NotFound => message == md::Lookup::ID,
        ErrorCode::NoAttribute => message == md::GetXattr::ID,
        _ => false,
    }
}

/// Whether a change removes or replaces a name. If the replay of a lost change has failed, the
/// target replays no removal of a name, because the removal could delete the last name of a file.
pub fn removes_name(message: u16) -> bool {
    [md::Unlink::ID, md::RemoveDirectory::ID, md::Rename::ID, md::Exchange::ID].contains(&message)
}

/// Whether the receiver replies to a request only when an event occurs, such as the release of a
/// lock. A long duration of such a request does not count as slow.
pub fn waits_for_event(message: u16) -> bool {
    [fl::WaitLock::ID, sh::WaitNotifications::ID, ls::AwaitLogSync::ID].contains(&message)
}

/// Returns the name of a message in metrics, such as `write_chunk`. `None` means that no message
/// has the number `id`.
pub fn metric_name(id: u16) -> Option<String> {
    let mut name = String::new();
    for letter in message(id)?.name.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_numbers_rise_and_every_field_is_documented() {
        for window in CATALOG.windows(2) {
            assert!(window[0].id < window[1].id);
        }
        for line in CATALOG {
            assert!(!line.doc.trim().is_empty(), "{}", line.name);
            for field in line.fields.iter().chain(line.reply_fields) {
                assert!(!field.doc.trim().is_empty(), "{}.{}", line.name, field.name);
            }
        }
    }

    #[test]
    fn message_names_in_metrics_are_unique() {
        assert_eq!(metric_name(96).as_deref(), Some("write_chunk"));
        assert_eq!(metric_name(9_999), None);
        let names: std::collections::BTreeSet<_> =
            CATALOG.iter().map(|line| metric_name(line.id)).collect();
        assert_eq!(names.len(), CATALOG.len());
    }

    proptest::proptest! {
        #[test]
        fn decoder_never_panics_and_accepts_only_canonical_bodies(
            which in 0..CATALOG.len(), is_reply: bool, body: Vec<u8>,
        ) {
            if let Some(Ok(again)) = recode(CATALOG[which].id, is_reply, &body) {
                proptest::prop_assert_eq!(again, body);
            }
        }
    }
}
