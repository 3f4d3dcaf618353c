//! A metadata target of the fake cluster.

mod inline;
mod locks;
mod names;
mod starts;

use super::{Answer, LEASE_MS, STORAGE_GROUPS};
use skep_types::codec::{Bytes, Codec};
use skep_types::{
    Attributes, Chooser, ChunkFileSet, Component, Error, ErrorCode, FileKind, GroupId, InodeId,
    PatternOrigin, Redundancy, Result, SessionId, ShardId, StripePattern, Timestamp,
};
use skep_wire::Request;
use skep_wire::catalog::message;
use skep_wire::file_locks::HeldLock;
use skep_wire::frame::Header;
use skep_wire::inline::{ReadInline, RemoveInline, SyncInline, WriteInline};
use skep_wire::management::EmptyReply;
use skep_wire::metadata::{
    AskOutcome, AttributesReply, AwaitTruncation, AwaitTruncationReply, Close, CloseMany,
    CloseSession, CompareOpens, CompareSlots, Create, EndReplay, EntryInfo, EntryReply,
    GetAttributes, GetEntryInfo, KeepAlive, KeepAliveReply, Link, Lookup, MakeDirectory,
    NewEntryReply, Open, OpenMode, OpenReply, OpenSession, OpenSessionReply, Outcome, OutcomeReply,
    Replay, ReportWritten, SetAttributes, SetAttributesReply, SetPattern, SyncAll, TrimFile,
    TruncatedChunk, WrittenExtent,
};
use std::collections::HashMap;

#[derive(Debug, Clone)]
pub(crate) struct FakeInode {
    pub(crate) attributes: Attributes,
    pub(crate) opens: HashMap<SessionId, usize>,
    /// The inline bytes, up to the last written byte.
    pub(crate) inline: Vec<u8>,
    /// Whether the inline bytes were moved to storage.
    pub(crate) has_moved_inline: bool,
    /// The chunk files that clients have reported as synced.
    pub(crate) synced: ChunkFileSet,
}

#[derive(Debug, Clone, Default)]
struct FakeSession {
    granted: u32,
    /// The sequence of the last request in each slot, and the reply to that request.
    slots: HashMap<u32, (u64, Result<Vec<u8>>)>,
}

/// The open and the ended sessions.
#[derive(Debug, Clone, Default)]
struct FakeSessions {
    open: HashMap<SessionId, FakeSession>,
    ended: HashMap<SessionId, FakeSession>,
}

/// Settings that a test makes, which change the behaviour of the fake target.
#[derive(Debug, Clone, Default)]
pub(crate) struct Behaviour {
    /// Whether the target has deleted the records of ended sessions.
    pub(crate) has_forgotten_ends: bool,
    /// Whether a file becomes shared when a second session opens it.
    pub(crate) shares_files: bool,
    /// The inode of the next new directory, if this inode belongs to another shard than its parent.
    pub(crate) directory_elsewhere: Option<InodeId>,
    /// Number of bytes that metadata stores from the beginning of each file; a multiple of 4 KiB.
    pub(crate) inline_bytes: u64,
    /// The chunk files in the replies to truncations.
    pub(crate) truncated: Vec<TruncatedChunk>,
    /// Number of lost changes that the target executes again. The target refuses all further
    /// changes of a replay.
    pub(crate) replays: usize,
}

#[derive(Clone)]
pub(crate) struct FakeMetadata {
    shard: ShardId,
    next: u64,
    pub(crate) inodes: HashMap<InodeId, FakeInode>,
    pub(crate) entries: HashMap<(InodeId, Bytes), InodeId>,
    sessions: FakeSessions,
    /// Message ids of the executed requests, each with its durable flag.
    pub(crate) executed: Vec<(u16, bool)>,
    /// Message ids of the read requests that had the durable flag.
    pub(crate) asked_durably: Vec<u16>,
    /// The modes of all executed `Open` requests.
    pub(crate) opened: Vec<OpenMode>,
    /// Start number of the target.
    pub(crate) start: u64,
    /// The starts after a power loss: their numbers and the LSNs of their first log records.
    starts: Vec<(u64, u64)>,
    /// LSN of the last log record. Only changes of inline bytes have a record.
    last_record: u64,
    /// The generation of the stripe pattern of all files.
    pub(crate) generation: u32,
    pub(crate) behaviour: Behaviour,
    /// The highest end of a chunk file in the reports of clients.
    pub(crate) reach: u64,
    /// The locked files, each with its lock.
    locks: Vec<(InodeId, HeldLock)>,
}

fn code<T>(code: ErrorCode) -> Result<T> {
    Err(Error::from(code))
}

pub(crate) fn pattern() -> StripePattern {
    let component = Component {
        start: 0,
        chunk_bytes: 64 << 10,
        wanted: 4,
        redundancy: Redundancy::Stripe,
        chooser: Chooser::Balanced,
        groups: STORAGE_GROUPS.map(GroupId::new).to_vec(),
    };
    StripePattern { generation: 1, origin: PatternOrigin::Cluster, components: vec![component] }
}

impl FakeMetadata {
    pub(crate) fn new(group: u32) -> Self {
        let shard = ShardId::new(if group == 1 { 0 } else { 0x9000 });
        let mut new = Self {
            shard,
            next: 1,
            inodes: HashMap::new(),
            entries: HashMap::new(),
            sessions: FakeSessions::default(),
            executed: Vec::new(),
            asked_durably: Vec::new(),
            opened: Vec::new(),
            start: 1,
            starts: Vec::new(),
            last_record: 0,
            generation: 1,
            behaviour: Behaviour::default(),
            reach: 0,
            locks: Vec::new(),
        };
        new.add(FileKind::Directory);
        new
    }

    fn add(&mut self, kind: FileKind) -> Attributes {
        let inode = InodeId::from_parts(self.shard, self.next);
        self.next += 1;
        let new = Attributes::new(inode, kind, 0o644, Timestamp::default());
        let attributes = Attributes { change_counter: 1, ..new };
        let new = FakeInode {
            attributes: attributes.clone(),
            opens: HashMap::new(),
            inline: Vec::new(),
            has_moved_inline: false,
            synced: ChunkFileSet::default(),
        };
        self.inodes.insert(inode, new);
        attributes
    }

    /// Creates a file in the root directory, as another client would do.
    pub(crate) fn make_file(&mut self, name: &[u8]) -> InodeId {
        let inode = self.add(FileKind::Regular).inode;
        let root = InodeId::ROOT;
        self.entries.insert((root, name.into()), inode);
        inode
    }

    pub(crate) fn forget_sessions(&mut self) {
        self.sessions.ended.extend(self.sessions.open.drain());
        self.inodes.values_mut().for_each(|inode| inode.opens.clear());
    }

    pub(crate) fn has_session(&self, session: SessionId) -> bool {
        self.sessions.open.contains_key(&session)
    }

    pub(crate) fn session_count(&self) -> usize {
        self.sessions.open.len()
    }

    /// Returns the number of opens of all files.
    pub(crate) fn open_count(&self) -> usize {
        self.inodes.values().flat_map(|inode| inode.opens.values()).sum()
    }

    pub(crate) fn handle(&mut self, header: &Header, body: &[u8]) -> Result<Answer> {
        if header.message == OpenSession::ID {
            let wanted = OpenSession::from_bytes(body)?.slots;
            if self.sessions.ended.contains_key(&header.session) {
                return code(ErrorCode::StaleSession);
            }
            let granted = self.sessions.open.entry(header.session).or_default();
            granted.granted = wanted;
            return Ok(Answer::of(&OpenSessionReply {
                slots: wanted,
                lease_ms: LEASE_MS,
                start: self.start,
            }));
        }
        if header.message == CompareSlots::ID {
            return self.compare_slots(header.session);
        }
        if header.message == AskOutcome::ID {
            let outcome = self.outcome(&AskOutcome::from_bytes(body)?);
            return Ok(Answer::of(&OutcomeReply { outcome }));
        }
        let Some(session) = self.sessions.open.get(&header.session) else {
            return code(ErrorCode::StaleSession);
        };
        let modifies = message(header.message).unwrap().modifies;
        self.check_start(header, modifies)?;
        if !modifies {
            assert_eq!(header.sequence, 0);
            self.asked_durably.extend(header.is_durable().then_some(header.message));
            return self.execute(header, body).map(Answer::Body);
        }
        if header.message == Replay::ID {
            return self.replay(header, &Replay::from_bytes(body)?);
        }
        assert!(header.slot < session.granted, "slot {} was never granted", header.slot);
        let last = session.slots.get(&header.slot);
        let sequence = last.map_or(0, |(sequence, _)| *sequence);
        if header.sequence == sequence {
            return last.unwrap().1.clone().map(Answer::Body);
        }
        // After a power loss, the sequence in a request may skip numbers, because the power loss
        // may have reverted the last requests of the slot.
        let is_next = header.sequence == sequence + 1;
        assert!(is_next || self.start > 1, "{} after {sequence}", header.sequence);
        let answer = self.execute(header, body);
        self.executed.push((header.message, header.is_durable()));
        let session = self.sessions.open.get_mut(&header.session).unwrap();
        session.slots.insert(header.slot, (header.sequence, answer.clone()));
        answer.map(Answer::Body)
    }

    fn outcome(&self, asked: &AskOutcome) -> Outcome {
        let ended =
            self.sessions.ended.get(&asked.session).filter(|_| !self.behaviour.has_forgotten_ends);
        let Some(ended) = ended else { return Outcome::Unknown };
        match ended.slots.get(&asked.slot) {
            Some((sequence, Ok(reply))) if *sequence == asked.sequence => {
                Outcome::Executed { reply: reply[..].into() }
            }
            _ => Outcome::NotExecuted,
        }
    }

    fn inode(&mut self, inode: InodeId) -> Result<&mut FakeInode> {
        self.inodes.get_mut(&inode).ok_or_else(|| ErrorCode::Stale.into())
    }

    fn entry(&self, directory: InodeId, name: &Bytes) -> Result<InodeId> {
        let found = self.entries.get(&(directory, name.clone())).copied();
        found.ok_or_else(|| ErrorCode::NotFound.into())
    }

    fn reply_to(&self, inode: InodeId) -> EntryReply {
        match self.inodes.get(&inode) {
            Some(FakeInode { attributes, .. }) => {
                let kind = attributes.kind;
                EntryReply { inode, kind, attributes: Some(attributes.clone()) }
            }
            None => EntryReply { inode, kind: FileKind::Regular, attributes: None },
        }
    }

    fn execute(&mut self, header: &Header, body: &[u8]) -> Result<Vec<u8>> {
        let session = header.session;
        Ok(match header.message {
            KeepAlive::ID => KeepAliveReply { lease_ms: LEASE_MS, start: self.start }.to_bytes(),
            CompareOpens::ID => {
                self.compare_opens(session, &CompareOpens::from_bytes(body)?).to_bytes()
            }
            SyncAll::ID | EndReplay::ID => EmptyReply {}.to_bytes(),
            CloseSession::ID => {
                self.sessions.ended.extend(self.sessions.open.remove_entry(&session));
                EmptyReply {}.to_bytes()
            }
            Lookup::ID => {
                let Lookup { directory, name } = Lookup::from_bytes(body)?;
                self.reply_to(self.entry(directory, &name)?).to_bytes()
            }
            GetAttributes::ID => {
                let inode = GetAttributes::from_bytes(body)?.inode;
                let attributes = self.inode(inode)?.attributes.clone();
                AttributesReply { attributes }.to_bytes()
            }
            AwaitTruncation::ID => {
                let inode = AwaitTruncation::from_bytes(body)?.inode;
                let FakeInode { attributes, synced, .. } = self.inode(inode)?.clone();
                AwaitTruncationReply { attributes, synced }.to_bytes()
            }
            TrimFile::ID => {
                let attributes = &mut self.inode(TrimFile::from_bytes(body)?.inode)?.attributes;
                attributes.truncate_generation += 1;
                attributes.change_counter += 1;
                AttributesReply { attributes: attributes.clone() }.to_bytes()
            }
            SetAttributes::ID => self.set_attributes(&SetAttributes::from_bytes(body)?)?.to_bytes(),
            Create::ID => self.create(session, Create::from_bytes(body)?)?.to_bytes(),
            MakeDirectory::ID => {
                let MakeDirectory { directory, name, .. } = MakeDirectory::from_bytes(body)?;
                if self.entry(directory, &name).is_ok() {
                    return code(ErrorCode::Exists);
                }
                let elsewhere = self.behaviour.directory_elsewhere.take();
                let inode = elsewhere.unwrap_or_else(|| self.add(FileKind::Directory).inode);
                self.entries.insert((directory, name), inode);
                NewEntryReply { entry: self.reply_to(inode), directory: None }.to_bytes()
            }
            Open::ID => self.open(session, &Open::from_bytes(body)?)?.to_bytes(),
            Close::ID => self.close(session, &Close::from_bytes(body)?)?.to_bytes(),
            CloseMany::ID => {
                for file in CloseMany::from_bytes(body)?.files {
                    if file.ends_inline.is_some() {
                        self.inode(file.inode)?.end_inline();
                    }
                    let request = Close { inode: file.inode, open: file.open, written: None };
                    assert!(self.close(session, &request).is_ok(), "{file:?} is not open");
                }
                EmptyReply {}.to_bytes()
            }
            WriteInline::ID => self.write_inline(&WriteInline::from_bytes(body)?)?.to_bytes(),
            ReadInline::ID => self.read_inline(&ReadInline::from_bytes(body)?)?.to_bytes(),
            SyncInline::ID => self.sync_inline(&SyncInline::from_bytes(body)?)?.to_bytes(),
            RemoveInline::ID => {
                self.remove_inline(session, &RemoveInline::from_bytes(body)?)?.to_bytes()
            }
            GetEntryInfo::ID => {
                let inode = GetEntryInfo::from_bytes(body)?.inode;
                let pattern = Some(self.pattern(inode));
                let FakeInode { attributes, opens, .. } = self.inode(inode)?.clone();
                let open_sessions = opens.len() as u32;
                EntryInfo { attributes, parent: InodeId::ROOT, pattern, open_sessions }.to_bytes()
            }
            ReportWritten::ID => self.report_written(ReportWritten::from_bytes(body)?)?.to_bytes(),
            Link::ID => {
                let Link { inode, directory, name } = Link::from_bytes(body)?;
                if self.entry(directory, &name).is_ok() {
                    return code(ErrorCode::Exists);
                }
                self.entries.insert((directory, name), inode);
                NewEntryReply { entry: self.reply_to(inode), directory: None }.to_bytes()
            }
            SetPattern::ID => {
                let inode = self.inode(SetPattern::from_bytes(body)?.inode)?;
                if !inode.opens.is_empty() {
                    return code(ErrorCode::InUse);
                }
                EmptyReply {}.to_bytes()
            }
            _ => self.execute_about_names(header, body)?,
        })
    }

    fn report_written(&mut self, request: ReportWritten) -> Result<AttributesReply> {
        let generation = self.generation;
        let inode = self.inode(request.inode)?;
        if let Some(synced) = request.synced {
            if synced.pattern_generation != generation {
                return code(ErrorCode::Stale);
            }
            inode.synced.merge(&synced.chunk_files);
        }
        let unchanged = Ok(AttributesReply { attributes: inode.attributes.clone() });
        request.written.map_or(unchanged, |written| self.report(request.inode, written))
    }

    fn create(&mut self, session: SessionId, request: Create) -> Result<OpenReply> {
        let found = self.entry(request.directory, &request.name).ok();
        if found.is_some() && request.exclusive {
            return code(ErrorCode::Exists);
        }
        let created = found.is_none();
        let inode = match found {
            Some(inode) => inode,
            None => {
                let inode = self.add(request.kind).inode;
                self.entries.insert((request.directory, request.name), inode);
                inode
            }
        };
        if !self.inodes.contains_key(&inode) {
            return code(ErrorCode::Exists);
        }
        let pattern = self.pattern(inode);
        let inode = self.inode(inode)?;
        if request.open != OpenMode::No {
            *inode.opens.entry(session).or_default() += 1;
        }
        let attributes = inode.attributes.clone();
        let (pattern, truncated, synced) = (Some(pattern), Vec::new(), inode.synced.clone());
        Ok(OpenReply {
            created,
            attributes,
            pattern,
            is_shared: false,
            truncated,
            synced,
            inline: None,
            directory: None,
        })
    }

    fn open(&mut self, session: SessionId, request: &Open) -> Result<OpenReply> {
        self.opened.push(request.open);
        let (shares_files, pattern) = (self.behaviour.shares_files, self.pattern(request.inode));
        if request.must_have_name && !self.entries.values().any(|it| *it == request.inode) {
            return code(ErrorCode::Stale);
        }
        let inode = self.inode(request.inode)?;
        let is_shared = shares_files && inode.opens.keys().any(|other| *other != session);
        *inode.opens.entry(session).or_default() += 1;
        if request.truncate {
            inode.attributes.size = 0;
            inode.synced = ChunkFileSet::default();
            inode.attributes.truncate_generation += 1;
            inode.attributes.change_counter += 1;
        }
        let attributes = inode.attributes.clone();
        let synced = inode.synced.clone();
        let inline = inode.contents(request.inline_limit).filter(|_| !is_shared);
        let truncated =
            if request.truncate { self.behaviour.truncated.clone() } else { Vec::new() };
        let pattern = Some(pattern);
        Ok(OpenReply {
            created: false,
            attributes,
            pattern,
            is_shared,
            truncated,
            synced,
            inline,
            directory: None,
        })
    }

    fn close(&mut self, session: SessionId, request: &Close) -> Result<AttributesReply> {
        let reported = request.written.and_then(|it| it.pattern_generation);
        if reported.is_some_and(|it| it != self.generation) {
            return code(ErrorCode::Stale);
        }
        let inode = self.inode(request.inode)?;
        let Some(count) = inode.opens.get_mut(&session) else {
            return code(ErrorCode::InvalidArgument);
        };
        *count -= 1;
        if *count == 0 {
            inode.opens.remove(&session);
        }
        let unchanged = Ok(AttributesReply { attributes: inode.attributes.clone() });
        request.written.map_or(unchanged, |written| self.report(request.inode, written.extent))
    }

    fn pattern(&self, inode: InodeId) -> StripePattern {
        let mut pattern = StripePattern { generation: self.generation, ..pattern() };
        if self.behaviour.inline_bytes > 0 {
            let has_moved = self.inodes.get(&inode).is_some_and(|it| it.has_moved_inline);
            pattern.components[0].start = if has_moved { 0 } else { self.behaviour.inline_bytes };
            pattern.components.insert(0, Component::inline());
        }
        pattern
    }

    fn report(&mut self, inode: InodeId, written: WrittenExtent) -> Result<AttributesReply> {
        let inode = self.inode(inode)?;
        if written.ends_inline.is_some() && !inode.end_inline() {
            return code(ErrorCode::Stale);
        }
        let attributes = &mut inode.attributes;
        if written.truncate_generation == attributes.truncate_generation {
            attributes.size = attributes.size.max(written.end);
        }
        attributes.is_sparse |= written.may_leave_holes;
        attributes.change_counter += 1;
        let attributes = attributes.clone();
        self.reach = self.reach.max(written.reach);
        Ok(AttributesReply { attributes })
    }

    /// Changes attributes, but does not truncate chunk files; tests truncate them if necessary.
    pub(crate) fn set_attributes(&mut self, request: &SetAttributes) -> Result<SetAttributesReply> {
        let truncated = request.size.map(|_| self.behaviour.truncated.clone()).unwrap_or_default();
        let FakeInode { attributes, inline, synced, .. } = self.inode(request.inode)?;
        if let Some(size) = request.size {
            if size == 0 {
                *synced = ChunkFileSet::default();
            }
            inline.truncate(size as usize);
            attributes.is_sparse |= size > attributes.size;
            attributes.size = size;
            attributes.truncate_generation += 1;
        }
        attributes.permissions = request.permissions_after(attributes.permissions);
        attributes.change_counter += 1;
        Ok(SetAttributesReply { attributes: attributes.clone(), truncated })
    }
}
