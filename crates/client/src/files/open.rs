//! Creates and opens files.

use crate::client::Client;
use crate::driven::drive;
use crate::files::handles::HandleId;
use crate::files::open_file::{FirstRead, OpenFile};
use crate::files::opened_bytes::OpenStart;
use crate::files::recent_files::Position;
use crate::session::request::{Executed, ModifyOptions};
use skep_types::{
    Attributes, ChunkFileKey, Error, ErrorCode, InodeId, PatternRequest, Result, StripePattern,
};
use skep_wire::metadata::{Create, CreateUnnamed, Lookup, NewInode, Open, OpenMode, OpenReply};
use std::time::Duration;

/// The result of a create: a new file, or an existing file with this name.
#[derive(Debug)]
pub struct Created {
    /// The attributes of the file.
    pub attributes: Attributes,
    /// The handle of the file, if the caller requested to open it and it is a regular file.
    pub handle: Option<HandleId>,
    /// Whether the file is new.
    pub created: bool,
}

/// The result of an open.
#[derive(Debug, Clone, Copy)]
pub struct OpenedFile {
    /// The new handle of the file.
    pub handle: HandleId,
    /// Whether the kernel's page cache of the file is certainly still valid: no other client has
    /// changed the file since this mount last opened it.
    pub keep_cache: bool,
    /// Whether the attributes of the file that the mount last sent to the kernel are still valid.
    pub are_attributes_shown: bool,
    /// Whether the file is shared: other clients also have it open, and at least one client may
    /// write. The kernel must then not cache bytes that it reads through this handle.
    pub is_shared: bool,
}

/// The time at which the mount sent an open, and the events that it had recorded then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BeforeOpen {
    sent: Duration,
    /// Position in the sequence of sharing notifications.
    notifications: Position,
    /// Position in the sequence of this mount's changes to files without a state (`Inodes`).
    changes: Position,
}

impl BeforeOpen {
    /// Returns the same events for an open that the mount has sent earlier, at an unknown time.
    pub(crate) fn of_earlier_open(self) -> Self {
        Self { sent: Duration::ZERO, ..self }
    }
}

/// Creates and opens files.
pub trait Opens {
    /// Creates a file that is not a directory, and opens it if the request has an open mode. If
    /// `exclusive` is not set and the name belongs to a regular file, opens that file instead.
    ///
    /// # Errors
    /// - `Exists` if the name exists and `exclusive` is set, or if the existing file cannot be
    ///   opened instead.
    /// - `NotFound` if the directory does not exist.
    /// - `NotDirectory` if the parent is not a directory.
    /// - `NameTooLong` if the name is too long.
    /// - `NoSpace` if metadata has no space for the file.
    fn create(&self, request: Create) -> impl Future<Output = Result<Created>>;

    /// Creates a regular file without a name (`O_TMPFILE`), and opens it.
    ///
    /// # Errors
    /// - `NotFound` if the directory does not exist.
    /// - `NotDirectory` if `directory` is not a directory.
    /// - `NoSpace` if metadata has no space for the file.
    /// - `LimitReached` if the mount has too many open files.
    fn create_unnamed(
        &self,
        directory: InodeId,
        new: NewInode,
        open: OpenMode,
        pattern: Option<PatternRequest>,
    ) -> impl Future<Output = Result<Created>>;

    /// Opens a regular file. `truncate` also sets its size to zero.
    ///
    /// # Errors
    /// - `Stale` if the file has lost its last name and is not open on this mount.
    /// - `NotFound` if the inode does not exist.
    /// - `IsDirectory` if the inode is a directory.
    /// - `InvalidArgument` if the inode is a symbolic link or a special file.
    /// - `LimitReached` if the mount has too many open files.
    fn open(
        &self,
        inode: InodeId,
        mode: OpenMode,
        truncate: bool,
    ) -> impl Future<Output = Result<OpenedFile>>;

    /// Opens a regular file for the mount itself (a hold), so that [`Self::open_held`] can open the
    /// file after it has lost its last name. [`Self::open`] and the record of the kernel's caches
    /// ignore a hold, because no program uses its handle. The caller must close the handle.
    ///
    /// # Errors
    /// The errors of [`Self::open`].
    fn hold(&self, inode: InodeId) -> impl Future<Output = Result<HandleId>>;

    /// Opens a file that the caller has opened with [`Self::hold`]. Succeeds even if the file has
    /// lost its last name since. Otherwise the same as [`Self::open`].
    ///
    /// # Errors
    /// The errors of [`Self::open`].
    fn open_held(
        &self,
        inode: InodeId,
        mode: OpenMode,
        truncate: bool,
    ) -> impl Future<Output = Result<OpenedFile>>;
}

impl Opens for Client {
    async fn create(&self, request: Create) -> Result<Created> {
        let mode = request.open;
        self.mount().handles.check_limit(mode)?;
        loop {
            let (before, sent) = (self.before_open(), self.moment());
            let error = match self.send_create(request.clone()).await {
                Ok((opened, is_new)) => {
                    let created = self.created(opened, mode, before)?;
                    self.note_new(&created, mode, is_new);
                    // Programs that unpack archives change the owner of each new file. For this
                    // change, the mount needs the attributes in this reply.
                    if let Some(state) = self.mount().inodes.get(created.attributes.inode) {
                        state.know(&created.attributes, sent.after_own_change());
                    }
                    return Ok(created);
                }
                Err(error) => error,
            };
            if request.exclusive || mode == OpenMode::No || error.code() != ErrorCode::Exists {
                return Err(error);
            }
            // The metadata target could not open the existing entry itself, because its inode is at
            // another metadata group or is not a regular file.
            match self.open_existing(&request, error).await {
                Err(gone) if matches!(gone.code(), ErrorCode::NotFound | ErrorCode::Stale) => {}
                result => return result,
            }
        }
    }

    async fn create_unnamed(
        &self,
        directory: InodeId,
        new: NewInode,
        open: OpenMode,
        pattern: Option<PatternRequest>,
    ) -> Result<Created> {
        self.mount().handles.check_limit(open)?;
        let request = CreateUnnamed { directory, new, open, pattern };
        let orphan = move |client: Client, result| client.close_orphan(result, open);
        let before = self.before_open();
        // When the session that has the file open ends, metadata removes the file, because it has
        // no name. So the client can repeat this request in the next session.
        let opened = self.modify(directory, request, ModifyOptions::of_session(), orphan).await?;
        let created = self.created(opened, open, before)?;
        self.note_new(&created, open, true);
        Ok(created)
    }

    async fn open(&self, inode: InodeId, mode: OpenMode, truncate: bool) -> Result<OpenedFile> {
        let must_have_name = self.must_have_name(inode);
        self.open_file(Open { inode, open: mode, truncate, must_have_name, inline_limit: 0 }).await
    }

    async fn hold(&self, inode: InodeId) -> Result<HandleId> {
        let mode = OpenMode::Read;
        self.mount().handles.check_limit(mode)?;
        let before = self.before_open();
        let request =
            Open { inode, open: mode, truncate: false, must_have_name: true, inline_limit: 0 };
        let opened = self.send_open(request, ModifyOptions::default()).await?;
        self.insert_handle(opened, mode, before, true).map(|(handle, _)| handle)
    }

    async fn open_held(
        &self,
        inode: InodeId,
        mode: OpenMode,
        truncate: bool,
    ) -> Result<OpenedFile> {
        self.open_file(Open { inode, open: mode, truncate, must_have_name: false, inline_limit: 0 })
            .await
    }
}

impl Client {
    /// Returns the present time, and the events that the mount has recorded. The caller sends an
    /// open after this call.
    pub(crate) fn before_open(&self) -> BeforeOpen {
        let mount = self.mount();
        let notifications = mount.notifications.recent.position();
        let changes = mount.inodes.changed.position();
        BeforeOpen { sent: skep_env::now(), notifications, changes }
    }

    async fn open_file(&self, request: Open) -> Result<OpenedFile> {
        let Open { inode, open: mode, truncate, .. } = request;
        let mount = self.mount();
        mount.handles.check_limit(mode)?;
        let before = self.before_open();
        let reads = mode == OpenMode::Read && !truncate;
        let is_known = mount.caches.is_known(inode);
        let inline_limit = if reads { mount.handles.opened_bytes.limit(is_known) } else { 0 };
        let request = Open { inline_limit, ..request };
        let start = OpenStart {
            changes: mount.inodes.data_changes(inode),
            at: skep_env::now(),
            wants_bytes: inline_limit > 0,
        };
        let state = truncate.then(|| self.mount().inodes.get(inode)).flatten();
        let Some(state) = state else {
            let how = ModifyOptions { truncates: truncate, ..ModifyOptions::default() };
            let opened = self.send_open(request, how).await?;
            let added = self.add_read_handle(opened, mode, (before, start));
            // Count the truncation after this open has looked for changes by other operations.
            if truncate {
                self.mount().inodes.count_truncation(inode);
            }
            let added = added?;
            self.meter().pages.note(added.keep_cache);
            return Ok(added);
        };
        let truncating = self.claim_truncation(&state).await;
        let client = self.clone();
        let opening = async move {
            let how =
                ModifyOptions { is_driven: true, truncates: truncate, ..ModifyOptions::default() };
            client.report_written(&state, how).await?;
            let opened = client.send_open(request, how).await?;
            truncating.done(&opened.attributes, skep_env::now());
            state.chunks_truncated(&opened.truncated);
            Ok(opened)
        };
        let orphan = {
            let client = self.clone();
            move |result| client.close_orphan(result, mode)
        };
        let opened = drive(opening, orphan).await?;
        let added = self.add_handle(opened, mode, before)?;
        self.meter().pages.note(added.keep_cache);
        Ok(added)
    }

    /// Sends a create. Returns the reply, and whether the file is new and no other client can have
    /// used it since its creation.
    async fn send_create(&self, request: Create) -> Result<(OpenReply, bool)> {
        let (directory, mode) = (request.directory, request.open);
        let orphan = move |client: Client, result| client.close_orphan(result, mode);
        let how = ModifyOptions::default();
        let sent = self.mount().directory_changes.send(skep_env::now());
        let created = self.modify_once(directory, request, how, orphan).await;
        // If the file existed before, the directory has not changed.
        if created.as_ref().map_or(true, |it| it.reply.created) {
            let after = created.as_ref().ok().map(|it| &it.reply.directory);
            self.note_changed_directory(directory, sent, after);
        }
        let created = created?;
        let must_have_name = self.must_have_name(created.reply.attributes.inode);
        let is_new = created.reply.created && !created.was_session_lost;
        Ok((self.open_again(created, mode, must_have_name).await?, is_new))
    }

    /// Returns the reply to a request that opened a file. If the session of the request was lost,
    /// metadata no longer has the file open, so this function first opens the file again.
    async fn open_again(
        &self,
        done: Executed<OpenReply>,
        open: OpenMode,
        must_have_name: bool,
    ) -> Result<OpenReply> {
        let Executed { reply, was_session_lost } = done;
        if !was_session_lost || open == OpenMode::No || reply.pattern.is_none() {
            return Ok(reply);
        }
        let inode = reply.attributes.inode;
        let request = Open { inode, open, truncate: false, must_have_name, inline_limit: 0 };
        match self.send_open(request, ModifyOptions::default()).await {
            Ok(opened) => {
                let (created, truncated) = (reply.created, reply.truncated);
                Ok(OpenReply { created, truncated, ..opened })
            }
            Err(error) => {
                let text = format!(
                    "cannot open file {inode} again after the session of this mount was lost: \
                     {error}; this operation has already created or truncated the file"
                );
                Err(Error::new(ErrorCode::Io, text))
            }
        }
    }

    async fn open_existing(&self, request: &Create, error: Error) -> Result<Created> {
        let lookup = Lookup { directory: request.directory, name: request.name.clone() };
        let entry = self.ask(request.directory, &lookup).await?;
        if entry.kind != skep_types::FileKind::Regular {
            return Err(error);
        }
        let before = self.before_open();
        let (inode, open) = (entry.inode, request.open);
        let must_have_name = self.must_have_name(inode);
        let open_request = Open { inode, open, truncate: false, must_have_name, inline_limit: 0 };
        let opened = self.send_open(open_request, ModifyOptions::default()).await?;
        self.created(opened, request.open, before)
    }

    fn created(&self, opened: OpenReply, mode: OpenMode, before: BeforeOpen) -> Result<Created> {
        let created = opened.created;
        let attributes = opened.attributes.clone();
        let handle = match mode {
            OpenMode::No => None,
            _ if opened.pattern.is_none() => None,
            _ => Some(self.add_handle(opened, mode, before)?.handle),
        };
        Ok(Created { attributes, handle, created })
    }

    /// Records that this mount has created a file, and is the only client that can write to it.
    fn note_new(&self, created: &Created, mode: OpenMode, is_new: bool) {
        if is_new
            && mode == OpenMode::Write
            && let Some(handle) = created.handle
            && let Ok(file) = self.mount().handles.get(handle)
        {
            file.inode.created();
        }
    }

    /// Returns whether metadata must refuse to open the file if it has no name. Metadata must
    /// refuse if no program on this mount has the file open. If metadata refuses, the kernel has
    /// found the file by a cached name that another mount has removed. The kernel looks up the name
    /// again after the error. Without this check of metadata, a program would write to a file
    /// without a name.
    fn must_have_name(&self, inode: InodeId) -> bool {
        !self.mount().inodes.get(inode).is_some_and(|it| it.has_live_handles())
    }

    async fn send_open(&self, request: Open, how: ModifyOptions) -> Result<OpenReply> {
        let Open { inode, open, truncate, must_have_name, .. } = request;
        let orphan = move |client: Client, result| client.close_orphan(result, open);
        let how = ModifyOptions { ends_with_session: !truncate, ..how };
        let opened = self.modify_once(inode, request, how, orphan).await?;
        Box::pin(self.open_again(opened, open, must_have_name)).await
    }

    /// Adds a handle for an opened file, and keeps the bytes of the file for the first read.
    fn add_read_handle(
        &self,
        mut opened: OpenReply,
        mode: OpenMode,
        (before, start): (BeforeOpen, OpenStart),
    ) -> Result<OpenedFile> {
        let inline = opened.inline.take();
        let Attributes { change_counter: version, size, .. } = opened.attributes;
        let most = opened.pattern.as_ref().map_or(0, StripePattern::inline_bytes);
        let added = self.add_handle(opened, mode, before)?;
        if mode != OpenMode::Read || size == 0 || size > most {
            return Ok(added);
        }
        let mount = self.mount();
        let file = mount.handles.get(added.handle)?;
        if !start.wants_bytes {
            file.set_first_read(FirstRead::Unlikely);
        } else if let Some(inline) = inline.filter(|_| !added.is_shared)
            && let Some(kept) = mount.handles.opened_bytes.keep(inline, (version, size), start)
        {
            file.set_first_read(FirstRead::Prepared(kept));
        }
        Ok(added)
    }

    /// Adds a handle for a file that a program opens. If the kernel's pages of the file are
    /// outdated, the kernel drops them when it handles the reply to the open
    /// ([`Self::note_kernel_request`]). See [`Self::insert_handle`].
    fn add_handle(
        &self,
        opened: OpenReply,
        mode: OpenMode,
        before: BeforeOpen,
    ) -> Result<OpenedFile> {
        let (id, version) = (opened.attributes.inode, opened.attributes.change_counter);
        let (handle, is_shared) = self.insert_handle(opened, mode, before, false)?;
        let caches = &self.mount().caches;
        let are_attributes_shown = caches.is_shown(id, version);
        let keep_cache = caches.has_pages(id, version);
        if !keep_cache {
            self.mount().handles.get(handle)?.await_page_drop(version);
        }
        Ok(OpenedFile { handle, keep_cache, are_attributes_shown, is_shared })
    }

    /// Records that the kernel has sent a request through a handle. So the open of the handle has
    /// ended, and the kernel has dropped the pages that were outdated at this open.
    pub(crate) fn note_kernel_request(&self, file: &OpenFile) {
        if let Some(version) = file.take_page_drop() {
            self.mount().caches.pages_dropped(file.inode.id, version);
        }
    }

    /// Adds a handle for an opened file. The caller must not await between the reply and this call.
    /// If the caller awaited, a dropped future could leave a file open without a handle. `before`
    /// is the result of [`Self::before_open`] when the caller sent the open. Returns the handle,
    /// and whether the file is shared. `is_hold` means that no program uses the handle.
    pub(crate) fn insert_handle(
        &self,
        opened: OpenReply,
        mode: OpenMode,
        before: BeforeOpen,
        is_hold: bool,
    ) -> Result<(HandleId, bool)> {
        let OpenReply { attributes, pattern, is_shared, truncated, synced, .. } = opened;
        let pattern = match checked(attributes.inode, pattern) {
            Ok(pattern) => pattern,
            Err(error) => {
                self.close_without_handle(attributes.inode, mode);
                return Err(error);
            }
        };
        let mount = self.mount();
        let inode = mount.inodes.open(attributes.inode);
        inode.observe(&attributes, before.sent);
        if let Some(outdated) = inode.generation_opened(pattern.generation) {
            self.expire_pattern(&inode, outdated);
        }
        inode.pattern_opened(&pattern);
        inode.chunks_truncated(&truncated);
        if !synced.is_empty() {
            let chunk_files = synced.numbers().filter_map(|number| pattern.chunk_file_at(number));
            let key = |(component, index)| pattern_key(inode.id, &pattern, component, index);
            let keys: Vec<_> = chunk_files.map(key).collect();
            inode.recorded(&keys, attributes.truncate_generation);
        }
        // Before the reply arrived, other clients may have opened the file, or this mount may have
        // changed it. From now on the table contains the inode, so its state records later
        // notifications and changes.
        let is_notified =
            mount.notifications.recent.has_come_since(before.notifications, attributes.inode);
        let is_changed = mount.inodes.changed.has_come_since(before.changes, attributes.inode);
        if is_shared || is_notified || is_changed {
            mount.share(&inode);
        }
        let is_shared = inode.is_shared();
        mount.xattr_absence.note(&attributes, before.sent);
        let file = match is_hold {
            true => OpenFile::new_hold(inode, mode, pattern),
            false => OpenFile::new(inode, mode, pattern),
        };
        Ok((mount.handles.insert(file), is_shared))
    }
}

fn pattern_key(
    inode: InodeId,
    pattern: &StripePattern,
    component: u16,
    index: u16,
) -> ChunkFileKey {
    ChunkFileKey { inode, generation: pattern.generation, component, index }
}

fn checked(inode: InodeId, pattern: Option<StripePattern>) -> Result<StripePattern> {
    let missing = || Error::new(ErrorCode::Protocol, "the reply of metadata has no stripe pattern");
    pattern
        .ok_or_else(missing)
        .and_then(|pattern| pattern.check().map(|()| pattern))
        .map_err(|error| error.within(format_args!("cannot open file {inode}")))
}
