//! The operations of clients. Each operation is one request message.

use skep_types::codec::Codec;
use skep_types::{FileKind, InodeId};
use skep_wire::Request;
use skep_wire::{file_locks as fl, inline as il, metadata as md};

macro_rules! operations {
    ($($module:ident::$name:ident $home:ident $([$index:literal])? $(.$field:ident)?,)*) => {
        /// One request of a client.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub(crate) enum Op {
            $(
                /// The request with the message of the same name.
                $name($module::$name),
            )*
        }

        impl Op {
            /// Returns the id of the request's message type.
            pub(crate) fn message(&self) -> u16 {
                match self { $(Self::$name(_) => <$module::$name as Request>::ID,)* }
            }

            /// Returns the encoded body of the request.
            pub(crate) fn body(&self) -> Vec<u8> {
                match self { $(Self::$name(it) => it.to_bytes(),)* }
            }

            /// Whether the request is modifying. A client must send such a request in a slot.
            pub(crate) fn modifies(&self) -> bool {
                match self { $(Self::$name(_) => <$module::$name as Request>::MODIFIES,)* }
            }

            /// Returns the inode whose group serves the request.
            pub(crate) fn home(&self) -> InodeId {
                match self { $(Self::$name(it) => it.$home $([$index])? $(.$field)?,)* }
            }
        }
    };
}

operations! {
    md::Create directory,
    md::CreateUnnamed directory,
    md::Open inode,
    md::Close inode,
    md::CloseMany files[0].inode,
    md::ReportWritten inode,
    md::SetAttributes inode,
    md::MakeDirectory directory,
    md::MakeSymlink directory,
    md::Link directory,
    md::Unlink directory,
    md::RemoveDirectory directory,
    md::Rename to_directory,
    md::Exchange to_directory,
    md::SetXattr inode,
    md::RemoveXattr inode,
    md::SetPattern inode,
    md::Lookup directory,
    md::GetAttributes inode,
    md::AwaitTruncation inode,
    md::ReadLink inode,
    md::GetXattr inode,
    md::ListXattrs inode,
    md::ReadDirectory directory,
    il::WriteInline inode,
    il::ReadInline inode,
    il::SyncInline inode,
    il::RemoveInline inode,
    fl::SetLock lock.inode,
    fl::WaitLock lock.inode,
    fl::EndWait inode,
}

impl Op {
    /// Whether the operation needs disk space. A target with a full disk may refuse such an
    /// operation.
    pub(crate) fn adds(&self) -> bool {
        matches!(
            self,
            Self::Create(_)
                | Self::CreateUnnamed(_)
                | Self::MakeDirectory(_)
                | Self::MakeSymlink(_)
                | Self::Link(_)
                | Self::Rename(_)
                | Self::SetXattr(_)
                | Self::SetPattern(_)
                | Self::WriteInline(_)
        )
    }

    /// Whether the operation belongs to a wait for a lock. An operation of a wait needs no slot,
    /// but depends on its session.
    pub(crate) fn is_of_wait(&self) -> bool {
        matches!(self, Self::WaitLock(_) | Self::EndWait(_))
    }

    /// Whether a client can send the request only for a handle that is open in the request's
    /// session.
    pub(crate) fn needs_handle(&self) -> bool {
        matches!(
            self,
            Self::Close(_) | Self::CloseMany(_) | Self::WriteInline(_) | Self::RemoveInline(_)
        )
    }

    /// Whether all effects of the request end when its session ends. A client repeats such a
    /// request in its next session, without asking for the outcome of the first attempt.
    pub(crate) fn ends_with_session(&self) -> bool {
        match self {
            Self::Open(it) => !it.truncate,
            Self::CreateUnnamed(_) | Self::SetLock(_) => true,
            _ => false,
        }
    }

    /// Returns the request that reopens this request's file after the loss of its session. `reply`
    /// is the target's reply to this request. `None` means that this request did not open a file.
    pub(crate) fn open_again(&self, reply: &[u8]) -> Option<Self> {
        let open = match self {
            Self::Create(it) if it.open != md::OpenMode::No => it.open,
            Self::Open(it) => it.open,
            _ => return None,
        };
        let opened = md::OpenReply::from_bytes(reply).ok().filter(|it| it.pattern.is_some())?;
        let inode = opened.attributes.inode;
        Some(Self::Open(md::Open {
            inode,
            open,
            truncate: false,
            must_have_name: true,
            inline_limit: 0,
        }))
    }

    /// Returns the inode that the request created, according to the reply. `None` means that the
    /// request creates no inode, or that the request found an existing inode.
    pub(crate) fn created(&self, reply: &[u8]) -> Option<InodeId> {
        match self {
            Self::Create(_) | Self::CreateUnnamed(_) => {
                let opened = md::OpenReply::from_bytes(reply).ok().filter(|it| it.created)?;
                Some(opened.attributes.inode)
            }
            Self::MakeDirectory(_) | Self::MakeSymlink(_) => {
                md::NewEntryReply::from_bytes(reply).ok().map(|reply| reply.entry.inode)
            }
            _ => None,
        }
    }

    /// Returns the attributes in the reply, if they are the attributes of the inode whose group
    /// serves the request.
    pub(crate) fn attributes(&self, reply: &[u8]) -> Option<skep_types::Attributes> {
        let attributes = match self {
            Self::Open(_) => md::OpenReply::from_bytes(reply).ok()?.attributes,
            Self::Create(_) => md::OpenReply::from_bytes(reply).ok()?.directory?,
            Self::MakeDirectory(_) | Self::MakeSymlink(_) | Self::Link(_) => {
                md::NewEntryReply::from_bytes(reply).ok()?.directory?
            }
            Self::Unlink(_) | Self::RemoveDirectory(_) | Self::Rename(_) => {
                md::NamesReply::from_bytes(reply).ok()?.directory?
            }
            Self::SetAttributes(_) => md::SetAttributesReply::from_bytes(reply).ok()?.attributes,
            Self::GetAttributes(_) | Self::Close(_) | Self::ReportWritten(_) => {
                md::AttributesReply::from_bytes(reply).ok()?.attributes
            }
            Self::AwaitTruncation(_) => {
                md::AwaitTruncationReply::from_bytes(reply).ok()?.attributes
            }
            Self::WriteInline(_) => il::WriteInlineReply::from_bytes(reply).ok()?.attributes,
            _ => return None,
        };
        Some(attributes)
    }

    /// Returns the file that the operation truncates or extends, and the new size of the file.
    pub(crate) fn truncations(&self) -> Option<(InodeId, u64)> {
        match self {
            Self::SetAttributes(it) => it.size.map(|size| (it.inode, size)),
            Self::Open(it) => it.truncate.then_some((it.inode, 0)),
            _ => None,
        }
    }
}

/// The content of a reply, reduced to the parts that the reference model covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Summary {
    /// Success without other content.
    Success,
    /// A directory entry: the inode and its kind.
    Entry(InodeId, FileKind),
    /// Attributes of an inode. For a directory, the summary sets link count and size to zero,
    /// because targets update both with a delay in transactions with other targets.
    Attributes {
        /// Id of the inode.
        inode: InodeId,
        /// Kind of the inode.
        kind: FileKind,
        /// Link count of the inode.
        links: u32,
        /// Size of the inode.
        size: u64,
        /// Permission bits of the inode.
        permissions: u32,
        /// Whether the inode has access control lists.
        has_acl: bool,
        /// The project of the inode, and whether new entries of the directory inherit it.
        project: (u32, bool),
    },
    /// The value of an extended attribute, or the target path of a symbolic link.
    Bytes(Vec<u8>),
    /// Names of extended attributes.
    Names(Vec<Vec<u8>>),
}

impl Summary {
    /// Returns the summary of attributes.
    pub(crate) fn of(attributes: &skep_types::Attributes) -> Self {
        let is_directory = attributes.kind == FileKind::Directory;
        Self::Attributes {
            inode: attributes.inode,
            kind: attributes.kind,
            links: if is_directory { 0 } else { attributes.links },
            size: if is_directory { 0 } else { attributes.size },
            permissions: attributes.permissions,
            has_acl: attributes.has_acl,
            project: (attributes.project, attributes.hands_down_project),
        }
    }

    /// Returns the summary of the reply to an operation. `None` means that the reply is malformed.
    pub(crate) fn of_reply(op: &Op, body: &[u8]) -> Option<Self> {
        Some(match op {
            Op::Lookup(_) => {
                let reply = md::EntryReply::from_bytes(body).ok()?;
                Self::Entry(reply.inode, reply.kind)
            }
            Op::GetAttributes(_) => {
                Self::of(&md::AttributesReply::from_bytes(body).ok()?.attributes)
            }
            Op::AwaitTruncation(_) => {
                Self::of(&md::AwaitTruncationReply::from_bytes(body).ok()?.attributes)
            }
            Op::ReadLink(_) | Op::GetXattr(_) => {
                Self::Bytes(md::BytesReply::from_bytes(body).ok()?.bytes.0)
            }
            Op::ReadInline(_) => Self::Bytes(il::ReadInlineReply::from_bytes(body).ok()?.bytes.0),
            Op::ListXattrs(_) => {
                let names = md::XattrNames::from_bytes(body).ok()?.names;
                Self::Names(names.into_iter().map(|name| name.0).collect())
            }
            _ => Self::Success,
        })
    }
}
