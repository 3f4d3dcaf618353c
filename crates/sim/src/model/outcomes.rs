//! Computes the current outcome of each operation, which is a reply or an error. This module does
//! not change the model.

use super::{Inode, Model, Outcome, is_acl};
use crate::operation::{Op, Summary};
use skep_types::{DEFAULT_ACL, ErrorCode, FileKind, InodeId};
use skep_wire::metadata as md;

impl Model {
    /// Returns the outcome of the operation in the current state. For a modifying operation,
    /// `Success` stands for any reply that is not an error.
    pub(crate) fn outcome(&self, op: &Op) -> Outcome {
        match op {
            Op::Lookup(it) => {
                let inode = self.entry(it.directory, &it.name)?.ok_or(ErrorCode::NotFound)?;
                Ok(Summary::Entry(inode, self.kind(inode)?))
            }
            Op::GetAttributes(md::GetAttributes { inode })
            | Op::AwaitTruncation(md::AwaitTruncation { inode }) => {
                let found = self.inode(*inode)?;
                let is_directory = found.kind == FileKind::Directory;
                Ok(Summary::Attributes {
                    inode: *inode,
                    kind: found.kind,
                    links: if is_directory { 0 } else { found.links },
                    size: if is_directory { 0 } else { found.size },
                    permissions: found.permissions,
                    has_acl: found.has_acl(),
                    project: (found.project, found.hands_down_project),
                })
            }
            Op::ReadLink(it) => {
                let found = self.inode(it.inode)?;
                match found.kind {
                    FileKind::Symlink => Ok(Summary::Bytes(found.link_target.clone())),
                    _ => Err(ErrorCode::InvalidArgument),
                }
            }
            Op::GetXattr(it) => {
                let value = self.inode(it.inode)?.xattrs.get(&it.name.0);
                value.map(|it| Summary::Bytes(it.clone())).ok_or(ErrorCode::NoAttribute)
            }
            Op::ListXattrs(it) => {
                Ok(Summary::Names(self.inode(it.inode)?.xattrs.keys().cloned().collect()))
            }
            Op::ReadDirectory(it) => self.directory(it.directory).map(|_| Summary::Success),
            Op::CloseMany(_) | Op::WaitLock(_) | Op::EndWait(_) | Op::SyncInline(_) => {
                Ok(Summary::Success)
            }
            Op::ReadInline(it) => self.read_inline(it),
            Op::Create(it) => self.create_outcome(it),
            Op::CreateUnnamed(it) => self.directory(it.directory).map(|_| Summary::Success),
            Op::Link(it) => self.link_outcome(it),
            Op::Rename(it) => self.rename_outcome(it),
            Op::Exchange(it) => self.exchange_outcome(it),
            Op::Unlink(_) | Op::RemoveDirectory(_) | Op::MakeDirectory(_) | Op::MakeSymlink(_) => {
                self.entry_outcome(op)
            }
            _ => self.inode_outcome(op),
        }
        // `apply` checks the contents of a modifying operation's reply.
        .map(|summary| if op.modifies() { Summary::Success } else { summary })
    }

    fn create_outcome(&self, it: &md::Create) -> Outcome {
        let Some(found) = self.entry(it.directory, &it.name)? else { return Ok(Summary::Success) };
        if it.exclusive || it.open == md::OpenMode::No {
            return Err(ErrorCode::Exists);
        }
        match self.kind(found)? {
            FileKind::Directory => Err(ErrorCode::IsDirectory),
            FileKind::Regular if self.group(found) == self.group(it.directory) => {
                Ok(Summary::Success)
            }
            _ => Err(ErrorCode::Exists),
        }
    }

    fn link_outcome(&self, it: &md::Link) -> Outcome {
        if self.entry(it.directory, &it.name)?.is_some() {
            return Err(ErrorCode::Exists);
        }
        let inode = self.inode(it.inode)?;
        match (inode.kind, inode.links) {
            (FileKind::Directory, _) => Err(ErrorCode::NotPermitted),
            (_, 0) if !inode.may_be_named => Err(ErrorCode::NotFound),
            _ => self.check_project(it.inode, it.directory).map(|()| Summary::Success),
        }
    }

    fn entry_outcome(&self, op: &Op) -> Outcome {
        match op {
            Op::MakeDirectory(md::MakeDirectory { directory, name, .. })
            | Op::MakeSymlink(md::MakeSymlink { directory, name, .. }) => {
                match self.entry(*directory, name)? {
                    Some(_) => Err(ErrorCode::Exists),
                    None => Ok(Summary::Success),
                }
            }
            Op::Unlink(it) => {
                let found = self.entry(it.directory, &it.name)?.ok_or(ErrorCode::NotFound)?;
                match self.kind(found)? {
                    FileKind::Directory => Err(ErrorCode::IsDirectory),
                    _ => Ok(Summary::Success),
                }
            }
            Op::RemoveDirectory(it) => {
                let found = self.entry(it.directory, &it.name)?.ok_or(ErrorCode::NotFound)?;
                let found = self.inode(found)?;
                match found.kind {
                    FileKind::Directory if found.entries.is_empty() => Ok(Summary::Success),
                    FileKind::Directory => Err(ErrorCode::NotEmpty),
                    _ => Err(ErrorCode::NotDirectory),
                }
            }
            _ => Ok(Summary::Success),
        }
    }

    fn rename_outcome(&self, it: &md::Rename) -> Outcome {
        self.directory(it.to_directory)?;
        let from = self.entry(it.from_directory, &it.from_name)?.ok_or(ErrorCode::NotFound)?;
        let is_directory = self.kind(from)? == FileKind::Directory;
        let existing = self.entry(it.to_directory, &it.to_name)?;
        if let Some(existing) = existing {
            if it.no_replace {
                return Err(ErrorCode::Exists);
            }
            if existing == from {
                return Ok(Summary::Success);
            }
            match (is_directory, self.kind(existing)? == FileKind::Directory) {
                (true, false) => return Err(ErrorCode::NotDirectory),
                (false, true) => return Err(ErrorCode::IsDirectory),
                _ => {}
            }
        }
        if is_directory && it.from_directory != it.to_directory {
            self.check_no_loop(from, it.to_directory)?;
        }
        self.check_project(from, it.to_directory)?;
        match existing.map(|inode| self.inode(inode)).transpose()? {
            Some(existing) if !existing.entries.is_empty() => Err(ErrorCode::NotEmpty),
            _ => Ok(Summary::Success),
        }
    }

    fn exchange_outcome(&self, it: &md::Exchange) -> Outcome {
        self.directory(it.to_directory)?;
        let first = self.entry(it.from_directory, &it.from_name)?.ok_or(ErrorCode::NotFound)?;
        let second = self.entry(it.to_directory, &it.to_name)?.ok_or(ErrorCode::NotFound)?;
        if first != second && it.from_directory != it.to_directory {
            for (moved, to) in [(first, it.to_directory), (second, it.from_directory)] {
                if self.kind(moved)? == FileKind::Directory {
                    self.check_no_loop(moved, to)?;
                }
            }
        }
        if first != second {
            self.check_project(first, it.to_directory)?;
            self.check_project(second, it.from_directory)?;
        }
        Ok(Summary::Success)
    }

    /// Returns an error if the directory `to` accepts only entries of one project, and the inode
    /// has another project.
    fn check_project(&self, moved: InodeId, to: InodeId) -> Result<(), ErrorCode> {
        let (moved, to) = (self.inode(moved)?, self.directory(to)?);
        if to.hands_down_project && to.project != moved.project {
            Err(ErrorCode::CrossDevice)
        } else {
            Ok(())
        }
    }

    /// Returns an error if the inode is a directory and `to` is below this directory.
    fn check_no_loop(&self, moved: InodeId, to: InodeId) -> Result<(), ErrorCode> {
        let mut at = to;
        while at != InodeId::ROOT {
            if at == moved {
                return Err(ErrorCode::InvalidArgument);
            }
            at = self.inode(at)?.parent;
        }
        Ok(())
    }

    fn inode_outcome(&self, op: &Op) -> Outcome {
        let inode = self.inode(op.home())?;
        let refused = match op {
            Op::Open(it) => match inode.kind {
                FileKind::Regular if it.must_have_name && inode.links == 0 => {
                    Some(ErrorCode::Stale)
                }
                FileKind::Regular => None,
                FileKind::Directory => Some(ErrorCode::IsDirectory),
                _ => Some(ErrorCode::InvalidArgument),
            },
            Op::WriteInline(it) => {
                let end = it.offset + it.bytes.len() as u64;
                let file = self.inline_file(it.inode, it.generation, end);
                let has_moved = |file: &Inode| {
                    it.truncate_generation != file.truncate_generation
                        || (it.appends && it.offset < file.size)
                };
                match file {
                    Ok(file) => has_moved(file).then_some(ErrorCode::EndMoved),
                    Err(code) => Some(code),
                }
            }
            Op::RemoveInline(it) => self.inline_file(it.inode, it.generation, 0).err(),
            Op::ReportWritten(_) => {
                (inode.kind != FileKind::Regular).then_some(ErrorCode::InvalidArgument)
            }
            Op::SetAttributes(it) => match inode.kind {
                _ if it.size.is_none() => None,
                FileKind::Regular => None,
                FileKind::Directory => Some(ErrorCode::IsDirectory),
                _ => Some(ErrorCode::InvalidArgument),
            },
            Op::SetXattr(it) if is_acl(&it.name) => match inode.kind {
                FileKind::Symlink => Some(ErrorCode::Unsupported),
                FileKind::Directory => None,
                _ if it.name.0 == DEFAULT_ACL => Some(ErrorCode::PermissionDenied),
                _ => None,
            },
            Op::SetPattern(it) => {
                let holds_nothing = inode.size == 0 && inode.high_water == 0;
                match inode.kind {
                    _ if it.uid != 0 => Some(ErrorCode::NotPermitted),
                    FileKind::Directory => None,
                    FileKind::Regular if it.pattern.is_none() => Some(ErrorCode::NotPermitted),
                    FileKind::Regular if inode.opens.is_empty() && holds_nothing => None,
                    FileKind::Regular => Some(ErrorCode::InUse),
                    _ => Some(ErrorCode::InvalidArgument),
                }
            }
            Op::SetXattr(it) => match (it.mode, inode.xattrs.contains_key(&it.name.0)) {
                (md::XattrMode::Create, true) => Some(ErrorCode::Exists),
                (md::XattrMode::Replace, false) => Some(ErrorCode::NoAttribute),
                _ => None,
            },
            Op::RemoveXattr(it) if !inode.xattrs.contains_key(&it.name.0) => {
                Some(ErrorCode::NoAttribute)
            }
            _ => None,
        };
        refused.map_or(Ok(Summary::Success), Err)
    }

    /// Accepts the success of a rename that exchanges two entries on different targets, although
    /// the project check of the model fails. Such an exchange locks only the name in the first
    /// directory, and not the directory itself. So the directory's project settings may change in
    /// the meantime.
    pub(super) fn accept_unlocked_exchange(&self, op: &Op, code: ErrorCode) -> Outcome {
        match op {
            Op::Exchange(it)
                if code == ErrorCode::CrossDevice
                    && self.group(it.from_directory) != self.group(it.to_directory) =>
            {
                Ok(Summary::Success)
            }
            _ => Err(code),
        }
    }
}
