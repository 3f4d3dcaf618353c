//! Reads the messages that the kernel sends through `/dev/fuse` even if requests go through
//! io_uring: `INTERRUPT`, which ends the wait for a lock (`waits`), and `FORGET`. Neither message
//! has a reply. But the daemon must read both, because the kernel stores each message until the
//! daemon reads it.

use super::kernel;
use crate::abi::{self, InHeader, InterruptIn, Opcode, OutHeader};
use crate::limits;
use crate::waits::Interrupts;
use io_uring::{opcode, types};
use skep_env::Buf;
use skep_types::codec::{Codec, Reader};
use skep_types::{Error, InodeId, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Length in bytes of the read buffer. The kernel refuses a buffer that is shorter than its largest
/// request, although no request arrives through this descriptor.
const MEMORY_BYTES: usize = 4096 + limits::MAX_IO_BYTES;

/// Reads and applies messages of the kernel until the mount ends.
///
/// # Errors
/// Fails if the kernel refuses a read.
pub(crate) async fn run(fd: Arc<OwnedFd>, interrupts: Arc<Interrupts>) -> Result<()> {
    let memory = Buf::new(MEMORY_BYTES);
    loop {
        match kernel::read(&fd, &memory) {
            Ok(len) => {
                if apply(&fd, &interrupts, &memory.bytes()[..len]) {
                    skep_env::sleep(limits::FORGET_PAUSE).await;
                }
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => {
                    let entry =
                        opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), libc::POLLIN as u32);
                    // SAFETY: the entry points to no memory, and the operation keeps the descriptor
                    // open.
                    let readable = unsafe {
                        skep_env::submit(entry.build().into(), Box::new(Arc::clone(&fd)))
                    };
                    readable.await;
                }
                Some(libc::EINTR | libc::ENOENT) => {}
                Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(()),
                _ => return Err(Error::from(error).within("cannot read from /dev/fuse")),
            },
        }
    }
}

/// Applies one message. Returns true if it is a `FORGET`.
fn apply(fd: &OwnedFd, interrupts: &Interrupts, bytes: &[u8]) -> bool {
    let mut reader = Reader::new(bytes);
    let Ok(header) = InHeader::decode(&mut reader) else { return false };
    match Opcode::from_number(header.opcode) {
        Some(Opcode::Forget | Opcode::BatchForget) => return true,
        Some(Opcode::Interrupt) => {
            if let Ok(InterruptIn { unique }) = InterruptIn::decode(&mut reader) {
                interrupts.interrupt(unique);
            }
        }
        Some(Opcode::NotifyReply) => {}
        // No known kernel sends other messages. If a newer kernel sends another request, the reply
        // lets the caller continue. The reply must not be ENOSYS, because the kernel would then
        // never send a request of this kind again.
        _ => {
            tracing::error!(
                "the kernel sent a request of process {} for inode {} (opcode {}) through \
                 /dev/fuse instead of io_uring; the request fails with EIO; if the kernel repeats \
                 this, mount with --transport device",
                header.pid,
                InodeId::new(header.nodeid),
                header.opcode
            );
            let reply = OutHeader {
                len: abi::OUT_HEADER_BYTES as u32,
                error: -libc::EIO as u32,
                unique: header.unique,
            };
            let _ = kernel::write(fd, &Buf::copy_of(&reply.to_bytes()));
        }
    }
    false
}
