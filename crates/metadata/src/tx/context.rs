//! The context in which a handler runs. The context contains one transaction over the target's
//! state, the time, the cluster map, and the calls to other groups.
//!
//! A handler is a plain function that runs from start to end. When it must wait, it returns a
//! [`Stop`], and the target drops its writes. Later, the handler runs again from the start, with
//! the replies that have arrived so far. So only the reads and writes of the last run take effect,
//! and they are one transaction.

use crate::engine::Engine;
use crate::limits::DECISION_PATIENCE;
use crate::tx::locks::{Owner, Resource};
use crate::tx::operation::{Operation, OutgoingCall, RemoteCall, Stop};
use crate::tx::remembered_reads::RememberedReads;
use crate::tx::shared::Shared;
use crate::tx::table::{Table, logged_bytes};
use skep_format::metadata::{InodeRecord, Key, OpenCounts, StagedRecord, decode_value};
use skep_types::codec::Codec;
use skep_types::{Attributes, Error, ErrorCode, GroupId, InodeId, Result, ShardId, Timestamp};
use skep_wire::Request;
use skep_wire::inline::InlineContents;
use skep_wire::metadata::{
    EntryReply, NamesReply, NewEntryReply, TransactionId, add_directory, add_inline,
};

/// Translates an error from another target's reply: `DeviceFailed` becomes `Io`. Without the
/// translation, this target would mistake a device failure on another target for a failure of its
/// own device.
pub(crate) fn of_another(error: Error) -> Error {
    match error.code() {
        ErrorCode::DeviceFailed => Error::new(ErrorCode::Io, error.context()),
        _ => error,
    }
}

/// Results of an operation that are not logged in the slot with the reply, so that log records stay
/// short. The target adds `directory` and `inline` to the encoded reply before it sends the reply.
#[derive(Debug, Default)]
pub(crate) struct UnloggedFields {
    /// Files whose stripe pattern the operation has changed. Opens of these files wait until the
    /// change is *safe* (`tx::pattern_changes`).
    pub(crate) changed_patterns: Vec<InodeId>,
    /// New attributes of the directory that the request has changed.
    pub(crate) directory: Option<Attributes>,
    /// The bytes of the file that the request has opened.
    pub(crate) inline: Option<InlineContents>,
    /// The record of the operation's transaction, if this transaction becomes *staged*.
    pub(crate) staged: Option<StagedRecord>,
}

impl UnloggedFields {
    pub(crate) fn add_to(&self, reply: &mut Vec<u8>) {
        if let Some(inline) = &self.inline {
            add_inline(reply, inline);
        }
        if let Some(directory) = &self.directory {
            add_directory(reply, directory);
        }
    }
}

/// One transaction, in which one run of an operation reads and writes.
pub(crate) struct Context<'a, E> {
    table: &'a Table<E>,
    reads: RememberedReads,
    writes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    written_bytes: usize,
    pub(crate) shared: &'a mut Shared,
    pub(crate) op: &'a mut Operation,
    /// Requests to send, each with the index of its reply in `op.remote_calls`.
    pub(crate) outgoing: Vec<(usize, OutgoingCall)>,
    pub(crate) unlogged: UnloggedFields,
    next_call: usize,
    owner: Owner,
    applies_prepared: bool,
}

impl<'a, E: Engine> Context<'a, E> {
    pub(crate) fn new(table: &'a Table<E>, shared: &'a mut Shared, op: &'a mut Operation) -> Self {
        let owner = Owner::Operation(op.id);
        Self {
            table,
            reads: RememberedReads::default(),
            writes: Vec::new(),
            written_bytes: 0,
            shared,
            op,
            outgoing: Vec::new(),
            unlogged: UnloggedFields::default(),
            next_call: 0,
            owner,
            applies_prepared: false,
        }
    }

    /// Makes the context act for a prepared transaction: the locks of this transaction do not block
    /// the context.
    pub(crate) fn act_for(&mut self, transaction: TransactionId) {
        self.owner = Owner::Prepared(transaction);
    }

    /// Makes the context apply a prepared transaction. No lock blocks the context, because the
    /// steps of the transaction were checked against the locks during its preparation.
    pub(crate) fn apply_prepared(&mut self, transaction: TransactionId) {
        self.act_for(transaction);
        self.applies_prepared = true;
    }

    pub(crate) fn into_writes(self) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        self.writes
    }

    /// Adds the attributes of a directory that the request has changed to the reply. The target
    /// adds the attributes when it sends the reply. If undecided transactions change names of the
    /// directory, the reply gets no attributes. When the client needs them, it sends a request that
    /// waits for the decisions ([`Self::await_decisions`]).
    pub(crate) fn show_directory(&mut self, directory: InodeRecord) {
        if !self.has_undecided_names(directory.attributes.inode) {
            self.unlogged.directory = Some(directory.attributes);
        }
    }

    /// Returns the reply to a request that has removed or moved a name. The target adds the
    /// attributes of `directory` when it sends the reply.
    pub(crate) fn names_reply(&mut self, directory: InodeRecord) -> NamesReply {
        self.show_directory(directory);
        NamesReply { directory: None }
    }

    /// Returns the reply to a request that has created a name. The target adds the attributes of
    /// `directory` when it sends the reply.
    pub(crate) fn new_entry_reply(
        &mut self,
        entry: EntryReply,
        directory: InodeRecord,
    ) -> NewEntryReply {
        self.show_directory(directory);
        NewEntryReply { entry, directory: None }
    }

    // ---- the store

    /// Returns the value of a key. The value includes this transaction's own writes.
    pub(crate) fn get<T: Codec>(&self, key: &Key<'_>) -> Result<Option<T>> {
        let key = key.to_bytes();
        let decode = |key: &[u8], value: Option<&[u8]>| {
            value.map(|value| decode_value(key, value)).transpose()
        };
        match self.writes.iter().rev().find(|(written, _)| *written == key) {
            Some((_, value)) => decode(&key, value.as_deref()),
            None => self.with_stored(key, decode),
        }
    }

    /// Passes a key with its value in the table to `f`. The value does not include this
    /// transaction's own writes.
    fn with_stored<T>(
        &self,
        key: Vec<u8>,
        f: impl FnOnce(&[u8], Option<&[u8]>) -> Result<T>,
    ) -> Result<T> {
        self.reads.with(key, |key| self.table.get(key), f)
    }

    /// Returns key-value pairs in ascending key order. The pairs do not include this transaction's
    /// own writes.
    pub(crate) fn scan(
        &self,
        prefix: &[u8],
        after: &[u8],
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.table.scan(prefix, after, limit)
    }

    /// Like [`Self::scan`], but returns only the keys.
    pub(crate) fn scan_keys(
        &self,
        prefix: &[u8],
        after: &[u8],
        limit: usize,
    ) -> Result<Vec<Vec<u8>>> {
        self.table.scan_keys(prefix, after, limit)
    }

    fn write(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.written_bytes += logged_bytes(&key, value.as_deref());
        self.writes.push((key, value));
    }

    /// Returns the maximum number of bytes that this transaction's writes take in the log.
    pub(crate) fn written_bytes(&self) -> usize {
        self.written_bytes
    }

    pub(crate) fn put(&mut self, key: &Key<'_>, value: &impl Codec) {
        self.write(key.to_bytes(), Some(value.to_bytes()));
    }

    pub(crate) fn put_raw(&mut self, key: &Key<'_>, value: &[u8]) {
        self.write(key.to_bytes(), Some(value.to_vec()));
    }

    /// Whether the table has a key. Does not include this transaction's own writes, and copies no
    /// value.
    pub(crate) fn is_stored(&self, key: &Key<'_>) -> Result<bool> {
        self.with_stored(key.to_bytes(), |_, value| Ok(value.is_some()))
    }

    /// Returns a copy of the bytes that the table has for a key. The bytes do not include this
    /// transaction's own writes.
    pub(crate) fn get_raw(&self, key: &Key<'_>) -> Result<Option<Vec<u8>>> {
        self.with_stored(key.to_bytes(), |_, value| Ok(value.map(<[u8]>::to_vec)))
    }

    pub(crate) fn delete(&mut self, key: &Key<'_>) {
        self.write(key.to_bytes(), None);
    }

    pub(crate) fn delete_raw(&mut self, key: Vec<u8>) {
        self.write(key, None);
    }

    /// Refuses a request that needs space while the target's disk is almost full. Handlers of
    /// requests that free space or end something do not call this function.
    ///
    /// # Errors
    /// `NoSpace` if the disk is almost full. The error names the target and has a hint on how to
    /// free space.
    pub(crate) fn check_free_space(&self) -> Result<()> {
        match &self.shared.shortage {
            None => Ok(()),
            Some(what) => Err(Error::new(ErrorCode::NoSpace, what.as_str())),
        }
    }

    // ---- locks of undecided transactions

    /// Returns [`Stop::Held`] while another owner has a lock on `resource`.
    pub(crate) fn check_free(&self, resource: Resource) -> Result<(), Stop> {
        if self.applies_prepared || self.shared.locks.is_free(&resource, Some(self.owner)) {
            Ok(())
        } else {
            Err(Stop::Held(resource))
        }
    }

    /// Takes the rename lock at this target, whose group serves the root. Returns [`Stop::Held`]
    /// while another owner has the lock.
    pub(crate) fn take_rename_lock(&mut self) -> Result<(), Stop> {
        let now = self.shared.now;
        if self.shared.locks.try_take(&Resource::Rename, self.owner, now) {
            Ok(())
        } else {
            Err(Stop::Held(Resource::Rename))
        }
    }

    /// Whether undecided transactions of other groups change names of a directory. Staged
    /// transactions of this group do not count, because the store has their changes already.
    pub(crate) fn has_undecided_names(&self, directory: InodeId) -> bool {
        self.shared.locks.prepared_dentries_of(directory).next().is_some()
    }

    /// Waits for the decisions about the transactions of other groups that were about to change
    /// names of a directory when the operation first ran. The clients that requested these changes
    /// may already have their replies, and must find their changes in the directory's size, link
    /// count and times. Transactions that are prepared later do not delay the operation. If the
    /// operation also waited for later transactions, it could wait as long as programs move names
    /// to other groups.
    ///
    /// Waits for each decision at most until [`DECISION_PATIENCE`] after the preparation. Each
    /// program that uses a path through the directory needs the attributes, and the coordinator may
    /// have failed. A replay of a change waits for no decision, because other changes wait for it.
    pub(crate) fn await_decisions(&mut self, directory: InodeId) -> Result<(), Stop> {
        if self.op.first_reply.is_some() {
            return Ok(());
        }
        let now = self.shared.now;
        let first_run = *self.op.first_run.get_or_insert(now);
        let prepared = (now.saturating_sub(DECISION_PATIENCE), first_run);
        match self.shared.locks.last_dentry_of(directory, prepared) {
            Some((resource, since)) => {
                Err(Stop::HeldUntil { resource, until: since + DECISION_PATIENCE })
            }
            None => Ok(()),
        }
    }

    // ---- inodes

    /// Returns the record of an inode. `None` means that the inode does not exist. Returns
    /// [`Stop::Held`] while an undecided transaction has locked the inode, or while the operation
    /// must wait for a truncation. Returns [`Stop::Unsafe`] until the current start is *safe*.
    ///
    /// If the change counter is below the first version of the current start, raises it to that
    /// version. With a lower counter, a new change could get the version of an earlier change that
    /// clients have seen and that a power loss has reverted.
    pub(crate) fn find_inode(&self, inode: InodeId) -> Result<Option<InodeRecord>, Stop> {
        self.check_free(Resource::Inode(inode))?;
        self.check_truncation(inode)?;
        let starts = &self.shared.starts;
        if starts.current().is_none() {
            return Err(Stop::Unsafe);
        }
        let mut record = self.get::<InodeRecord>(&Key::Inode(inode))?;
        if let Some(InodeRecord { attributes, .. }) = &mut record {
            attributes.change_counter = attributes.change_counter.max(starts.first_version());
        }
        Ok(record)
    }

    /// Returns the record of an inode. Fails with `Stale` if the inode does not exist.
    pub(crate) fn inode(&self, inode: InodeId) -> Result<InodeRecord, Stop> {
        self.find_inode(inode)?.ok_or_else(|| {
            Error::new(ErrorCode::Stale, format!("cannot find inode {inode}: it was removed"))
                .into()
        })
    }

    pub(crate) fn put_inode(&mut self, record: &InodeRecord) {
        self.put(&Key::Inode(record.attributes.inode), record);
    }

    /// Returns the open counts of an inode over all sessions.
    pub(crate) fn opens(&self, inode: InodeId) -> Result<OpenCounts> {
        Ok(self.get(&Key::Opens(inode))?.unwrap_or_default())
    }

    /// Takes the next number for an inode or a transaction. If no usable number is left, returns
    /// [`Stop::Unsafe`] until the next reservation is *safe*.
    pub(crate) fn next_number(&mut self) -> Result<u64, Stop> {
        // If the operation fails, this number is never used. The range of numbers is large enough
        // for such losses.
        self.shared.numbers.take().ok_or(Stop::Unsafe)
    }

    /// Returns a new inode id in `shard` that was never used before. For a replayed request,
    /// returns the id from its first reply instead.
    pub(crate) fn new_inode_id(&mut self, shard: ShardId) -> Result<InodeId, Stop> {
        match self.replayed_inode()? {
            Some(inode) => Ok(inode),
            None => Ok(InodeId::from_parts(shard, self.next_number()?)),
        }
    }

    /// Returns the id of the inode that a replayed request has created before the power loss.
    /// `None` means that the operation is not a replay, or that its first reply contains no created
    /// inode.
    ///
    /// # Errors
    /// `Stale` if the inode exists, or if the target cannot have assigned its id.
    pub(crate) fn replayed_inode(&self) -> Result<Option<InodeId>, Stop> {
        let Some(first) = self.op.first_reply.as_ref().filter(|it| it.created) else {
            return Ok(None);
        };
        let inode = first.inode;
        let may_be_lost = self.shared.numbers.may_be_assigned(inode.number());
        if !may_be_lost || !self.is_local(inode)? || self.find_inode(inode)?.is_some() {
            let what = format!(
                "cannot create inode {inode} again after a power loss: this inode exists, or this \
                 target has never created it"
            );
            return Err(Error::new(ErrorCode::Stale, what).into());
        }
        Ok(Some(inode))
    }

    /// Returns the time of day.
    pub(crate) fn wall(&self) -> Timestamp {
        self.shared.wall.newest()
    }

    // ---- other groups

    /// Returns the metadata group that serves an inode.
    pub(crate) fn group_of(&self, inode: InodeId) -> Result<GroupId> {
        let shard = inode.shard();
        self.shared.map.shard_group(shard).ok_or_else(|| {
            Error::new(
                ErrorCode::StaleMap,
                format!(
                    "cannot find the group of inode {inode}: no metadata group serves shard {shard}"
                ),
            )
        })
    }

    /// Whether this target's group serves an inode.
    pub(crate) fn is_local(&self, inode: InodeId) -> Result<bool> {
        Ok(self.group_of(inode)? == self.shared.group)
    }

    /// Calls another group. Returns the reply if an earlier run has sent the call and the reply has
    /// arrived. Returns [`Stop::AwaitsReplies`] until the reply has arrived.
    pub(crate) fn ask<R: Request>(
        &mut self,
        group: GroupId,
        request: &R,
    ) -> Result<R::Reply, Stop> {
        self.ask_all(vec![(group, request)])?.pop().ok_or(Stop::AwaitsReplies)
    }

    /// Calls several groups concurrently. If an earlier run has sent the calls and all replies have
    /// arrived, returns the replies, or the first refusal. Returns [`Stop::AwaitsReplies`] until
    /// all replies have arrived.
    pub(crate) fn ask_all<R: Request>(
        &mut self,
        requests: Vec<(GroupId, &R)>,
    ) -> Result<Vec<R::Reply>, Stop> {
        let mut replies = Vec::with_capacity(requests.len());
        let mut waits = false;
        for (group, request) in requests {
            let index = self.next_call;
            self.next_call += 1;
            let body = request.to_bytes();
            match self.op.remote_calls.get(index) {
                None => {
                    let trace = self.op.source.trace();
                    let call = OutgoingCall { trace, ..OutgoingCall::new(group, request) };
                    let message = R::ID;
                    self.op.remote_calls.push(RemoteCall { group, message, body, reply: None });
                    self.outgoing.push((index, call));
                    waits = true;
                }
                Some(earlier)
                    if (earlier.group, earlier.message) != (group, R::ID)
                        || earlier.body != body =>
                {
                    return Err(Stop::Changed);
                }
                Some(RemoteCall { reply: None, .. }) => waits = true,
                Some(RemoteCall { reply: Some(reply), .. }) => {
                    let reply = reply.clone().map_err(of_another)?;
                    replies.push(R::Reply::from_bytes(&reply).map_err(|error| {
                        Error::new(
                            ErrorCode::Protocol,
                            format!("cannot decode the reply of group {group}: {error}"),
                        )
                    })?);
                }
            }
        }
        if waits { Err(Stop::AwaitsReplies) } else { Ok(replies) }
    }

    /// Whether earlier runs have made calls that this run has not made.
    pub(crate) fn has_unused_replies(&self) -> bool {
        self.next_call < self.op.remote_calls.len()
    }
}
