//! Bounds of each request: the longest body and bulk data, and the nodes that may send it. A
//! receiver checks these bounds before it allocates memory for the request.
//!
//! # Hazard: a sender can claim a wrong kind
//! A node states its kind in its `Hello`, and every node has the same secret. So the check of the
//! sender finds mistakes in programs that follow the protocol. This check does not protect against
//! a process that has the secret and claims a wrong kind.

use crate::limits::{MAX_BODY_BYTES, MAX_DATA_BYTES, MAX_MEMBER_MESSAGE_BYTES};
use crate::{
    Request, benchmark as bm, consensus as cs, inline as il, log_shipping as ls, management as mg,
    metadata as md, storage as st, traces as tr,
};
use skep_types::NodeKind;

/// The nodes that may send a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Senders {
    /// All nodes, and administration tools.
    Any,
    /// All services.
    Services,
    /// Metadata services.
    Metadata,
    /// Storage services.
    Storage,
    /// Members of management.
    Management,
}

impl Senders {
    /// Whether a node of this kind may send the request.
    pub fn allow(self, kind: NodeKind) -> bool {
        match self {
            Self::Any => true,
            Self::Services => kind != NodeKind::Client,
            Self::Metadata => kind == NodeKind::Metadata,
            Self::Storage => kind == NodeKind::Storage,
            Self::Management => kind == NodeKind::Management,
        }
    }

    /// Returns the senders as words, for error messages and the generated reference.
    pub fn words(self) -> &'static str {
        match self {
            Self::Any => "any node",
            Self::Services => "services",
            Self::Metadata => "metadata services",
            Self::Storage => "storage services",
            Self::Management => "members of management",
        }
    }
}

/// The bounds of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum length of the body in bytes.
    pub body_bytes: usize,
    /// Maximum length of the bulk data in bytes.
    pub data_bytes: usize,
    /// The nodes that may send the request.
    pub senders: Senders,
}

/// Maximum length of the body of most requests. The largest stripe pattern takes 17 KiB.
const USUAL_BODY_BYTES: usize = 64 << 10;
/// Maximum length, in bytes, of all fields of a request except its extended attribute or inline
/// bytes.
const FIELDS_BYTES: usize = 4 << 10;
/// Maximum length of the encoded stripe pattern of a created file, in bytes.
const PATTERN_BYTES: usize = 20 << 10;

/// Returns the bounds of the request with the id `id`. An unknown id has the usual bounds,
/// so that the receiver can read the request and refuse it.
pub fn bounds(id: u16) -> Bounds {
    let usual = Bounds { body_bytes: USUAL_BODY_BYTES, data_bytes: 0, senders: Senders::Any };
    let from = |senders| Bounds { senders, ..usual };
    match id {
        bm::DiscardData::ID | st::WriteChunk::ID => Bounds { data_bytes: MAX_DATA_BYTES, ..usual },
        // A heartbeat has at most 256 targets. The text about the problem of a target has at most
        // 240 characters.
        mg::Heartbeat::ID => Bounds { body_bytes: 512 << 10, ..usual },
        // A registration has at most 256 targets, each with a path of at most 1 KiB.
        mg::RegisterServer::ID => Bounds { body_bytes: 512 << 10, ..from(Senders::Services) },
        md::SetXattr::ID | il::WriteInline::ID => {
            Bounds { body_bytes: USUAL_BODY_BYTES + FIELDS_BYTES, ..usual }
        }
        // The largest request that a `Replay` contains has an extended attribute or inline bytes.
        md::Replay::ID => {
            let body_bytes = USUAL_BODY_BYTES + 2 * FIELDS_BYTES + PATTERN_BYTES;
            Bounds { body_bytes, ..usual }
        }
        md::Prepare::ID | md::Decide::ID | md::AskDecision::ID => from(Senders::Metadata),
        md::BeginPrepare::ID | md::ConfirmPrepared::ID | md::ApplyPrepared::ID => {
            from(Senders::Metadata)
        }
        ls::AwaitLogSync::ID => from(Senders::Metadata),
        // A log record of maximum length fits into one message.
        ls::ShipLog::ID | ls::CopyStore::ID => {
            Bounds { body_bytes: MAX_BODY_BYTES, ..from(Senders::Metadata) }
        }
        // The sender is a target, but not the primary of its group, so the header has no sender
        // group. Therefore the receiver checks the kind of the sending node against this table.
        mg::AskTakeOver::ID => from(Senders::Services),
        st::WhichExist::ID => from(Senders::Storage),
        cs::AskMember::ID => Bounds {
            body_bytes: MAX_MEMBER_MESSAGE_BYTES + FIELDS_BYTES,
            ..from(Senders::Management)
        },
        // A report has at most 64 records, each with at most 64 requests.
        tr::ReportTraces::ID => Bounds { body_bytes: 384 << 10, ..usual },
        // A request has at most 4,096 keys.
        st::RemoveChunks::ID => Bounds { body_bytes: 128 << 10, ..from(Senders::Metadata) },
        _ => usual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{
        MAX_CLOSES, MAX_INODES_ASKED, MAX_NOTIFICATIONS, MAX_REPORTED_TRACES, MAX_REPORTED_WAITS,
        MAX_TRACE_CALLS, MAX_TRACE_ERROR_BYTES, MAX_TRACE_NAME_BYTES, MAX_TRACE_WAITS,
        MAX_XATTR_NAME_BYTES, MAX_XATTR_VALUE_BYTES,
    };
    use skep_types::codec::Bytes;
    use skep_types::map::{Capacity, Condition, TargetHealth};
    use skep_types::pattern::MAX_INLINE_BYTES;
    use skep_types::registration::{ServerRegistration, TargetClaim};
    use skep_types::{
        ChunkFileKey, Epoch, FileKind, GroupId, InodeId, Lsn, NodeId, TargetId, TargetKind,
    };

    /// Maximum length of a log record (`skep_format::log::MAX_PAYLOAD_BYTES`).
    const MAX_RECORD_BYTES: usize = 15 << 20;

    fn longest_trace() -> tr::TraceRecord {
        let call = tr::TraceCall {
            message: 96,
            target: TargetId::new(7),
            begin_us: 1,
            duration_us: 1,
            is_failed: false,
            stages: Some(tr::StageTimes::default()),
        };
        let wait = tr::TraceWait {
            group: GroupId::new(5),
            target: TargetId::new(7),
            served_by: TargetId::new(8),
            begin_us: 1,
            duration_us: 1,
            error: "e".repeat(MAX_TRACE_ERROR_BYTES),
        };
        let name = "n".repeat(MAX_TRACE_NAME_BYTES);
        tr::TraceRecord {
            service: name.clone(),
            operation: name,
            user: Some(1),
            calls: vec![call; MAX_TRACE_CALLS],
            waits: vec![wait; MAX_TRACE_WAITS],
            ..tr::TraceRecord::default()
        }
    }

    fn check<R: Request>(longest: &R) {
        let len = longest.to_bytes().len();
        let bound = bounds(R::ID).body_bytes;
        assert!(len <= bound, "{} has {len} bytes, and the limit is {bound}", R::NAME);
    }

    #[test]
    fn longest_valid_requests_are_within_their_bounds() {
        let inode = InodeId::new(u64::MAX);
        let key = ChunkFileKey { inode, generation: 1, component: 1, index: 1 };
        check(&st::RemoveChunks { keys: vec![key; 4096] });
        check(&st::WhichExist { inodes: vec![inode; MAX_INODES_ASKED] });
        let closed =
            md::ClosedFile { inode, open: md::OpenMode::Write, ends_inline: Some(u32::MAX) };
        check(&md::CloseMany { files: vec![closed; MAX_CLOSES] });
        let opened = md::OpenedFile { inode, open: md::OpenMode::Write };
        check(&md::CompareOpens { files: vec![opened; MAX_CLOSES] });
        check(&md::Replay {
            start: 1,
            change: 1,
            message: md::SetXattr::ID,
            request: Bytes(vec![0; bounds(md::SetXattr::ID).body_bytes]),
            inode,
            created: true,
            pattern: None,
            truncate_generation: 1,
        });
        let numbers = vec![0; MAX_NOTIFICATIONS];
        check(&crate::sharing::AcknowledgeNotifications { numbers });
        check(&md::SetXattr {
            inode,
            name: Bytes(vec![0; MAX_XATTR_NAME_BYTES]),
            value: Bytes(vec![0; MAX_XATTR_VALUE_BYTES]),
            mode: md::XattrMode::Any,
            clear_set_group_id: true,
        });
        let text = "x".repeat(1024);
        let claim = TargetClaim {
            target: TargetId::new(1),
            uuid: 1,
            kind: TargetKind::Storage,
            path: text.clone(),
        };
        let server = ServerRegistration {
            node: NodeId::new(1),
            uuid: 1,
            kind: NodeKind::Storage,
            name: text.clone(),
            addresses: vec![text.clone(); 16],
            domain: Some(text.clone()),
            version: text.clone(),
            targets: vec![claim; 256],
        };
        let (capacities, groups) = (vec![Capacity::default(); 256], vec![GroupId::new(1); 256]);
        check(&mg::RegisterServer { server, capacities, groups, host: "h".repeat(255) });
        let problem = "\u{10FFFF}".repeat(TargetHealth::MAX_PROBLEM_CHARS);
        let health = TargetHealth { condition: Condition::Down, problem };
        let target = TargetId::new(1);
        let report = mg::TargetReport { target, capacity: Capacity::default(), health };
        let targets = vec![report; 256];
        let (node, known) = (NodeId::new(1), Default::default());
        let wait = mg::RequestWait {
            group: GroupId::new(1),
            since_ms: 1,
            requests: 1,
            error: "\u{10FFFF}".repeat(TargetHealth::MAX_PROBLEM_CHARS),
        };
        let waits = vec![wait; MAX_REPORTED_WAITS];
        check(&mg::Heartbeat { node, known, newest_node: node, targets, waits });
        let name = Bytes(vec![0; 255]);
        let step = md::Step::ReplaceEntry {
            directory: inode,
            name,
            inode,
            new_inode: inode,
            new_kind: FileKind::Regular,
        };
        let transaction = md::TransactionId { coordinator: Default::default(), number: 1 };
        check(&md::BeginPrepare { transaction, steps: vec![step.clone(); 8] });
        check(&md::Prepare { transaction, steps: vec![step; 8] });
        let record =
            ls::ShippedRecord { epoch: Epoch::new(1), payload: Bytes(vec![0; MAX_RECORD_BYTES]) };
        check(&ls::ShipLog {
            epoch: Epoch::new(1),
            first: Lsn::new(1),
            previous_epoch: Epoch::new(1),
            last: Lsn::new(1),
            process: 1,
            records: vec![record],
            held: Lsn::new(1),
            safe: Lsn::new(1),
            syncs_at_once: true,
            wait_ms: 1,
        });
        let message = Bytes(vec![0; MAX_MEMBER_MESSAGE_BYTES]);
        check(&cs::AskMember { to: NodeId::new(1), message });
        check(&tr::ReportTraces { records: vec![longest_trace(); MAX_REPORTED_TRACES] });
    }

    #[test]
    fn longest_requests_for_inline_bytes_are_within_their_bounds() {
        let inode = InodeId::new(u64::MAX);
        check(&il::WriteInline {
            inode,
            generation: 1,
            offset: 0,
            bytes: Bytes(vec![0; MAX_INLINE_BYTES as usize]),
            checksum: 0,
            extends: true,
            truncate_generation: 0,
            appends: false,
        });
        let mark = il::InlineMark { start: 1, record: Lsn::new(1) };
        let written = vec![mark; crate::limits::MAX_STARTS];
        check(&il::SyncInline { inode, written: written.clone() });
        check(&il::RemoveInline {
            inode,
            generation: 1,
            truncate_generation: 1,
            checksum: 1,
            written,
        });
    }

    #[test]
    fn clients_may_not_send_the_requests_of_services() {
        let refused = [md::Prepare::ID, md::Decide::ID, md::AskDecision::ID, st::WhichExist::ID];
        let staged = [md::BeginPrepare::ID, md::ConfirmPrepared::ID, md::ApplyPrepared::ID];
        let of_groups = [ls::ShipLog::ID, ls::AwaitLogSync::ID];
        let others = of_groups.into_iter().chain([mg::RegisterServer::ID, st::RemoveChunks::ID]);
        let others = others.chain(staged);
        for id in refused.into_iter().chain(others) {
            assert!(!bounds(id).senders.allow(NodeKind::Client), "{id}");
        }
        assert!(bounds(md::Prepare::ID).senders.allow(NodeKind::Metadata));
        assert!(!bounds(md::Prepare::ID).senders.allow(NodeKind::Storage));
        assert!(bounds(mg::Evict::ID).senders.allow(NodeKind::Client));
        let of_members = bounds(cs::AskMember::ID).senders;
        let others = [NodeKind::Client, NodeKind::Metadata, NodeKind::Storage];
        assert!(of_members.allow(NodeKind::Management));
        assert!(others.into_iter().all(|kind| !of_members.allow(kind)));
    }
}
