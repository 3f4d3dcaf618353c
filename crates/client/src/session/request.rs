//! Sends requests to metadata groups in the mount's sessions, and sends them again after a session
//! was lost. Callers define in [`ModifyOptions`] whether a request is repeated after the loss.
//!
//! # A lost reply in a lost session
//! The group may have executed a request whose reply was lost. If the client repeats the request
//! within the session, it gets the reply of the first attempt. In the next session, the group would
//! execute the request a second time. For example, a second `unlink` would remove a new file that
//! another client has created with the same name. So the client first asks the group for the
//! outcome (`AskOutcome`), and repeats the request only if the group has not executed it.
//!
//! # Hazard: a reply that arrives after the loss of its session
//! While a reply is on its way to one thread, another thread may replace the session. The renewal
//! does not include the open or lock in this reply. So the next session does not have this open or
//! lock, and an eviction does not fence its handle. If the reply is to a close, the close has ended
//! an open of the lost session, but not the open of the same file in the next session. So the
//! client repeats requests whose effects end with the session.

use crate::client::{Client, Worker};
use crate::driven::drive;
use crate::files::open_file::OpenFile;
use crate::session::acknowledged::{Acknowledged, Change};
use crate::session::ids::client_of;
use crate::session::kept_requests::{KeptRequest, inline_mark_of, inodes_of, is_kept};
use crate::session::slots::{Slot, ThreadSession};
use crate::session::table::is_lost;
use skep_rpc::{CallFacts, CallOptions};
use skep_types::codec::{Bytes, Codec};
use skep_types::{Error, ErrorCode, GroupId, InodeId, Result, SessionId, TargetKind};
use skep_wire::Request;
use skep_wire::metadata::{AskOutcome, Outcome, SyncAll};
use std::rc::Rc;
use std::sync::Arc;

/// How the client sends and repeats a request for a change.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ModifyOptions {
    /// Whether the group replies only after the effect is durable.
    pub(crate) is_durable: bool,
    /// Whether a group may execute the request twice: all effects of the request end with its
    /// session (an open, a lock, a close), or a second execution has no further effect. In both
    /// cases, the client repeats the request in the next session.
    pub(crate) ends_with_session: bool,
    /// Whether the request truncates a file. The client does not repeat such a request if the group
    /// may have begun the truncation, because another client may have changed the file meanwhile.
    pub(crate) truncates: bool,
    /// Whether the caller already runs in a task that is never dropped.
    pub(crate) is_driven: bool,
}

impl ModifyOptions {
    /// Returns the options of a request whose effects end with its session.
    pub(crate) fn of_session() -> Self {
        Self { ends_with_session: true, ..Self::default() }
    }
}

/// A successful reply to a request for a change.
#[derive(Debug)]
pub(crate) struct Executed<T> {
    pub(crate) reply: T,
    /// Whether the session in which the group executed the request was lost. If the request opened
    /// a file, metadata then no longer has this file open.
    pub(crate) was_session_lost: bool,
}

/// A request that was sent in a slot of a session.
#[derive(Debug, Clone, Copy)]
struct SentRequest {
    group: GroupId,
    session: SessionId,
    slot: u32,
    sequence: u64,
}

impl Client {
    /// Sends a read-only request to the group that serves an inode.
    pub(crate) async fn ask<R: Request>(&self, inode: InodeId, request: &R) -> Result<R::Reply> {
        self.ask_with(inode, request, CallOptions::default()).await
    }

    /// Like [`Self::ask`], with options. If `durable` is set, the group replies only after all
    /// changes that it has already acknowledged are durable.
    pub(crate) async fn ask_with<R: Request>(
        &self,
        inode: InodeId,
        request: &R,
        options: CallOptions,
    ) -> Result<R::Reply> {
        let attempt = async |session: &Rc<ThreadSession>| {
            let trace = self.next_trace();
            let options = CallOptions { session: session.id, trace, ..options.clone() };
            self.ask_group(session.group, request, options).await
        };
        self.in_session(inode, attempt).await
    }

    /// Sends a read-only request in the session that the options name. If `durable` is set, the
    /// request also names the start of the target. If the target has started again, the mount first
    /// compares its acknowledged changes, and repeats or reports the lost ones. So a reply to a
    /// sync never hides a loss. After the reply, the mount forgets the changes that were
    /// acknowledged before the request, because they are durable.
    pub(crate) async fn ask_group<R: Request>(
        &self,
        group: GroupId,
        request: &R,
        options: CallOptions,
    ) -> Result<R::Reply> {
        let session = options.session;
        // Retry: sends the request again without a pause, once for each start of the target.
        loop {
            let attempt = match options.durable {
                true => Some(self.next_attempt(group, session).await),
                false => None,
            };
            let start = attempt.map_or(0, |it| it.start);
            let options = CallOptions { start, ..options.clone() };
            match self.router().call(group, request, options).await {
                Err(error) if error.code() == ErrorCode::StaleStart => {
                    self.compare_slots(group, session).await?;
                }
                Err(error) => return Err(error),
                Ok((reply, _)) => {
                    if let Some(attempt) = attempt {
                        self.mount().sessions.changes.synced(group, attempt);
                    }
                    return Ok(reply);
                }
            }
        }
    }

    /// Lets a group sync the acknowledged changes of a session, as a task. The list of these
    /// changes is half full. Without this sync, a program would have to wait for a sync when the
    /// list is full.
    fn sync_in_background(&self, group: GroupId, session: SessionId) {
        let client = self.clone();
        skep_env::spawn(async move {
            let options = CallOptions { session, durable: true, ..CallOptions::default() };
            if let Err(error) = client.ask_group(group, &SyncAll {}, options).await {
                // When the list is full, the changes themselves have the durable flag.
                tracing::debug!("cannot sync the changes of session {session}: {error:#}");
            }
            client.mount().sessions.changes.sync_ended(group, session);
        })
        .detach();
    }

    /// Sends a request for a change to the group that serves an inode. The group executes the
    /// request exactly once, unless this function returns `Io` for an unknown outcome. If the
    /// caller drops this future, the request continues as a task, which passes its result to
    /// `orphan`.
    pub(crate) async fn modify<R: Request + 'static>(
        &self,
        inode: InodeId,
        request: R,
        options: ModifyOptions,
        orphan: impl FnOnce(Client, Result<R::Reply>) + Clone + 'static,
    ) -> Result<R::Reply> {
        self.modify_once(inode, request, options, orphan).await.map(|executed| executed.reply)
    }

    /// Like [`Self::modify`], but also returns whether the group executed the request in a session
    /// that has been lost since.
    pub(crate) async fn modify_once<R: Request + 'static>(
        &self,
        inode: InodeId,
        request: R,
        options: ModifyOptions,
        orphan: impl FnOnce(Client, Result<R::Reply>) + Clone + 'static,
    ) -> Result<Executed<R::Reply>> {
        let request = Arc::new(request);
        loop {
            let group = self.group_of(inode)?;
            let session = self.session(group).await?;
            let slot = session.take_slot().await;
            let (number, sequence) = slot.upcoming();
            let sent = SentRequest { group, session: session.id, slot: number, sequence };
            let facts = Rc::new(CallFacts::default());
            let (worker, noted) = (Rc::clone(&self.0), Some(Rc::clone(&facts)));
            let sending = send_attempt(worker, slot, Arc::clone(&request), options, noted);
            let result = if options.is_driven {
                sending.await
            } else {
                let (client, orphan, id) = (self.clone(), orphan.clone(), session.id);
                let finish = move |result| {
                    // If the session was lost, an open in the reply has ended with the session.
                    if client.loss_of_session(group, id).is_none() {
                        orphan(client, result);
                    }
                };
                drive(sending, finish).await
            };
            let error = match result {
                Ok(reply) => match self.loss_of_session(group, session.id) {
                    Some(loss) if options.ends_with_session => loss,
                    loss => return Ok(Executed { reply, was_session_lost: loss.is_some() }),
                },
                Err(error) if is_lost(&error) => error,
                Err(error) => return Err(error),
            };
            self.renew_session(group, session.id, &error).await;
            // The group did not execute the attempt that it refused. The group may have executed an
            // earlier attempt only if the reply to that attempt was lost.
            let may_have_run = facts.reply_lost.get() && !options.ends_with_session;
            // Even if the group has stored a reply to the truncation, this reply does not show
            // whether the chunk files are truncated.
            if options.truncates && (may_have_run || error.code() == ErrorCode::Evicted) {
                return Err(Error::new(ErrorCode::Evicted, error.context()));
            }
            if may_have_run && let Some(reply) = self.outcome_of::<R>(sent, options).await? {
                return Ok(Executed { reply, was_session_lost: true });
            }
        }
    }

    /// Sends a request that closes files. `request` returns the request for the session in use, or
    /// `None` if no file is left to close. Calls `request` again for each session, because the next
    /// session may not have all opens of the lost one. Returns `None` if nothing was left to close.
    /// The caller runs in a task that is never dropped.
    pub(crate) async fn modify_closes<R: Request + 'static>(
        &self,
        inode: InodeId,
        request: impl Fn() -> Option<R>,
    ) -> Result<Option<R::Reply>> {
        loop {
            let group = self.group_of(inode)?;
            let session = self.session(group).await?;
            let slot = session.take_slot().await;
            // Call `request` only after the choice of the session, for the same reason as the check
            // in `modify_through`.
            let Some(closes) = request() else { return Ok(None) };
            let (worker, options) = (Rc::clone(&self.0), ModifyOptions::of_session());
            let sent = send_attempt(worker, slot, Arc::new(closes), options, None).await;
            let error = match (sent, self.loss_of_session(group, session.id)) {
                (Ok(reply), None) => return Ok(Some(reply)),
                (Ok(_), Some(loss)) => loss,
                (Err(error), _) if is_lost(&error) => error,
                (Err(error), _) => return Err(error),
            };
            self.renew_session(group, session.id, &error).await;
            if request().is_none() {
                return Ok(None);
            }
        }
    }

    /// Returns the error of a session that this mount has lost, although the reply to a request in
    /// it has arrived. `None` means that the session is not lost.
    fn loss_of_session(&self, group: GroupId, id: SessionId) -> Option<Error> {
        let mount = self.mount();
        // Management may have removed the client a moment ago, and the session is not replaced yet.
        // The handles for writing are fenced already. An unmount gets no new id any more.
        let is_removed = mount.member.was_removed(client_of(id)) && !mount.is_ending();
        let code = match is_removed {
            true => ErrorCode::Evicted,
            false if !mount.sessions.is_current(group, id) => ErrorCode::StaleSession,
            false => return None,
        };
        let what = format!(
            "cannot use the reply to a request in session {id} at group {group}: the mount has \
             lost the session meanwhile"
        );
        Some(Error::new(code, what))
    }

    /// Asks a group whether it executed a request in a session that was lost. Returns the group's
    /// reply to the request in that session. `None` means that the group has not executed the
    /// request, and will not execute it later.
    ///
    /// # Errors
    /// Returns `Io` if the group no longer stores the outcome.
    async fn outcome_of<R: Request>(
        &self,
        sent: SentRequest,
        options: ModifyOptions,
    ) -> Result<Option<R::Reply>> {
        let SentRequest { group, session, slot, sequence } = sent;
        let request = AskOutcome { session, slot, sequence };
        let call = CallOptions {
            durable: options.is_durable,
            trace: self.next_trace(),
            ..CallOptions::default()
        };
        let (reply, _) = self.router().call(group, &request, call).await?;
        match reply.outcome {
            Outcome::Executed { reply: Bytes(reply) } => {
                tracing::debug!(
                    "session {session} ended before the reply to {} arrived, although the group \
                     has executed the request",
                    R::NAME
                );
                R::Reply::from_bytes(&reply).map(Some)
            }
            Outcome::NotExecuted => Ok(None),
            Outcome::Unknown => {
                let text = format!(
                    "cannot determine whether {} was executed: session {session} at group {group} \
                     ended too long ago; check the state before you repeat the operation",
                    R::NAME
                );
                Err(Error::new(ErrorCode::Io, text))
            }
        }
    }

    /// Sends a request that changes a file through an open handle. After an eviction the client
    /// does not send the request in any session, since another client may have changed the file. If
    /// the caller drops this future, the group may still execute the request, and the next request
    /// in the same slot waits for it.
    pub(crate) async fn modify_through<R: Request + 'static>(
        &self,
        file: &OpenFile,
        request: &Arc<R>,
        options: ModifyOptions,
    ) -> Result<R::Reply> {
        let attempt = async |session: &Rc<ThreadSession>| {
            let slot = session.take_slot().await;
            // Check the handle only after the choice of the session. A handle that passes the check
            // was then opened with the client id of this session. A failed check is the result of
            // the operation. The session is not affected, although a fenced handle has the error
            // code `Evicted`, for which `in_session` would join the cluster again.
            if let Err(refusal) = file.check_live() {
                return Ok(Err(refusal));
            }
            let request = Arc::clone(request);
            send_attempt(Rc::clone(&self.0), slot, request, options, None).await.map(Ok)
        };
        self.in_session(file.inode.id, attempt).await?
    }

    /// Runs `attempt` in the session at the group that serves an inode. If the group refuses the
    /// session, runs `attempt` again in the next session.
    async fn in_session<T>(
        &self,
        inode: InodeId,
        mut attempt: impl AsyncFnMut(&Rc<ThreadSession>) -> Result<T>,
    ) -> Result<T> {
        loop {
            let group = self.group_of(inode)?;
            let session = self.session(group).await?;
            match attempt(&session).await {
                Err(error) if is_lost(&error) => {
                    self.renew_session(group, session.id, &error).await;
                }
                result => return result,
            }
        }
    }

    /// Returns the metadata group that serves an inode.
    pub(crate) fn group_of(&self, inode: InodeId) -> Result<GroupId> {
        self.router().shard_group(inode.shard())
    }

    /// Returns all metadata groups.
    pub(crate) fn metadata_groups(&self) -> Vec<GroupId> {
        let map = self.map();
        let groups = map.groups.iter().filter(|group| group.kind == TargetKind::Metadata);
        groups.map(|group| group.id).collect()
    }
}

/// Sends one request in one slot, including all repetitions by the router. Sets
/// `CallFacts::reply_lost` if the group may have executed the request although no reply arrived.
pub(crate) async fn send_attempt<R: Request + 'static>(
    worker: Rc<Worker>,
    slot: Slot,
    request: Arc<R>,
    options: ModifyOptions,
    facts: Option<Rc<CallFacts>>,
) -> Result<R::Reply> {
    let facts = facts.unwrap_or_default();
    let (number, sequence) = slot.next();
    let (group, session) = (slot.session.group, slot.session.id);
    let client = Client(Rc::clone(&worker));
    let changes = &worker.mount.sessions.changes;
    let _running = worker.mount.sessions.requests.begin();
    let keeps = is_kept(&*request);
    // Retry: sends the request again if the target has started again and refuses it. Also sends it
    // again if the change is lost, and another thread has compared the changes before the reply.
    // The client repeats it without a pause, and once for each start of the target.
    loop {
        let attempt = client.next_attempt(group, session).await;
        // If the target has lost changes, check whether the client may still send the request. Skip
        // this check if the target may have executed the request already, because only a retry
        // returns the reply.
        if attempt.has_reverted && !facts.reply_lost.get() {
            client.check_reverted(&*request).await?;
        }
        let durable = options.is_durable || keeps && attempt.is_list_full;
        let options = CallOptions {
            session,
            slot: number,
            sequence,
            start: attempt.start,
            durable,
            trace: worker.next_trace(),
            facts: Some(Rc::clone(&facts)),
            ..CallOptions::default()
        };
        match worker.router.call(group, &*request, options).await {
            Err(error) if error.code() == ErrorCode::StaleStart => {
                client.compare_slots(group, session).await?;
                // The target has refused this attempt, so only an earlier attempt can have executed
                // the request. The slots of the target show whether the target has executed an
                // earlier attempt.
                facts.reply_lost.set(changes.was_executed(group, session, (number, sequence)));
            }
            Ok((reply, _)) if durable => {
                changes.synced(group, attempt);
                return Ok(reply);
            }
            // A change number of zero means that the change is durable.
            Ok((reply, _)) if facts.change.get() == 0 => return Ok(reply),
            Ok((reply, _)) => {
                let next = if keeps {
                    let change = Change {
                        slot: number,
                        sequence,
                        place: (attempt.start, facts.change.get()),
                        request: R::NAME,
                        inodes: inodes_of(&*request),
                        kept: KeptRequest::of(&request, &reply, facts.body_bytes.get()),
                        mark: inline_mark_of(&reply),
                    };
                    changes.acknowledged(group, attempt, change, skep_env::now())
                } else if changes.has_lost(group, attempt, (number, sequence)) {
                    Acknowledged::Lost
                } else {
                    Acknowledged::Done
                };
                match next {
                    Acknowledged::Done => {}
                    Acknowledged::MustSync => client.sync_in_background(group, session),
                    // No program has got the result yet, so send the request again, like one whose
                    // reply was lost.
                    Acknowledged::Lost => {
                        facts.reply_lost.set(false);
                        continue;
                    }
                }
                return Ok(reply);
            }
            Err(error) => return Err(error),
        }
    }
}
