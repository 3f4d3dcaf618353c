//! Operations on names: look up, make, remove, rename, link.

use crate::file_system::{CreateRequest, FileSystem, RenameRequest};
use crate::reply::{Answer, Failure};
use skep_types::{ErrorCode, InodeId};
use skep_wire::metadata::NewInode;

type Outcome = Result<Answer, Failure>;

pub(crate) async fn lookup(fs: &impl FileSystem, directory: InodeId, name: &[u8]) -> Outcome {
    match fs.lookup(directory, name).await {
        Ok(attributes) => Ok(Answer::Entry(attributes)),
        // As an answer it may be remembered, for as long as names may be; as an error it isn't.
        Err(error) if error.code() == ErrorCode::NotFound => Ok(Answer::NoEntry),
        Err(error) => Err(error.into()),
    }
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
    Ok(Answer::Entry(fs.create(request).await?.0))
}

/// Makes and opens a file. The kernel asks for it when it found no entry; if one has appeared since,
/// permissions on it were never checked, so it isn't opened here: on `ESTALE` the kernel looks the
/// name up again and goes the way of an existing file.
pub(crate) async fn create(
    fs: &impl FileSystem,
    request: CreateRequest,
    exclusive: bool,
) -> Outcome {
    match fs.create(request).await {
        Ok((attributes, Some(handle))) => Ok(Answer::Created(attributes, handle)),
        Ok((_, None)) => Err(Failure::Errno(libc::EIO)),
        Err(error) if error.code() == ErrorCode::Exists && !exclusive => {
            Err(Failure::Errno(libc::ESTALE))
        }
        Err(error) => Err(error.into()),
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

pub(crate) async fn rename(fs: &impl FileSystem, request: RenameRequest) -> Outcome {
    match fs.rename(request).await {
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
