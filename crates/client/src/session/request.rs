//! Sends requests to metadata groups in the mount's sessions. One loop repeats a request after its
//! session was lost. Callers pass in how each kind of request reacts to the loss.

use crate::client::{Client, Worker};
use crate::driven::drive;
use crate::files::open_file::OpenFile;
use crate::session::slots::{Slot, ThreadSession};
use crate::session::table::is_lost;
use skep_rpc::CallOptions;
use skep_types::{Error, ErrorCode, GroupId, InodeId, Result, TargetKind};
use skep_wire::Request;
use std::cell::Cell;
use std::rc::Rc;

/// How a modifying request is sent and repeated.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ModifyOptions {
    /// The group replies only after the effect is durable.
    pub(crate) is_durable: bool,
    /// The error that a repetition gets if the group executed the first attempt and then lost its
    /// record of that attempt. `None` means that the repetition gets a correct reply.
    pub(crate) ambiguous_reply: Option<ErrorCode>,
    /// A second execution would undo the first one. The client does not repeat such a request if
    /// the group may have executed the first attempt and lost its record.
    pub(crate) is_undone_by_repetition: bool,
    /// The request truncates a file. The client does not repeat it after an eviction, since another
    /// client may have changed the file since.
    pub(crate) truncates: bool,
    /// The caller already runs in a task that is never dropped.
    pub(crate) is_driven: bool,
}

impl ModifyOptions {
    /// Returns the options of a request whose repetition may get `code` because the first attempt
    /// succeeded.
    pub(crate) fn ambiguous_on(code: ErrorCode) -> Self {
        Self { ambiguous_reply: Some(code), ..Self::default() }
    }
}

impl Client {
    /// Sends a read-only request to the group that serves an inode.
    pub(crate) async fn ask<R: Request>(&self, inode: InodeId, request: &R) -> Result<R::Reply> {
        self.ask_with(inode, request, CallOptions::default()).await
    }

    /// Like [`Self::ask`], with options. If `durable` is set, the group replies only after every
    /// change that it acknowledged before is durable.
    pub(crate) async fn ask_with<R: Request>(
        &self,
        inode: InodeId,
        request: &R,
        options: CallOptions,
    ) -> Result<R::Reply> {
        let attempt = async |session: &Rc<ThreadSession>| {
            let trace = self.next_trace();
            let options = CallOptions { session: session.id, trace, ..options.clone() };
            self.router().call(session.group, request, options).await.map(|(reply, _)| reply)
        };
        self.in_session(inode, attempt, |_| Ok(())).await
    }

    /// Sends a modifying request to the group that serves an inode. The group executes the request
    /// exactly once, unless this function returns `Io` for an unknown outcome. If the caller drops
    /// this future, the request continues as a task, and `orphan` gets its result.
    pub(crate) async fn modify<R: Request + 'static>(
        &self,
        inode: InodeId,
        request: R,
        options: ModifyOptions,
        orphan: impl FnOnce(Client, Result<R::Reply>) + Clone + 'static,
    ) -> Result<R::Reply> {
        let request = Rc::new(request);
        let is_reply_lost = Rc::new(Cell::new(false));
        // Whether the group may have executed an earlier attempt in a session that was lost. Within
        // one session a repetition gets the reply of the first attempt.
        let is_forgotten = Cell::new(false);
        let attempt = async |session: &Rc<ThreadSession>| {
            let slot = session.take_slot().await;
            let (worker, lost) = (Rc::clone(&self.0), Some(Rc::clone(&is_reply_lost)));
            let sending = send_attempt(worker, slot, Rc::clone(&request), options, lost);
            let result = if options.is_driven {
                sending.await
            } else {
                let (client, orphan) = (self.clone(), orphan.clone());
                drive(sending, move |result| orphan(client, result)).await
            };
            match result {
                Err(error)
                    if is_forgotten.get() && options.ambiguous_reply == Some(error.code()) =>
                {
                    Err(unknown_outcome(&error))
                }
                result => result,
            }
        };
        let on_loss = |error: Error| {
            if options.truncates && error.code() == ErrorCode::Evicted {
                return Err(error);
            }
            is_forgotten.set(is_forgotten.get() || is_reply_lost.get());
            if is_forgotten.get() && options.is_undone_by_repetition {
                return Err(unknown_outcome(&error));
            }
            Ok(())
        };
        self.in_session(inode, attempt, on_loss).await
    }

    /// Sends a request that changes a file through an open handle. After an eviction the client
    /// does not send the request in any session, since another client may have changed the file. If
    /// the caller drops this future, the group may still execute the request, and the next request
    /// in the same slot waits for it.
    pub(crate) async fn modify_through<R: Request>(
        &self,
        file: &OpenFile,
        request: &Rc<R>,
    ) -> Result<R::Reply> {
        let attempt = async |session: &Rc<ThreadSession>| {
            let slot = session.take_slot().await;
            // The check must follow the choice of the session. Then a handle that passes was opened
            // under the client id of this session.
            file.check_live()?;
            let (worker, options) = (Rc::clone(&self.0), ModifyOptions::default());
            send_attempt(worker, slot, Rc::clone(request), options, None).await
        };
        self.in_session(file.inode.id, attempt, |_| Ok(())).await
    }

    /// Runs `attempt` in the session at the group that serves an inode. If the group refuses the
    /// session, runs `attempt` again in the next session, unless `on_loss` returns an error.
    async fn in_session<T>(
        &self,
        inode: InodeId,
        mut attempt: impl AsyncFnMut(&Rc<ThreadSession>) -> Result<T>,
        mut on_loss: impl FnMut(Error) -> Result<()>,
    ) -> Result<T> {
        loop {
            let group = self.group_of(inode)?;
            let session = self.session(group).await?;
            match attempt(&session).await {
                Err(error) if is_lost(&error) => {
                    self.renew_session(group, session.id, &error).await;
                    on_loss(error)?;
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

fn unknown_outcome(error: &Error) -> Error {
    let text = format!(
        "cannot find out whether the operation was executed: the session was lost and a repetition \
         returned '{}'; look before you repeat it",
        error.code()
    );
    Error::new(ErrorCode::Io, text)
}

/// Sends one request in one slot, including all repetitions by the router. Sets `reply_lost` if the
/// group may have executed the request although no reply arrived.
pub(crate) async fn send_attempt<R: Request>(
    worker: Rc<Worker>,
    slot: Slot,
    request: Rc<R>,
    options: ModifyOptions,
    reply_lost: Option<Rc<Cell<bool>>>,
) -> Result<R::Reply> {
    let (number, sequence) = slot.next();
    let options = CallOptions {
        session: slot.session.id,
        slot: number,
        sequence,
        durable: options.is_durable,
        trace: worker.next_trace(),
        reply_lost,
        ..CallOptions::default()
    };
    let result = worker.router.call(slot.session.group, &*request, options).await;
    drop(slot);
    result.map(|(reply, _)| reply)
}
