//! Sessions: what makes a modifying request happen exactly once.
//!
//! A mount has one session at each metadata group, opened when it is first needed. Its slots are
//! divided into ranges, one for each worker thread, so that threads share no slot and no lock. A
//! slot carries one request at a time; its sequence rises by one with each, and a slot is used
//! again only after its reply. Repetitions within one session are the router's and carry the same
//! numbers.
//!
//! # When a session was lost
//! A group answers `StaleSession` for one that it doesn't know (any more), and `Evicted` when
//! nothing was heard of the client for a lease (then the client first joins the cluster anew, see
//! `eviction`). The thread that sees it first opens another session and opens the files of that
//! group again, then everybody goes on under it. A request that was refused so was not executed by
//! that attempt; but if the reply of an earlier attempt was lost with its connection, that one may
//! have been executed, and the memory of it went with the session. [`Modify::tell_tale`] says which
//! answer to the repetition would then be a lie: `Exists` after a create, `NotFound` after an
//! unlink. The caller gets `Io` in its place, with a text that says what to look at.

use crate::client::{Client, Worker};
use crate::driven::drive;
use crate::files::handles::OpenFile;
use crate::limits::{CONTENTION_PAUSE, REOPENS_AT_ONCE, SLOTS_PER_WORKER};
use crate::mount::eviction::client_of;
use skep_env::local::Notify;
use skep_rpc::CallOptions;
use skep_types::{Error, ErrorCode, GroupId, InodeId, NodeId, Result, SessionId, TargetKind};
use skep_wire::Request;
use skep_wire::limits::MAX_SLOTS;
use skep_wire::metadata::{Open, OpenMode, OpenSession};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Whether a group refuses the session that a request came in.
pub(crate) fn is_lost(error: &Error) -> bool {
    matches!(error.code(), ErrorCode::StaleSession | ErrorCode::Evicted)
}

/// Lease of a session before a group has told its own.
const USUAL_LEASE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy)]
struct GroupSession {
    id: SessionId,
    /// Granted slots; zero: not open yet.
    slots: u32,
    lease: Duration,
    /// When the group was last heard to know the session, counted from when it was asked.
    confirmed_at: Duration,
    is_renewing: bool,
}

/// What a thread finds when it looks for a group's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Open { id: SessionId, slots: u32 },
    Unopened { id: SessionId },
    Renewing,
}

#[derive(Debug, Default)]
struct Sessions {
    groups: HashMap<GroupId, GroupSession>,
    next_counter: u32,
}

/// The sessions of a mount, one at each metadata group.
#[derive(Debug, Default)]
pub(crate) struct GroupSessions {
    /// Protects the table alone; threads look here only when they meet a group for the first time,
    /// or when a session was lost.
    inner: Mutex<Sessions>,
}

impl Sessions {
    fn new_session(&mut self, node: NodeId) -> GroupSession {
        self.next_counter += 1;
        GroupSession {
            id: SessionId::new(u64::from(node.raw()) << 32 | u64::from(self.next_counter)),
            slots: 0,
            lease: USUAL_LEASE,
            confirmed_at: Duration::ZERO,
            is_renewing: false,
        }
    }
}

impl GroupSessions {
    fn with<T>(&self, f: impl FnOnce(&mut Sessions) -> T) -> T {
        f(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn find(&self, group: GroupId, node: NodeId) -> Found {
        self.with(|inner| {
            let session = match inner.groups.get(&group) {
                Some(session) => *session,
                None => {
                    let session = inner.new_session(node);
                    inner.groups.insert(group, session);
                    session
                }
            };
            match session {
                GroupSession { is_renewing: true, .. } => Found::Renewing,
                GroupSession { slots: 0, id, .. } => Found::Unopened { id },
                GroupSession { id, slots, .. } => Found::Open { id, slots },
            }
        })
    }

    fn opened(&self, group: GroupId, id: SessionId, granted: Granted, now: Duration) {
        self.with(|inner| {
            if let Some(session) = inner.groups.get_mut(&group).filter(|it| it.id == id) {
                session.slots = granted.slots;
                session.lease = granted.lease;
                session.confirmed_at = now;
            }
        });
    }

    /// The lease by which a session is renewed.
    pub(crate) fn lease(&self, group: GroupId, id: SessionId) -> Duration {
        self.with(|inner| {
            inner.groups.get(&group).filter(|it| it.id == id).map_or(USUAL_LEASE, |it| it.lease)
        })
    }

    /// Notes that a group knew the session at a time, and the lease that it has from now on.
    pub(crate) fn confirmed(&self, group: GroupId, id: SessionId, at: Duration, lease: Duration) {
        self.with(|inner| {
            if let Some(session) = inner.groups.get_mut(&group).filter(|it| it.id == id) {
                session.confirmed_at = session.confirmed_at.max(at);
                session.lease = lease;
            }
        });
    }

    /// The group's session, if its lease may have run out by now.
    pub(crate) fn doubtful(&self, group: GroupId, now: Duration) -> Option<SessionId> {
        self.with(|inner| {
            let session = inner.groups.get(&group)?;
            let is_sure = now < session.confirmed_at + session.lease && !session.is_renewing;
            (!is_sure).then_some(session.id)
        })
    }

    /// Puts another session in the place of a lost one; `None` if another thread did.
    fn replace(&self, group: GroupId, lost: SessionId, node: NodeId) -> Option<SessionId> {
        self.with(|inner| {
            let new = GroupSession { is_renewing: true, ..inner.new_session(node) };
            let session = inner.groups.get_mut(&group).filter(|it| it.id == lost)?;
            *session = new;
            Some(new.id)
        })
    }

    fn renewed(&self, group: GroupId) {
        self.with(|inner| {
            if let Some(session) = inner.groups.get_mut(&group) {
                session.is_renewing = false;
            }
        });
    }

    fn is_renewing(&self, group: GroupId) -> bool {
        self.with(|inner| inner.groups.get(&group).is_some_and(|it| it.is_renewing))
    }

    /// Whether a group's session is this one.
    pub(crate) fn is_current(&self, group: GroupId, id: SessionId) -> bool {
        self.with(|inner| inner.groups.get(&group).is_some_and(|it| it.id == id))
    }

    /// Sessions that are open.
    pub(crate) fn open_sessions(&self) -> Vec<(GroupId, SessionId)> {
        self.with(|inner| {
            let open = inner.groups.iter().filter(|(_, it)| it.slots > 0 && !it.is_renewing);
            open.map(|(group, session)| (*group, session.id)).collect()
        })
    }

    /// The shortest lease of all sessions.
    pub(crate) fn shortest_lease(&self) -> Duration {
        let shortest = self.with(|inner| inner.groups.values().map(|it| it.lease).min());
        shortest.unwrap_or(USUAL_LEASE)
    }
}

/// A lease as a group tells it.
pub(crate) fn lease_of(milliseconds: u32) -> Duration {
    Duration::from_millis(u64::from(milliseconds.max(1)))
}

#[derive(Debug, Clone, Copy)]
struct Granted {
    slots: u32,
    lease: Duration,
}

/// A thread's range of slots in a group's session.
#[derive(Debug)]
pub(crate) struct ThreadSession {
    pub(crate) id: SessionId,
    group: GroupId,
    first: u32,
    free: RefCell<Vec<u32>>,
    sequences: RefCell<Vec<u64>>,
    freed: Notify,
}

impl ThreadSession {
    /// The range of a worker, of `ranges`.
    fn new(
        group: GroupId,
        id: SessionId,
        slots: u32,
        worker: u32,
        ranges: u32,
    ) -> Result<Rc<Self>> {
        let share = slots / ranges;
        if share == 0 {
            let text = format!(
                "group {group} grants {slots} slots, too few for the {ranges} threads of this \
                 mount: mount with fewer"
            );
            return Err(Error::new(ErrorCode::Configuration, text));
        }
        Ok(Rc::new(Self {
            id,
            group,
            first: worker * share,
            free: RefCell::new((0..share).rev().collect()),
            sequences: RefCell::new(vec![0; share as usize]),
            freed: Notify::default(),
        }))
    }

    async fn take_slot(self: &Rc<Self>) -> Slot {
        loop {
            if let Some(index) = self.free.borrow_mut().pop() {
                return Slot { session: Rc::clone(self), index };
            }
            self.freed.wait().await;
        }
    }
}

/// A slot, taken until it is dropped.
#[derive(Debug)]
struct Slot {
    session: Rc<ThreadSession>,
    index: u32,
}

impl Slot {
    /// Number and sequence for the next request.
    fn next(&self) -> (u32, u64) {
        let sequence = &mut self.session.sequences.borrow_mut()[self.index as usize];
        *sequence += 1;
        (self.session.first + self.index, *sequence)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.session.free.borrow_mut().push(self.index);
        self.session.freed.notify();
    }
}

/// How a modifying request is sent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Modify {
    /// Reply only when the effect is on the device.
    pub(crate) is_durable: bool,
    /// The answer that a repetition gets if the first attempt was executed and forgotten.
    pub(crate) tell_tale: Option<ErrorCode>,
    /// Done twice it is undone: it isn't sent again where a first attempt may have been executed
    /// and forgotten.
    pub(crate) is_undone_by_itself: bool,
    /// It cuts a file: it isn't sent again after this client was evicted, since others may have the
    /// file since.
    pub(crate) truncates: bool,
    /// The caller already runs as a task that nobody drops.
    pub(crate) is_driven: bool,
}

impl Modify {
    /// A request whose repetition may be answered with a code that then says nothing.
    pub(crate) fn telling(code: ErrorCode) -> Self {
        Self { tell_tale: Some(code), ..Self::default() }
    }
}

impl Client {
    /// This thread's part in the session at a group; opens the session if nobody has.
    pub(crate) async fn session(&self, group: GroupId) -> Result<Rc<ThreadSession>> {
        if let Some(session) = self.0.sessions.borrow().get(&group) {
            return Ok(Rc::clone(session));
        }
        let mount = self.mount();
        loop {
            match mount.sessions.find(group, mount.node()) {
                Found::Open { id, slots } => return self.0.join_session(group, id, slots),
                Found::Renewing => skep_env::sleep(CONTENTION_PAUSE).await,
                Found::Unopened { id } => match self.open_session(group, id).await {
                    Ok(_) => {}
                    Err(error) if is_lost(&error) => self.renew_session(group, id, &error).await,
                    Err(error) => return Err(error),
                },
            }
        }
    }

    async fn open_session(&self, group: GroupId, id: SessionId) -> Result<u32> {
        let mount = self.mount();
        let slots = (SLOTS_PER_WORKER * mount.slot_ranges()).min(MAX_SLOTS);
        let request = OpenSession { client: mount.node(), slots };
        let now = skep_env::now();
        let options = CallOptions { session: id, ..CallOptions::default() };
        let (opened, _) = self.router().call(group, &request, options).await?;
        let lease = lease_of(opened.lease_ms);
        let granted = Granted { slots: opened.slots.min(slots), lease };
        mount.sessions.opened(group, id, granted, now);
        mount.notifications.follow(group, id);
        Ok(granted.slots)
    }

    /// Puts a new session in the place of one that a group refuses, and opens all files again that
    /// were open there. Returns when that is done, whoever does it.
    pub(crate) async fn renew_session(&self, group: GroupId, lost: SessionId, why: &Error) {
        if why.code() == ErrorCode::Evicted {
            self.rejoin(client_of(lost)).await;
        }
        self.0.forget_session(group, lost);
        let mount = self.mount();
        if let Some(id) = mount.sessions.replace(group, lost, mount.node()) {
            tracing::warn!("session {lost} at group {group} was lost; {id} takes its place");
            self.lose_locks(group);
            let client = self.clone();
            // As a task of its own, since all threads wait for it.
            skep_env::spawn(async move {
                client.run_renewal(group, id, client_of(lost)).await;
                client.mount().sessions.renewed(group);
            })
            .detach();
        }
        while mount.sessions.is_renewing(group) {
            skep_env::sleep(CONTENTION_PAUSE).await;
        }
    }

    async fn run_renewal(&self, group: GroupId, mut id: SessionId, lost: NodeId) {
        loop {
            match self.try_renewal(group, id, lost).await {
                Ok(()) => return,
                Err(error) if is_lost(&error) => {
                    let mount = self.mount();
                    if error.code() == ErrorCode::Evicted {
                        self.rejoin(client_of(id)).await;
                    }
                    let Some(next) = mount.sessions.replace(group, id, mount.node()) else {
                        return;
                    };
                    self.lose_locks(group);
                    id = next;
                }
                // Whoever needs the session next tries to open it, and gets the error.
                Err(error) => {
                    tracing::error!("no session at group {group}: {error}");
                    return;
                }
            }
        }
    }

    /// `lost` is the client in whose name the files are open.
    async fn try_renewal(&self, group: GroupId, id: SessionId, lost: NodeId) -> Result<()> {
        let slots = self.open_session(group, id).await?;
        let mount = self.mount();
        let session = self.0.new_thread_session(group, id, slots)?;
        let map = mount.map();
        let files = mount.handles.select(|file| {
            !file.is_stale() && map.shard_group(file.inode.id.shard()) == Some(group)
        });
        if lost != client_of(id) {
            // Opened while this client was being removed.
            let writable = files.iter().filter(|file| file.mode == OpenMode::Write);
            writable.for_each(|file| file.set_fenced());
        }
        let files: Vec<_> = files.into_iter().filter(|file| !file.is_stale()).collect();
        for files in files.chunks(REOPENS_AT_ONCE) {
            let tasks: Vec<_> = files
                .iter()
                .map(|file| {
                    let (client, file) = (self.clone(), Arc::clone(file));
                    let session = Rc::clone(&session);
                    skep_env::spawn(async move { client.reopen(&file, &session).await })
                })
                .collect();
            for task in tasks {
                task.await?;
            }
        }
        self.0.sessions.borrow_mut().insert(group, session);
        Ok(())
    }

    async fn reopen(&self, file: &OpenFile, session: &Rc<ThreadSession>) -> Result<()> {
        let request =
            Open { inode: file.inode.id, open: file.mode, truncate: false, must_have_name: false };
        let slot = session.take_slot().await;
        let how = Modify::default();
        match attempt(Rc::clone(&self.0), slot, Rc::new(request), how, None).await {
            Ok(opened) => {
                file.inode.observe(&opened.attributes, skep_env::now());
                // It was empty, and its pattern was set meanwhile: others use other chunk files.
                let generation = opened.pattern.as_ref().map(|pattern| pattern.generation);
                if generation != Some(file.pattern.generation) {
                    let inode = file.inode.id;
                    tracing::warn!("file {inode} has another stripe pattern now: open it anew");
                    self.close_orphan(Ok(opened), file.mode);
                    file.set_stale();
                } else if opened.is_shared {
                    self.mount().share(&file.inode);
                }
                Ok(())
            }
            Err(error) if is_lost(&error) => Err(error),
            Err(error) => {
                tracing::warn!("file {} can't be opened again: {error}", file.inode.id);
                file.set_stale();
                Ok(())
            }
        }
    }

    /// Sends a request that modifies nothing to the group that serves an inode.
    pub(crate) async fn ask<R: Request>(&self, inode: InodeId, request: &R) -> Result<R::Reply> {
        self.ask_so(inode, request, CallOptions::default()).await
    }

    /// The same; with `durable` in the options the answer comes when all that the group has
    /// acknowledged before is on its device.
    pub(crate) async fn ask_so<R: Request>(
        &self,
        inode: InodeId,
        request: &R,
        how: CallOptions,
    ) -> Result<R::Reply> {
        loop {
            let group = self.group_of(inode)?;
            let session = self.session(group).await?.id;
            let options = CallOptions { session, trace: self.next_trace(), ..how.clone() };
            match self.router().call(group, request, options).await {
                Ok((reply, _)) => return Ok(reply),
                Err(error) if is_lost(&error) => {
                    self.renew_session(group, session, &error).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a modifying request to the group that serves an inode, exactly once. If this is
    /// dropped, the request goes on by itself, and `orphan` gets its result.
    pub(crate) async fn modify<R: Request + 'static>(
        &self,
        inode: InodeId,
        request: R,
        how: Modify,
        orphan: impl FnOnce(Client, Result<R::Reply>) + Clone + 'static,
    ) -> Result<R::Reply> {
        let request = Rc::new(request);
        let lost = Rc::new(Cell::new(false));
        // Whether an earlier attempt may have been executed in a session that is gone. As long as
        // it isn't, a repetition gets the answer of the first.
        let mut is_forgotten = false;
        loop {
            let group = self.group_of(inode)?;
            let session = self.session(group).await?;
            let slot = session.take_slot().await;
            let (worker, lost_reply) = (Rc::clone(&self.0), Some(Rc::clone(&lost)));
            let attempt = attempt(worker, slot, Rc::clone(&request), how, lost_reply);
            let result = if how.is_driven {
                attempt.await
            } else {
                let (client, orphan) = (self.clone(), orphan.clone());
                drive(attempt, move |result| orphan(client, result)).await
            };
            match result {
                Err(error) if is_lost(&error) => {
                    self.renew_session(group, session.id, &error).await;
                    if how.truncates && error.code() == ErrorCode::Evicted {
                        return Err(error);
                    }
                    is_forgotten |= lost.get();
                    if is_forgotten && how.is_undone_by_itself {
                        return Err(unknown_outcome(&error));
                    }
                }
                Err(error) if is_forgotten && how.tell_tale == Some(error.code()) => {
                    return Err(unknown_outcome(&error));
                }
                result => return result,
            }
        }
    }

    /// Sends a request that changes something through an open file. Not once this client was
    /// evicted, under whichever session: others may have the file since. If this is dropped, the
    /// request may yet be done: whoever takes the slot next goes before it.
    pub(crate) async fn modify_through<R: Request>(
        &self,
        file: &OpenFile,
        request: &Rc<R>,
    ) -> Result<R::Reply> {
        loop {
            let group = self.group_of(file.inode.id)?;
            let session = self.session(group).await?;
            let slot = session.take_slot().await;
            // Behind the session: a handle that is live now was opened under this one's client.
            file.check_live()?;
            let worker = Rc::clone(&self.0);
            match attempt(worker, slot, Rc::clone(request), Modify::default(), None).await {
                Err(error) if is_lost(&error) => {
                    self.renew_session(group, session.id, &error).await;
                }
                result => return result,
            }
        }
    }

    /// The metadata group that serves an inode.
    pub(crate) fn group_of(&self, inode: InodeId) -> Result<GroupId> {
        self.router().shard_group(inode.shard())
    }

    /// All metadata groups.
    pub(crate) fn metadata_groups(&self) -> Vec<GroupId> {
        let map = self.map();
        let groups = map.groups.iter().filter(|group| group.kind == TargetKind::Metadata);
        groups.map(|group| group.id).collect()
    }
}

fn unknown_outcome(error: &Error) -> Error {
    let text = format!(
        "the session was lost while this operation was under way, so it may have been done before \
         it was answered '{}': look before you repeat it",
        error.code()
    );
    Error::new(ErrorCode::Io, text)
}

/// One request in one slot, with all the router's repetitions of it.
async fn attempt<R: Request>(
    worker: Rc<Worker>,
    slot: Slot,
    request: Rc<R>,
    how: Modify,
    reply_lost: Option<Rc<Cell<bool>>>,
) -> Result<R::Reply> {
    let (number, sequence) = slot.next();
    let options = CallOptions {
        session: slot.session.id,
        slot: number,
        sequence,
        durable: how.is_durable,
        trace: worker.next_trace(),
        reply_lost,
        ..CallOptions::default()
    };
    let result = worker.router.call(slot.session.group, &*request, options).await;
    drop(slot);
    result.map(|(reply, _)| reply)
}

impl Worker {
    fn new_thread_session(
        &self,
        group: GroupId,
        id: SessionId,
        slots: u32,
    ) -> Result<Rc<ThreadSession>> {
        ThreadSession::new(group, id, slots, self.index as u32, self.mount.slot_ranges())
    }

    /// Takes this thread's range of slots. The range of a session is taken once: another task of
    /// this thread may have come first.
    fn join_session(&self, group: GroupId, id: SessionId, slots: u32) -> Result<Rc<ThreadSession>> {
        let mut sessions = self.sessions.borrow_mut();
        if let Some(session) = sessions.get(&group).filter(|it| it.id == id) {
            return Ok(Rc::clone(session));
        }
        let session = self.new_thread_session(group, id, slots)?;
        sessions.insert(group, Rc::clone(&session));
        Ok(session)
    }

    fn forget_session(&self, group: GroupId, lost: SessionId) {
        let mut sessions = self.sessions.borrow_mut();
        if sessions.get(&group).is_some_and(|it| it.id == lost) {
            sessions.remove(&group);
        }
    }
}
