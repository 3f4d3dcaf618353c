//! The operations of simulated clients' tasks: the start of an operation, each attempt to send its
//! request, and the replies. The parent module owns the processes and sessions of the clients.

use super::{Current, Handle, Write, is_lost};
use crate::files::FileChange;
use crate::knobs::PlantedBug;
use crate::network::{Node, Purpose};
use crate::operation::Op;
use crate::world::{SimEvent, World, message};
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, Result, SessionId};
use skep_wire::frame::{FLAG_DURABLE, Header};
use skep_wire::metadata as md;
use std::time::Duration;

/// Pause of a task before its next operation, if its operation must wait for another task.
const CLAIM_PAUSE: Duration = Duration::from_millis(1);

impl World {
    /// Begins an operation of a task. Drops the operation if it must wait for another operation of
    /// the client on the same file. The task then chooses its next operation after a pause.
    pub(crate) fn begin(&mut self, client: usize, task: usize, op: Op, is_durable: bool) {
        match self.claim(client, &op) {
            Some(change) => self.begin_change(client, task, op, is_durable, change),
            None => {
                let life = self.clients[client].life;
                self.after(CLAIM_PAUSE, SimEvent::Step { client, life, task });
            }
        }
    }

    /// Begins an operation that changes the state of a file.
    pub(crate) fn begin_change(
        &mut self,
        client: usize,
        task: usize,
        op: Op,
        is_durable: bool,
        change: FileChange,
    ) {
        self.trace.note(self.now, || format!("client {client}.{task} begins {op:?}"));
        let number = self.witness.new_operation();
        let current = Current::new(op, number, is_durable, change);
        self.clients[client].tasks[task].current = Some(current);
        self.attempt(client, task);
    }

    /// Begins a write of chunk files. The caller sends the requests to storage.
    pub(crate) fn begin_write(
        &mut self,
        client: usize,
        task: usize,
        handle: &Handle,
        write: Write,
    ) {
        let op = Op::GetAttributes(md::GetAttributes { inode: handle.inode });
        let number = self.witness.new_operation();
        let mut current = Current::new(op, number, false, FileChange::Nothing);
        current.write = Some(write);
        self.clients[client].tasks[task].current = Some(current);
        self.keep_busy(client, task, handle.id);
    }

    /// Keeps a handle busy until the operation of a task ends. Does nothing if the task has no
    /// operation.
    pub(crate) fn keep_busy(&mut self, client: usize, task: usize, handle: u64) {
        let process = &mut self.clients[client];
        let Some(current) = &mut process.tasks[task].current else { return };
        current.handle = Some(handle);
        let handles = process.handles.iter_mut().filter(|it| it.id == handle);
        handles.for_each(|it| it.is_busy = true);
    }

    /// Sends the request of a task's operation in the client's current session with the group that
    /// serves the request.
    pub(super) fn attempt(&mut self, client: usize, task: usize) {
        let process = &mut self.clients[client];
        let Some(current) = &process.tasks[task].current else { return };
        let (op, number, is_durable) = (current.op.clone(), current.number, current.is_durable);
        let Some(group) = self.map.shard_group(op.home().shard()) else { return };
        if !process.sessions.contains_key(&group) {
            let session = process.new_session();
            process.sessions.insert(group, session);
            self.open_session(client, group);
        }
        let process = &mut self.clients[client];
        let Some(session) = process.sessions.get_mut(&group) else { return };
        if !session.is_open {
            session.waiting.push(task);
            return;
        }
        let id = session.id;
        let mut header = Header { message: op.message(), session: id, ..Header::default() };
        if is_durable {
            header.flags |= FLAG_DURABLE;
        }
        let mut instance = None;
        let notifications_before = process.notifications.arrived.len();
        let changes_before = process.files.changes();
        if op.modifies() {
            session.sequences[task] += 1;
            header.slot = task as u32;
            header.sequence = session.sequences[task];
            instance = Some((id, header.slot, header.sequence));
        }
        let is_first_page = matches!(&op, Op::ReadDirectory(it) if it.cursor == 0);
        let is_next_page = matches!(&op, Op::ReadDirectory(_)) && !is_first_page;
        if let Some(id) = instance {
            let is_always = self.knobs.policy == skep_metadata::target::SyncPolicy::Always;
            self.witness.request_sent(id, number, &op, is_durable || is_always);
        }
        let window = (!is_next_page).then(|| self.witness.open_window(&op, id));
        if let Some(current) = &mut self.clients[client].tasks[task].current {
            current.instance = instance;
            current.session = id;
            current.notifications_before = notifications_before;
            current.changes_before = changes_before;
            if let Some(window) = window {
                self.witness.close_window(std::mem::replace(&mut current.window, window));
            }
        }
        let body = op.body();
        self.call(Node::Client(client), group, header, body, Purpose::Task(task));
    }

    /// Handles the final reply to the request of a task's operation. `is_reply_lost` means that the
    /// target may have executed an earlier attempt whose reply was lost.
    pub(crate) fn task_answer(
        &mut self,
        client: usize,
        task: usize,
        result: &Result<Vec<u8>>,
        is_reply_lost: bool,
    ) {
        let Some(current) = &mut self.clients[client].tasks[task].current else { return };
        if let (Op::ReadDirectory(list), Ok(body)) = (&mut current.op, result) {
            let Ok(page) = md::DirectoryEntries::from_bytes(body) else {
                return self.fail("a listing is malformed".to_owned());
            };
            let entries = page.entries.iter();
            current.seen.extend(entries.map(|it| (it.name.0.clone(), it.entry.inode)));
            if !page.end {
                list.cursor = page.entries.last().map_or(list.cursor, |it| it.cursor);
                return self.attempt(client, task);
            }
            let (window, seen) = (current.window, std::mem::take(&mut current.seen));
            let result = self.witness.check_listing(window, &seen);
            self.check(result);
            return self.end_operation(client, task, None);
        }
        let (window, instance) = (current.window, current.instance);
        if let Err(error) = result
            && current.op.is_of_wait()
            && is_lost(error)
        {
            // The end of the session has released the client's locks, and removed the client's
            // waiting request from the queue for the lock.
            let (session, home) = (current.session, current.op.home());
            if let Some(group) = self.map.shard_group(home.shard()) {
                self.replace_session(client, group, session, error);
            }
            return self.end_operation(client, task, None);
        }
        current.sizes = self.witness.sizes_in(window).filter(|_| result.is_ok());
        let checked = self.witness.check_answer(window, instance, result, is_reply_lost);
        self.check(checked);
        if let (Err(error), Some((session, ..))) = (result, instance)
            && is_lost(error)
        {
            return self.restart_operation(client, task, (session, error), is_reply_lost);
        }
        self.trace.note(self.now, || match result {
            Ok(_) => format!("client {client}.{task} is done"),
            Err(error) => format!("client {client}.{task} is refused: {error}"),
        });
        self.check_acknowledged(client, task, result);
        self.end_operation(client, task, result.as_ref().ok().map(Vec::as_slice));
    }

    /// Continues an operation after its session was lost, like a real client
    /// (`crates/client/src/session/request.rs`). A real client reopens the files of the session.
    /// The simulated client drops its handles of these files, and abandons a request that needs
    /// such a handle.
    fn restart_operation(
        &mut self,
        client: usize,
        task: usize,
        (lost, why): (SessionId, &Error),
        is_reply_lost: bool,
    ) {
        let Some(current) = &self.clients[client].tasks[task].current else { return };
        let needs_handle = current.op.needs_handle();
        let is_truncation = current.op.truncations().is_some();
        let ends_with_session = current.op.ends_with_session();
        let (instance, is_durable) = (current.instance, current.is_durable);
        let group = self.map.shard_group(current.op.home().shard());
        self.unsure.extend(current.op.truncations().map(|(inode, _)| inode));
        if let Some(group) = group {
            self.replace_session(client, group, lost, why);
        }
        if needs_handle {
            return self.end_operation(client, task, None);
        }
        let may_have_run = is_reply_lost && !ends_with_session;
        let repeats_blindly = self.knobs.plant == Some(PlantedBug::RepeatBlindly);
        if let (Some((session, slot, sequence)), Some(group)) = (instance, group)
            && may_have_run
            && !is_truncation
            && !repeats_blindly
        {
            let (mut header, body) = message(&md::AskOutcome { session, slot, sequence });
            if is_durable {
                header.flags |= FLAG_DURABLE;
            }
            self.call(Node::Client(client), group, header, body, Purpose::Outcome(task));
        } else if is_truncation && (may_have_run || why.code() == ErrorCode::Evicted) {
            self.end_operation(client, task, None);
        } else {
            self.attempt(client, task);
        }
    }

    /// Handles the reply with the outcome of an operation whose session was lost.
    pub(super) fn outcome_answer(&mut self, client: usize, task: usize, result: &Result<Vec<u8>>) {
        let Some(current) = &self.clients[client].tasks[task].current else { return };
        let Some(instance) = current.instance else { return };
        let (op, is_durable) = (current.op.clone(), current.is_durable);
        let reply = result.as_ref().ok().and_then(|body| md::OutcomeReply::from_bytes(body).ok());
        let Some(md::OutcomeReply { outcome }) = reply else {
            return self.fail(format!("no outcome of {instance:?}: {result:?}"));
        };
        let checked = self.witness.check_outcome(instance, &outcome);
        self.check(checked);
        self.trace.note(self.now, || format!("client {client}.{task} gets {outcome:?}"));
        match outcome {
            md::Outcome::Executed { reply } => {
                self.end_operation(client, task, Some(&reply.0));
                // When the session ended, the metadata target closed the file that the request had
                // opened. So the client must reopen the file.
                if let Some(open) = op.open_again(&reply.0)
                    && self.clients[client].tasks[task].current.is_none()
                {
                    self.begin(client, task, open, is_durable);
                }
            }
            md::Outcome::NotExecuted => self.attempt(client, task),
            md::Outcome::Unknown => self.fail(format!("the outcome of {instance:?} is unknown")),
        }
    }

    pub(super) fn chunk_written(&mut self, client: usize, task: usize, result: &Result<Vec<u8>>) {
        let Some(current) = &mut self.clients[client].tasks[task].current else { return };
        // If a storage target refuses a part of a write, the other parts stay in their chunk files,
        // and no report to metadata covers them. A part is refused if the storage target learns of
        // the client's eviction before the client does.
        if let (Err(_), Op::GetAttributes(it)) = (result, &current.op) {
            self.unsure.insert(it.inode);
        }
        let Some(write) = &mut current.write else { return };
        write.has_failed |= result.is_err();
        write.under_way -= 1;
        if write.under_way > 0 {
            return;
        }
        let Some(Write { chunks, has_failed, removal, .. }) = current.write.take() else { return };
        let handle = current.handle;
        match chunks {
            Some(chunks) if has_failed => chunks.fail(),
            Some(chunks) => {
                if let Some((op, change)) = self.complete_write(client, chunks) {
                    return self.continue_write(client, task, (op, change), handle);
                }
            }
            None => {}
        }
        self.end_operation(client, task, None);
        let Some(removal) = removal else { return };
        if !has_failed && self.clients[client].tasks[task].current.is_none() {
            self.begin(client, task, Op::RemoveInline(removal), true);
        } else {
            self.clients[client].moving.remove(&removal.inode);
        }
    }

    /// Begins the next request of a write. The handle stays busy.
    fn continue_write(
        &mut self,
        client: usize,
        task: usize,
        (op, change): (Op, FileChange),
        handle: Option<u64>,
    ) {
        self.begin_change(client, task, op, false, change);
        if let Some(handle) = handle {
            self.keep_busy(client, task, handle);
        }
    }

    fn end_operation(&mut self, client: usize, task: usize, reply: Option<&[u8]>) {
        let Some(mut current) = self.clients[client].tasks[task].current.take() else { return };
        self.witness.close_window(current.window);
        if let Op::RemoveInline(it) = &current.op {
            self.clients[client].moving.remove(&it.inode);
        }
        let change = std::mem::take(&mut current.change);
        // If a mount has the state of the file, it does not add a truncation by an open to its list
        // of changed files.
        let is_listed =
            !matches!((&current.op, &change), (Op::Open(_), FileChange::Truncation { .. }));
        let next = self.apply_to_file(client, &current.op, change, reply);
        if let Some(next) = next {
            return self.continue_write(client, task, next, current.handle);
        }
        let mut handles = self.clients[client].handles.iter_mut();
        if let Some(handle) = handles.find(|it| Some(it.id) == current.handle) {
            handle.is_busy = false;
        }
        if let Some(reply) = reply {
            self.apply_reply(client, &current, reply);
            self.apply_inline_reply(client, &current.op, current.instance, reply);
            self.check_size_shared(client, &current.op, current.sizes.as_ref());
            if let Some(next) = self.next_of_wait(&current.op, current.session, reply) {
                return self.continue_wait(client, task, next);
            }
        }
        if let Some((inode, _)) = current.op.truncations().filter(|_| is_listed) {
            self.clients[client].files.note_truncation(inode);
        }
        let life = self.clients[client].life;
        let pause = if self.random.percent(80) {
            self.random.micros(0, 2_000)
        } else {
            self.random.micros(0, 100_000)
        };
        self.after(pause, SimEvent::Step { client, life, task });
    }
}
