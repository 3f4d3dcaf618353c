//! Opens sessions, renews their leases, and replaces lost sessions.

use crate::client::{Client, Worker};
use crate::driven::drive;
use crate::files::open_file::OpenFile;
use crate::limits::{REOPENS_AT_ONCE, SLOTS_PER_WORKER};
use crate::session::ids::client_of;
use crate::session::request::{ModifyOptions, send_attempt};
use crate::session::slots::ThreadSession;
use crate::session::table::{Granted, SessionState, is_lost, lease_of};
use skep_rpc::CallOptions;
use skep_types::{Error, ErrorCode, GroupId, InodeId, Result, SessionId};
use skep_wire::limits::MAX_SLOTS;
use skep_wire::metadata::{KeepAlive, Open, OpenMode, OpenSession};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// A renewal in progress, which ends when this value is dropped. If its thread ends earlier, as at
/// an unmount, the renewal has failed, and another thread may repeat it.
#[derive(Debug)]
struct RunningRenewal {
    client: Client,
    group: GroupId,
    /// The new session.
    id: SessionId,
    /// Whether all files of the lost session are open again.
    is_restored: bool,
}

impl RunningRenewal {
    fn new(client: &Client, group: GroupId, id: SessionId) -> Self {
        Self { client: client.clone(), group, id, is_restored: false }
    }
}

impl Drop for RunningRenewal {
    fn drop(&mut self) {
        self.client.mount().sessions.renewed(self.group, self.id, self.is_restored);
    }
}

impl Client {
    /// Returns this thread's range of slots in the session at a group. Opens the session if no
    /// thread has opened it yet.
    pub(crate) async fn session(&self, group: GroupId) -> Result<Rc<ThreadSession>> {
        if let Some(session) = self.0.sessions.borrow().get(&group) {
            return Ok(Rc::clone(session));
        }
        let mount = self.mount();
        loop {
            match mount.sessions.find_or_add(group, mount.node()) {
                SessionState::Open { id, slots } => return self.0.join_session(group, id, slots),
                SessionState::Renewing => mount.sessions.await_renewal(group).await,
                SessionState::Unrestored { id } => self.renew_again(group, id).await?,
                SessionState::Unopened { id } => match self.open_session(group, id).await {
                    Ok(_) => {}
                    Err(error) if is_lost(&error) => self.renew_session(group, id, &error).await,
                    Err(error) => return Err(error),
                },
            }
        }
    }

    /// Returns this thread's range of slots in the session `id`. Unlike [`Self::session`], never
    /// returns a range of another session: neither of an older session that another thread has
    /// replaced, nor of a newer one.
    ///
    /// # Errors
    /// Returns `StaleSession` if another session has replaced `id`.
    pub(super) async fn session_of(
        &self,
        group: GroupId,
        id: SessionId,
    ) -> Result<Rc<ThreadSession>> {
        let mut session = self.session(group).await?;
        // Forget only a replaced session. This thread's range of the current session has the
        // sequences of its slots.
        if session.id != id && !self.mount().sessions.is_current(group, session.id) {
            self.0.forget_session(group, session.id);
            session = self.session(group).await?;
        }
        if session.id == id {
            return Ok(session);
        }
        let what = format!(
            "cannot use session {id} at group {group}: another session of this mount has replaced \
             it"
        );
        Err(Error::new(ErrorCode::StaleSession, what))
    }

    async fn open_session(&self, group: GroupId, id: SessionId) -> Result<u32> {
        let mount = self.mount();
        let slots = (SLOTS_PER_WORKER * mount.slot_ranges()).min(MAX_SLOTS);
        let request = OpenSession { client: mount.node(), slots };
        let now = skep_env::now();
        let options = CallOptions { session: id, ..CallOptions::default() };
        let (opened, _) = self.router().call(group, &request, options).await?;
        let lease = lease_of(opened.lease_ms);
        let granted = Granted { slots: opened.slots.min(slots), lease, start: opened.start };
        let lost = mount.sessions.changes.opened(group, id, opened.start);
        self.report_reverted(group, &lost);
        mount.sessions.opened(group, id, granted, now);
        mount.notifications.follow(group, id);
        Ok(granted.slots)
    }

    /// Replaces the session `lost`, which a group refuses, by a new session, and opens all files of
    /// the lost session again. Returns as soon as this thread or another thread has finished the
    /// renewal.
    pub(crate) async fn renew_session(&self, group: GroupId, lost: SessionId, why: &Error) {
        if why.code() == ErrorCode::Evicted {
            self.rejoin(client_of(lost)).await;
        }
        self.0.forget_session(group, lost);
        let mount = self.mount();
        if let Some(id) = mount.sessions.replace(group, lost, mount.node()) {
            tracing::info!(
                "metadata group {group} has ended the session of this mount; the mount opens its \
                 files there again"
            );
            tracing::debug!(
                "session {id} replaces session {lost} at group {group}, which the group has \
                 refused: {why:#}"
            );
            self.lose_locks(group);
            let client = self.clone();
            let running = RunningRenewal::new(self, group, id);
            // A separate task renews the session, since all threads wait for the renewal, but a
            // caller may drop its own future.
            skep_env::spawn(async move {
                if let Err(error) = client.run_renewal(running).await {
                    tracing::error!(
                        "this mount cannot use metadata group {group}, because the mount cannot \
                         open a session there: {error}. The mount tries again; until it succeeds, \
                         operations on files of the group fail, and files that are open here are \
                         deleted if another client removes their last name"
                    );
                }
            })
            .detach();
        }
        mount.sessions.await_renewal(group).await;
    }

    /// Repeats the renewal of the session `id`, because an earlier renewal has failed. Without this
    /// repetition, the files that were open in the lost session would not be open in the new
    /// session.
    ///
    /// # Errors
    /// Returns the error if the group refuses to open a session again.
    pub(crate) async fn renew_again(&self, group: GroupId, id: SessionId) -> Result<()> {
        if !self.mount().sessions.begin_renewal(group, id) {
            return Ok(());
        }
        let client = self.clone();
        let running = RunningRenewal::new(self, group, id);
        // Complete the renewal even if the caller drops the future, since all threads wait for it.
        let renewal = async move {
            let result = client.run_renewal(running).await;
            if result.is_ok() {
                tracing::info!("this mount can use metadata group {group} again");
            }
            result
        };
        drive(renewal, |_| ()).await
    }

    /// Opens the new session of `running` in place of a lost session, and opens the files of the
    /// lost session again. If the group ends the new session meanwhile, continues with another one.
    ///
    /// # Errors
    /// Returns the error if the group refuses to open a session. No thread uses the session then
    /// until [`Self::renew_again`] succeeds.
    async fn run_renewal(&self, mut running: RunningRenewal) -> Result<()> {
        let began = skep_env::now();
        let (mount, group) = (self.mount(), running.group);
        loop {
            let id = running.id;
            let renewal = self.try_renewal(group, id);
            let error = match self.renew_lease_during(group, id, renewal).await {
                Ok(()) => {
                    running.is_restored = true;
                    self.meter().session.record(skep_env::now().saturating_sub(began));
                    return Ok(());
                }
                Err(error) => error,
            };
            if !is_lost(&error) {
                return Err(error);
            }
            if error.code() == ErrorCode::Evicted {
                self.rejoin(client_of(id)).await;
            }
            // If another thread has replaced the session, that thread renews it.
            let Some(next) = mount.sessions.replace(group, id, mount.node()) else {
                return Ok(());
            };
            self.lose_locks(group);
            running.id = next;
        }
    }

    /// Opens the session `id`, and opens all files of the lost session again.
    async fn try_renewal(&self, group: GroupId, id: SessionId) -> Result<()> {
        let slots = self.open_session(group, id).await?;
        let mount = self.mount();
        let session = self.0.new_thread_session(group, id, slots)?;
        let map = mount.map();
        let files = mount.handles.select(|file| {
            !file.is_stale() && map.shard_group(file.inode.id.shard()) == Some(group)
        });
        if mount.sessions.unrestored(group, id).is_some_and(|lost| lost != client_of(id)) {
            // This client has joined again with another id. Other clients may have changed these
            // files, so the handles for writing are fenced.
            let writable = files.iter().filter(|file| file.mode == OpenMode::Write);
            writable.for_each(|file| file.set_fenced());
        }
        // Open files for writing first. If metadata had an open of this session for reading only,
        // metadata could notify this session about the open for writing, and wait for its
        // acknowledgement. The acknowledgement would wait for an append, and the append for the end
        // of this renewal.
        let files = files.into_iter().filter(|file| !file.is_stale());
        let (writable, readable): (Vec<_>, Vec<_>) =
            files.partition(|file| file.mode == OpenMode::Write);
        let chunks = writable.chunks(REOPENS_AT_ONCE).chain(readable.chunks(REOPENS_AT_ONCE));
        for files in chunks {
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
        // If another thread has replaced this session meanwhile, this thread may use the newer
        // session already. Only the thread's range of the newer session has the sequences of the
        // slots, so keep that range.
        if mount.sessions.is_current(group, id) {
            self.0.sessions.borrow_mut().insert(group, session);
        }
        Ok(())
    }

    pub(super) async fn reopen(&self, file: &OpenFile, session: &Rc<ThreadSession>) -> Result<()> {
        let request = Open {
            inode: file.inode.id,
            open: file.mode,
            truncate: false,
            must_have_name: false,
            inline_limit: 0,
        };
        let slot = session.take_slot().await;
        let options = ModifyOptions::default();
        match send_attempt(Rc::clone(&self.0), slot, Arc::new(request), options, None).await {
            Ok(opened) => {
                // Between the loss of the session and this open, other clients may have changed the
                // file without a notification to this mount.
                file.inode.must_compare();
                file.inode.observe(&opened.attributes, skep_env::now());
                file.inode.opened_again(opened.is_shared);
                if let Some(pattern) = &opened.pattern {
                    file.inode.pattern_opened(pattern);
                }
                // If the generation of the stripe pattern differs, another program has set a
                // different pattern for the empty file while the session was lost. Other clients
                // then use the chunk files of the new pattern. If the inline bytes are at metadata
                // again, a power loss of metadata has reverted their move. But if the next report
                // of this mount contains the end of the inline component, the pattern counts as the
                // same.
                let pattern = file.pattern();
                let is_same = opened.pattern.as_ref().is_some_and(|it| {
                    let is_back = it.inline_bytes() > 0
                        && pattern.has_moved_inline()
                        && file.inode.ending_inline().is_none();
                    it.generation == pattern.generation && !is_back
                });
                if !is_same {
                    let inode = file.inode.id;
                    tracing::warn!(
                        "file {inode}: its stripe pattern has changed; programs that have the file \
                         open get ESTALE until they open it again"
                    );
                    self.close_orphan(Ok(opened), file.mode);
                    file.set_stale();
                } else if opened.is_shared {
                    self.mount().share(&file.inode);
                }
                Ok(())
            }
            Err(error) if is_lost(&error) => Err(error),
            Err(error) => {
                tracing::warn!(
                    "file {}: cannot open it in the new session of this mount: {error}; programs \
                     that have the file open get ESTALE until they open it again",
                    file.inode.id
                );
                file.set_stale();
                Ok(())
            }
        }
    }

    /// Renews the lease of a session once. If the target has started again, also restores the opens
    /// and locks that the target has lost. `time_left` is the time limit for the group's reply;
    /// `None` means without limit.
    pub(crate) async fn confirm_session(
        &self,
        group: GroupId,
        id: SessionId,
        time_left: Option<Duration>,
    ) -> Result<()> {
        let start = self.renew_lease(group, id, time_left).await?;
        let sessions = &self.mount().sessions;
        while sessions.may_have_lost_opens(group, id, start) {
            // If two tasks restored opens at the same time, both would open a missing file again,
            // and one of these opens would have no handle.
            let Some(_restoring) = sessions.begin_restoring(group, id) else {
                sessions.await_restoring(group, id).await;
                continue;
            };
            let began = skep_env::now();
            let restoring = async {
                self.compare_slots(group, id).await?;
                self.restore_opens(group, id).await?;
                self.restore_locks(group, id).await
            };
            self.renew_lease_during(group, id, restoring).await?;
            sessions.has_opens(group, id, start);
            self.meter().replay.record(skep_env::now().saturating_sub(began));
        }
        Ok(())
    }

    /// Renews the lease of a session once. Returns the start number of the target.
    async fn renew_lease(
        &self,
        group: GroupId,
        id: SessionId,
        time_left: Option<Duration>,
    ) -> Result<u64> {
        let sent_at = skep_env::now();
        let known = self.mount().sessions.lease(group, id);
        let request = KeepAlive { lease_ms: known.as_millis().try_into().unwrap_or(u32::MAX) };
        let options = CallOptions { session: id, time_left, ..CallOptions::default() };
        let (renewed, _) = self.router().call(group, &request, options).await?;
        let lease = lease_of(renewed.lease_ms);
        self.mount().sessions.confirmed(group, id, sent_at, lease);
        Ok(renewed.start)
    }

    /// Waits for `work`, which opens files again. Renews the lease of the session during this wait.
    /// An open may wait until metadata has evicted another client that has the file open. The
    /// eviction takes the time of a lease, so the lease of this session could run out too.
    async fn renew_lease_during<T>(
        &self,
        group: GroupId,
        id: SessionId,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            let third = self.mount().sessions.lease(group, id) / 3;
            if let Some(done) = skep_env::timeout(third, work.as_mut()).await {
                return done;
            }
            if let Err(error) = self.renew_lease(group, id, Some(third)).await {
                // If the group has ended the session, `work` gets the same error.
                tracing::debug!("cannot renew session {id} at group {group} yet: {error:#}");
            }
        }
    }

    /// If the lease of the session at an inode's metadata group may have run out, asks the group to
    /// confirm the session. If the session was lost, opens its files again in a new session.
    ///
    /// # Errors
    /// Returns the error if the group refuses to open the new session. The files are then not open
    /// at the group.
    pub(crate) async fn confirm_lease(&self, inode: InodeId) -> Result<()> {
        let group = self.group_of(inode)?;
        if self.mount().sessions.doubtful(group, skep_env::now()).is_none() {
            return Ok(());
        }
        let client = self.clone();
        // Complete the confirmation even if the caller drops the future. If the confirmation ended
        // early, the slot of a request that restores a lost open could get another request while
        // the first request is under way.
        drive(async move { client.confirm_current(group).await }, |_| ()).await
    }

    /// Confirms the current session at a group, after the end of its renewal if one is running.
    async fn confirm_current(&self, group: GroupId) -> Result<()> {
        let mount = self.mount();
        loop {
            match mount.sessions.find_or_add(group, mount.node()) {
                // The group may not have the new session yet, and would then refuse a confirmation.
                // If the client replaced the new session too, the group would still open this
                // unused session, and would evict the client when the lease of the session runs
                // out.
                SessionState::Renewing => mount.sessions.await_renewal(group).await,
                SessionState::Unrestored { id } => self.renew_again(group, id).await?,
                // The mount has had no session at the group yet, so it has no files there.
                SessionState::Unopened { .. } => return Ok(()),
                SessionState::Open { id, .. } => {
                    match self.confirm_session(group, id, None).await {
                        Err(error) if is_lost(&error) => {
                            self.renew_session(group, id, &error).await;
                        }
                        result => return result,
                    }
                }
            }
        }
    }
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

    /// Takes this thread's range of slots in a session. If another task of this thread has already
    /// taken the range, returns the same range.
    fn join_session(&self, group: GroupId, id: SessionId, slots: u32) -> Result<Rc<ThreadSession>> {
        let mut sessions = self.sessions.borrow_mut();
        if let Some(session) = sessions.get(&group).filter(|session| session.id == id) {
            return Ok(Rc::clone(session));
        }
        let session = self.new_thread_session(group, id, slots)?;
        sessions.insert(group, Rc::clone(&session));
        Ok(session)
    }

    fn forget_session(&self, group: GroupId, lost: SessionId) {
        let mut sessions = self.sessions.borrow_mut();
        if sessions.get(&group).is_some_and(|session| session.id == lost) {
            sessions.remove(&group);
        }
    }
}
