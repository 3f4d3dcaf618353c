//! The steps in which a call on the shared names takes effect, and its possible results.
//!
//! A call has several parts, and other calls may come between these parts. The kernel of a mount
//! walks to the directories of a call, and looks up one name at a time. Then the kernel sends a
//! single request, which metadata executes in one step. For example, `link` links the file that the
//! kernel has looked up, even if the name has another file at the time of the request.

use crate::shared_call::{NAMES, Recorded, SharedCall, SharedPath, SharedResult, WHOLE};
use crate::shared_tree::{Contents, Directory, Entry, ROOT, SharedTree, Slot};
use rustix::fs::RenameFlags;
use rustix::io::Errno;

/// The bits of [`Progress::seen`] for the length and for the value of the bytes that a call reads.
pub(crate) const LENGTH: u8 = 1;
pub(crate) const VALUE: u8 = 2;

/// A part of a call.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// Finds the directory of the call's first or second path.
    Walk(usize),
    /// Looks up the call's first or second path.
    LookUp(usize),
    /// Reads a directory or the bytes of a file. The call may read each name, the length and the
    /// value of the bytes at a different moment, so several steps may belong to this part.
    See,
    /// Executes the request.
    Act,
}

/// The progress of a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Progress {
    /// The number of calls that have returned.
    pub(crate) returned: usize,
    /// The number of finished parts of the current call.
    done: usize,
    /// The directories of the call's paths.
    parents: [Option<usize>; 2],
    /// The entries that the call has looked up.
    found: [Option<Entry>; 2],
    /// Bit mask of the pieces of the result that [`Part::See`] has found.
    seen: u8,
}

impl Progress {
    /// Returns the progress after the return of the current call.
    fn returns(self) -> Self {
        Self { returned: self.returned + 1, ..Self::default() }
    }

    /// Returns the progress after the next part of the current call.
    fn goes_on(self) -> Self {
        Self { done: self.done + 1, ..self }
    }

    /// Returns the place of a path: a directory and a name. The call must have walked to this
    /// directory.
    fn slot(&self, index: usize, path: SharedPath) -> Option<Slot> {
        match path.directory {
            Some(_) => Some((self.parents[index]?, path.name)),
            None => Some((ROOT, path.name)),
        }
    }
}

/// The progress of a thread after a step of its current call, and the tree after this step.
pub(crate) type Next = (Progress, SharedTree);

/// The current call of a thread, before its next step.
pub(crate) struct CurrentCall<'a> {
    pub(crate) recorded: &'a Recorded,
    /// The number of the directory that the call creates.
    pub(crate) new_directory: usize,
    /// Bit mask of the pieces of the read bytes. A bit is set if another call may have written this
    /// piece during the read.
    pub(crate) concurrent: u8,
    pub(crate) progress: Progress,
    pub(crate) tree: &'a SharedTree,
}

/// Returns the first and the second path of a call.
fn paths(call: SharedCall) -> [Option<SharedPath>; 2] {
    let top = |name| Some(SharedPath { directory: None, name });
    match call {
        SharedCall::Create(path)
        | SharedCall::Unlink(path)
        | SharedCall::Write(path, _)
        | SharedCall::Truncate(path, _)
        | SharedCall::Read(path)
        | SharedCall::LookUp(path) => [Some(path), None],
        SharedCall::MakeDirectory(name) | SharedCall::RemoveDirectory(name) => [top(name), None],
        SharedCall::Rename(from, to, _) | SharedCall::Link(from, to) => [Some(from), Some(to)],
        // The call walks to the directory, and looks up no name in this directory.
        SharedCall::List(directory) => [Some(SharedPath { directory, name: 0 }), None],
    }
}

/// Returns the parts of a call in their order.
fn parts(call: SharedCall) -> Vec<Part> {
    let all = match call {
        SharedCall::Create(_)
        | SharedCall::MakeDirectory(_)
        | SharedCall::Unlink(_)
        | SharedCall::RemoveDirectory(_)
        | SharedCall::LookUp(_) => vec![Part::Walk(0), Part::Act],
        SharedCall::Rename(..) => {
            vec![Part::Walk(0), Part::Walk(1), Part::LookUp(0), Part::LookUp(1), Part::Act]
        }
        SharedCall::Link(..) => vec![Part::Walk(0), Part::LookUp(0), Part::Walk(1), Part::Act],
        SharedCall::Write(..) | SharedCall::Truncate(..) => {
            vec![Part::Walk(0), Part::LookUp(0), Part::Act]
        }
        SharedCall::Read(_) => vec![Part::Walk(0), Part::LookUp(0), Part::See],
        SharedCall::List(_) => vec![Part::Walk(0), Part::See],
    };
    let paths = paths(call);
    let is_needed = |part: &Part| match part {
        Part::Walk(index) => paths[*index].is_some_and(|path| path.directory.is_some()),
        _ => true,
    };
    all.into_iter().filter(is_needed).collect()
}

impl CurrentCall<'_> {
    /// Returns the possible next steps of the call.
    pub(crate) fn next_steps(&self) -> Vec<Next> {
        let call = self.recorded.call;
        let paths = paths(call);
        let next = match parts(call)[self.progress.done] {
            Part::Walk(index) => self.walk(index, paths[index]),
            Part::LookUp(index) => self.look_up(index, paths[index]),
            Part::See => self.see(),
            Part::Act => {
                let mut tree = self.tree.clone();
                let mut next = Vec::new();
                if self.act(&mut tree).is_some() {
                    if matches!(call, SharedCall::Write(..)) {
                        // Until the write has returned, the write may take effect several times
                        // (docs/semantics.md 2.5).
                        next.push((self.progress, tree.clone()));
                    }
                    next.push((self.progress.returns(), tree));
                }
                return next;
            }
        };
        next.map(|progress| (progress, self.tree.clone())).into_iter().collect()
    }

    /// Returns the progress after the failed call if the call's result is one of `errors`.
    fn fails(&self, errors: &[Errno]) -> Option<Progress> {
        self.refuses(errors).map(|()| self.progress.returns())
    }

    /// Whether the result of the call is one of `errors`.
    fn refuses(&self, errors: &[Errno]) -> Option<()> {
        let error = self.recorded.result.err()?;
        errors.contains(&error).then_some(())
    }

    /// Whether the call has succeeded and returned no value.
    fn succeeds(&self) -> Option<()> {
        (self.recorded.result == Ok(SharedResult::Done)).then_some(())
    }

    fn walk(&self, index: usize, path: Option<SharedPath>) -> Option<Progress> {
        match self.tree.entry((ROOT, path?.directory?)) {
            None => self.fails(&[Errno::NOENT]),
            Some(Entry::File(_)) => self.fails(&[Errno::NOTDIR]),
            Some(Entry::Directory(number)) => {
                let mut progress = self.progress.goes_on();
                progress.parents[index] = Some(number);
                Some(progress)
            }
        }
    }

    /// Looks up a path. The kernel refuses the call if the looked-up entries make the call
    /// impossible.
    fn look_up(&self, index: usize, path: Option<SharedPath>) -> Option<Progress> {
        let entry = self.tree.entry(self.progress.slot(index, path?)?);
        let mut progress = self.progress.goes_on();
        progress.found[index] = entry;
        let [source, _] = self.progress.found;
        match (self.recorded.call, entry) {
            (SharedCall::Rename(_, _, flags), _) if index == 1 => {
                if flags.contains(RenameFlags::NOREPLACE) && entry.is_some() {
                    return self.fails(&[Errno::EXIST]);
                }
                if flags.contains(RenameFlags::EXCHANGE) && entry.is_none() {
                    return self.fails(&[Errno::NOENT]);
                }
                if entry == source {
                    // The kernel has found the same file under both names, and sends no request.
                    // The kernel may find this state while another mount renames the file.
                    return self.succeeds().map(|()| self.progress.returns());
                }
                match self.wrong_kind(flags, source, entry) {
                    Some(errors) => self.fails(errors),
                    None => Some(progress),
                }
            }
            (_, None) => self.fails(&[Errno::NOENT]),
            (
                SharedCall::Write(..) | SharedCall::Truncate(..) | SharedCall::Read(_),
                Some(Entry::Directory(_)),
            ) => self.fails(&[Errno::ISDIR]),
            _ => Some(progress),
        }
    }

    /// Returns the errors of a rename that would replace an entry by an entry of another kind.
    /// `None` means that the two kinds are compatible.
    fn wrong_kind(
        &self,
        flags: RenameFlags,
        source: Option<Entry>,
        target: Option<Entry>,
    ) -> Option<&'static [Errno]> {
        if flags.contains(RenameFlags::EXCHANGE) {
            return None;
        }
        match (source?, target?) {
            (Entry::Directory(_), Entry::File(_)) => Some(&[Errno::NOTDIR]),
            // The target is the directory of the source.
            (Entry::File(_), Entry::Directory(it)) if self.progress.parents[0] == Some(it) => {
                Some(&[Errno::NOTEMPTY, Errno::ISDIR])
            }
            (Entry::File(_), Entry::Directory(_)) => Some(&[Errno::ISDIR]),
            _ => None,
        }
    }

    /// Marks all pieces of the result that the tree confirms in its current state.
    fn see(&self) -> Option<Progress> {
        let (seen, all) = match self.recorded.result.ok()? {
            // The caller has checked this result.
            SharedResult::MixedBytes => return Some(self.progress.returns()),
            SharedResult::Bytes(len, byte) => {
                let Some(Entry::File(file)) = self.progress.found[0] else { return None };
                let contents = self.tree.files.get(&file)?;
                let length = if contents.len == len { LENGTH } else { 0 };
                let has_value = len == 0 || (contents.len > 0 && contents.byte == byte);
                let value = if has_value { VALUE } else { 0 };
                (length | value | self.concurrent, LENGTH | VALUE)
            }
            SharedResult::Listed(counts) => {
                let directory = self.progress.parents[0].unwrap_or(ROOT);
                let is_now = |name: &usize| {
                    counts[*name] == usize::from(self.tree.entry((directory, *name)).is_some())
                };
                let seen = (0..NAMES).filter(is_now).fold(0, |seen, name| seen | (1_u8 << name));
                (seen, (1_u8 << NAMES) - 1)
            }
            _ => return None,
        };
        let seen = self.progress.seen | seen;
        match seen == all {
            true => Some(self.progress.returns()),
            // If this step confirms no further piece, the search has already visited the state.
            false => Some(Progress { seen, ..self.progress }),
        }
    }

    /// Executes the request of the call on `tree`. `None` means that the call cannot have its
    /// result in this tree.
    fn act(&self, tree: &mut SharedTree) -> Option<()> {
        let [first, second] = paths(self.recorded.call);
        let slot = self.progress.slot(0, first?)?;
        match self.recorded.call {
            SharedCall::Create(_) => self.create(tree, slot),
            SharedCall::MakeDirectory(_) => {
                if tree.entry(slot).is_some() {
                    return self.refuses(&[Errno::EXIST]);
                }
                tree.directories.insert(self.new_directory, Directory::default());
                tree.set(slot, Some(Entry::Directory(self.new_directory)));
                self.succeeds()
            }
            SharedCall::Unlink(_) => match tree.entry(slot) {
                None => self.refuses(&[Errno::NOENT]),
                Some(Entry::Directory(_)) => self.refuses(&[Errno::ISDIR]),
                Some(Entry::File(_)) => {
                    tree.set(slot, None);
                    self.succeeds()
                }
            },
            SharedCall::RemoveDirectory(_) => match tree.entry(slot) {
                None => self.refuses(&[Errno::NOENT]),
                Some(Entry::File(_)) => self.refuses(&[Errno::NOTDIR]),
                Some(Entry::Directory(it)) if !tree.is_empty(it) => {
                    self.refuses(&[Errno::NOTEMPTY])
                }
                Some(Entry::Directory(it)) => {
                    tree.directories.remove(&it);
                    tree.set(slot, None);
                    self.succeeds()
                }
            },
            SharedCall::Rename(_, _, flags) => {
                self.rename(tree, slot, self.progress.slot(1, second?)?, flags)
            }
            SharedCall::Link(..) => self.link(tree, self.progress.slot(1, second?)?),
            SharedCall::Write(_, byte) => {
                *self.contents(tree)? = Contents { len: WHOLE, byte };
                self.succeeds()
            }
            SharedCall::Truncate(_, len) => {
                let contents = self.contents(tree)?;
                // A truncation extends only an empty file, and the new bytes are zeros.
                let byte = if len == 0 || len > contents.len { 0 } else { contents.byte };
                *contents = Contents { len, byte };
                self.succeeds()
            }
            SharedCall::LookUp(_) => self.find(tree, slot),
            SharedCall::Read(_) | SharedCall::List(_) => None,
        }
    }

    /// Returns the bytes of the file that the call has looked up.
    fn contents<'a>(&self, tree: &'a mut SharedTree) -> Option<&'a mut Contents> {
        match self.progress.found[0]? {
            Entry::File(file) => tree.files.get_mut(&file),
            Entry::Directory(_) => None,
        }
    }

    fn create(&self, tree: &mut SharedTree, slot: Slot) -> Option<()> {
        if !tree.directories.contains_key(&slot.0) {
            return self.refuses(&[Errno::NOENT]);
        }
        if tree.entry(slot).is_some() {
            return self.refuses(&[Errno::EXIST]);
        }
        let Ok(SharedResult::File(ino)) = self.recorded.result else { return None };
        tree.set(slot, Some(Entry::File(ino)));
        // No other file has or had this inode number (docs/semantics.md 1.8).
        tree.files.insert(ino, Contents::default()).is_none().then_some(())
    }

    fn find(&self, tree: &mut SharedTree, slot: Slot) -> Option<()> {
        let Some(entry) = tree.entry(slot) else { return self.refuses(&[Errno::NOENT]) };
        match (entry, self.recorded.result.ok()?) {
            (Entry::File(file), SharedResult::File(ino)) => (file == ino).then_some(()),
            (Entry::Directory(number), SharedResult::Directory(ino)) => {
                let mut others = tree.directories.iter().filter(|(it, _)| **it != number);
                let is_of_other = others.any(|(_, it)| it.ino == Some(ino));
                let directory = tree.directories.get_mut(&number)?;
                let known = *directory.ino.get_or_insert(ino);
                (known == ino && !is_of_other).then_some(())
            }
            _ => None,
        }
    }

    fn rename(
        &self,
        tree: &mut SharedTree,
        from: Slot,
        to: Slot,
        flags: RenameFlags,
    ) -> Option<()> {
        let (source, target) = (tree.entry(from), tree.entry(to));
        if source.is_none() || !tree.directories.contains_key(&to.0) {
            return self.refuses(&[Errno::NOENT]);
        }
        if flags.contains(RenameFlags::NOREPLACE) && target.is_some() {
            return self.refuses(&[Errno::EXIST]);
        }
        let exchanges = flags.contains(RenameFlags::EXCHANGE);
        if exchanges && target.is_none() {
            return self.refuses(&[Errno::NOENT]);
        }
        if source == target {
            return self.succeeds();
        }
        if let Some(errors) = self.wrong_kind(flags, source, target) {
            return self.refuses(errors);
        }
        if let (false, Some(Entry::Directory(replaced))) = (exchanges, target) {
            if !tree.is_empty(replaced) {
                return self.refuses(&[Errno::NOTEMPTY]);
            }
            tree.directories.remove(&replaced);
        }
        tree.set(from, if exchanges { target } else { None });
        tree.set(to, source);
        self.succeeds()
    }

    fn link(&self, tree: &mut SharedTree, to: Slot) -> Option<()> {
        let source = self.progress.found[0]?;
        if !tree.directories.contains_key(&to.0) {
            // The directory of the new name was removed. If the source is a directory, the kernel
            // may refuse the link before metadata detects the removal.
            return match source {
                Entry::Directory(_) => self.refuses(&[Errno::NOENT, Errno::PERM]),
                Entry::File(_) => self.refuses(&[Errno::NOENT]),
            };
        }
        if tree.entry(to).is_some() {
            return self.refuses(&[Errno::EXIST]);
        }
        match source {
            Entry::Directory(_) => self.refuses(&[Errno::PERM]),
            Entry::File(file) if tree.names_of(file) == 0 => self.refuses(&[Errno::NOENT]),
            Entry::File(_) => {
                tree.set(to, Some(source));
                self.succeeds()
            }
        }
    }
}
