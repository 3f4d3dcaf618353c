//! Notifications that make the kernel drop cached attributes and pages of an inode
//! (`FUSE_NOTIFY_INVAL_INODE`).

// The `record!` macro makes its structs `pub`, although this module is private to the crate.
#![allow(unreachable_pub)]

use crate::abi::{OUT_HEADER_BYTES, OutHeader};
use crate::transport::kernel;
use skep_env::Buf;
use skep_types::InodeId;
use skep_types::codec::{Codec, Writer, record};
use std::ops::Range;
use std::os::fd::OwnedFd;

/// Value of [`OutHeader::error`] in an invalidation of an inode.
const NOTIFY_INVAL_INODE: u32 = 2;
/// Length of [`InvalInodeOut`] in bytes.
const INVAL_INODE_BYTES: usize = 24;

/// The range of all pages of a file.
pub(crate) const ALL_PAGES: Range<u64> = 0..u64::MAX;

record! {
    /// `fuse_notify_inval_inode_out`.
    pub struct InvalInodeOut {
        pub ino: u64,
        pub offset: i64,
        pub len: i64,
    }
}

/// Makes the kernel drop its cached attributes of a file, so that it requests them again before the
/// next use. Never blocks.
pub(crate) fn invalidate_attributes(device: &OwnedFd, inode: InodeId) {
    // A negative offset means that no pages are dropped.
    notify(device, InvalInodeOut { ino: inode.raw(), offset: -1, len: 0 });
}

/// Makes the kernel drop its cached attributes of a file and its cached pages of a range of the
/// file. The kernel writes back dirty pages of the range first. Blocks until the kernel has written
/// back and dropped the pages.
///
/// # Hazard: deadlock
/// Before the kernel can drop a page, it may have to read or write the page by a request to the
/// calling daemon. So only a thread that serves no requests may call this function.
pub(crate) fn invalidate_pages(device: &OwnedFd, inode: InodeId, pages: Range<u64>) {
    // A length of zero means all pages up to the end of the file.
    let len = i64::try_from(pages.end - pages.start).unwrap_or(0);
    notify(device, InvalInodeOut { ino: inode.raw(), offset: pages.start as i64, len });
}

/// Sends a notification. Only logs an error, because an error means that the kernel caches nothing
/// of the file, or that the mount ends.
fn notify(device: &OwnedFd, notification: InvalInodeOut) {
    let mut w = Writer::new();
    let len = (OUT_HEADER_BYTES + INVAL_INODE_BYTES) as u32;
    OutHeader { len, error: NOTIFY_INVAL_INODE, unique: 0 }.encode(&mut w);
    notification.encode(&mut w);
    if let Err(error) = kernel::write(device, &Buf::copy_of(&w.finish())) {
        tracing::debug!("cannot invalidate inode {} in the kernel: {error:#}", notification.ino);
    }
}
