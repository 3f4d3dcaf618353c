//! Operations on names: look up, make, remove, rename, link.

use crate::file_system::FileSystem;
use crate::reply::{Answer, Failure};
use crate::request::{Rename, RenameKind};
use skep_client::{CreateRequest, Created, NewInode, OpenMode};
use skep_types::{ErrorCode, InodeId, PatternRequest};

type Outcome = Result<Answer, Failure>;

/// Looks a name up. `.` and `..` are asked for when an inode is found by its handle.
pub(crate) async fn lookup(fs: &impl FileSystem, directory: InodeId, name: &[u8]) -> Outcome {
    match name {
        b"." => return Ok(Answer::Entry(fs.attributes(directory).await?)),
        b".." => return Ok(Answer::Entry(fs.parent(directory).await?)),
        _ => {}
    }
    // A name that is missing is an error, which the kernel doesn't remember. It could, but programs
    // on several hosts look for a file that one of them makes, tell each other, and open it.
    Ok(Answer::Entry(fs.lookup(directory, name).await?))
}

pub(crate) async fn make_symlink(
    fs: &impl FileSystem,
    directory: InodeId,
    name: &[u8],
    link_target: &[u8],
    new: NewInode,
) -> Outcome {
    Ok(Answer::Entry(fs.make_symlink(directory, name, link_target, new).await?))
}

pub(crate) async fn make_directory(
    fs: &impl FileSystem,
    directory: InodeId,
    name: &[u8],
    new: NewInode,
) -> Outcome {
    Ok(Answer::Entry(fs.make_directory(directory, name, new).await?))
}

pub(crate) async fn make_node(fs: &impl FileSystem, request: CreateRequest) -> Outcome {
    Ok(Answer::Entry(fs.create(request).await?.attributes))
}

/// Makes and opens a file. The kernel asks for it when it found no entry; if one has appeared
/// since, permissions on it were never checked, so it isn't opened here: on `ESTALE` the kernel
/// looks the name up again and goes the way of an existing file.
pub(crate) async fn create(
    fs: &impl FileSystem,
    request: CreateRequest,
    is_exclusive: bool,
    is_direct: bool,
) -> Outcome {
    match fs.create(request).await {
        Ok(Created { attributes, handle: Some(handle), .. }) => {
            Ok(Answer::Created(attributes, handle, is_direct))
        }
        Ok(Created { handle: None, .. }) => Err(Failure::Errno(libc::EIO)),
        Err(error) if error.code() == ErrorCode::Exists && !is_exclusive => {
            Err(Failure::Errno(libc::ESTALE))
        }
        Err(error) => Err(error.into()),
    }
}

pub(crate) async fn create_unnamed(
    fs: &impl FileSystem,
    directory: InodeId,
    new: NewInode,
    mode: OpenMode,
    pattern: Option<PatternRequest>,
) -> Outcome {
    match fs.create_unnamed(directory, new, mode, pattern).await? {
        Created { attributes, handle: Some(handle), .. } => {
            Ok(Answer::Created(attributes, handle, false))
        }
        Created { handle: None, .. } => Err(Failure::Errno(libc::EIO)),
    }
}

pub(crate) async fn unlink(fs: &impl FileSystem, directory: InodeId, name: &[u8]) -> Outcome {
    fs.unlink(directory, name).await?;
    Ok(Answer::Empty)
}

pub(crate) async fn remove_directory(
    fs: &impl FileSystem,
    directory: InodeId,
    name: &[u8],
) -> Outcome {
    fs.remove_directory(directory, name).await?;
    Ok(Answer::Empty)
}

pub(crate) async fn rename(fs: &impl FileSystem, rename: Rename) -> Outcome {
    let Rename { from_directory, from_name, to_directory, to_name, kind, whiteout } = rename;
    let done = match kind {
        RenameKind::Exchange => {
            fs.exchange(from_directory, &from_name, to_directory, &to_name).await
        }
        RenameKind::Replace | RenameKind::OnlyIfFree => {
            let no_replace = kind == RenameKind::OnlyIfFree;
            let (from, to) = (from_directory, to_directory);
            fs.rename(from, &from_name, to, &to_name, no_replace, whiteout).await
        }
    };
    match done {
        Ok(()) => Ok(Answer::Empty),
        // A directory into itself: POSIX wants EINVAL here, where other uses are EBUSY.
        Err(error) if error.code() == ErrorCode::InUse => Err(Failure::Errno(libc::EINVAL)),
        Err(error) => Err(error.into()),
    }
}

pub(crate) async fn link(
    fs: &impl FileSystem,
    inode: InodeId,
    directory: InodeId,
    name: &[u8],
) -> Outcome {
    Ok(Answer::Entry(fs.link(inode, directory, name).await?))
}

pub(crate) async fn read_link(fs: &impl FileSystem, inode: InodeId) -> Outcome {
    Ok(Answer::Bytes(fs.read_link(inode).await?))
}
