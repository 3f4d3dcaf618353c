//! `Create`: creates a file and opens it, or opens the existing file.

use crate::engine::Engine;
use crate::handlers::open;
use crate::namespace::names::check_name;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::InodeRecord;
use skep_types::codec::Bytes;
use skep_types::{ChunkFileSet, Error, ErrorCode, FileKind};
use skep_wire::metadata::{Create, NewInode, Open, OpenMode, OpenReply};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: Create,
) -> Result<OpenReply, Stop> {
    check_name(&request.name)?;
    if matches!(request.kind, FileKind::Directory | FileKind::Symlink) {
        let context = "cannot create a directory or symbolic link by the request `Create`: send \
                       `MakeDirectory` or `MakeSymlink`";
        return Err(Error::new(ErrorCode::InvalidArgument, context).into());
    }
    let mut directory = context.directory(request.directory)?;
    if let Some((_, dentry)) = context.dentry(request.directory, &request.name)? {
        if request.exclusive || request.open == OpenMode::No {
            return Err(ErrorCode::Exists.into());
        }
        return match dentry.kind {
            FileKind::Directory => Err(ErrorCode::IsDirectory.into()),
            FileKind::Regular if context.is_local(dentry.inode)? => {
                let open = Open {
                    inode: dentry.inode,
                    open: request.open,
                    truncate: false,
                    must_have_name: true,
                    inline_limit: 0,
                };
                open::run(context, open)
            }
            // On this error, the client looks the entry up. If another group serves the file, the
            // client then sends an `Open` to that group.
            _ => Err(ErrorCode::Exists.into()),
        };
    }
    let record = new_file(context, &directory, &request)?;
    let inode = record.attributes.inode;
    context.put_inode(&record);
    context.insert_dentry(request.directory, &request.name, inode, request.kind)?;
    context.change_directory(&mut directory, 1, 0);
    if request.kind == FileKind::Regular && request.open != OpenMode::No {
        context.count_first_open(inode, request.open)?;
    }
    context.show_directory(directory);
    Ok(new_file_reply(record))
}

/// Returns the reply for a file that the request has created.
pub(super) fn new_file_reply(record: InodeRecord) -> OpenReply {
    OpenReply {
        created: true,
        attributes: record.attributes,
        pattern: record.pattern,
        is_shared: false,
        truncated: Vec::new(),
        synced: ChunkFileSet::default(),
        inline: None,
        directory: None,
    }
}

/// Returns the inode of a new file, which inherits permissions and stripe pattern from the
/// directory. The caller stores the inode.
pub(super) fn new_file<E: Engine>(
    context: &mut Context<'_, E>,
    directory: &InodeRecord,
    request: &Create,
) -> Result<InodeRecord, Stop> {
    context.check_free_space()?;
    let inode = context.new_inode_id(request.directory.shard())?;
    let inherited = context.inherited(directory, request.kind, &request.new)?;
    let new = NewInode { permissions: inherited.permissions, ..request.new };
    let mut attributes =
        context.new_attributes(inode, request.kind, &new, Some(&directory.attributes));
    attributes.device = request.device;
    attributes.has_acl = inherited.has_acl();
    context.put_acls(inode, &inherited.access, &inherited.default);
    let is_regular = request.kind == FileKind::Regular;
    let (asked, uid) = (request.pattern.as_ref(), request.new.uid);
    let pattern =
        is_regular.then(|| context.new_pattern(directory, asked, uid, inode)).transpose()?;
    Ok(InodeRecord {
        attributes,
        parent: request.directory,
        pattern,
        link_target: Bytes::default(),
        has_xattrs: inherited.has_acl(),
        high_water: 0,
        may_be_named: false,
        synced_chunk_files: ChunkFileSet::default(),
    })
}
