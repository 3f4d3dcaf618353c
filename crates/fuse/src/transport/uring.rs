//! FUSE over io_uring (Linux 6.14). The kernel has one queue for each CPU, and puts a request into
//! the queue of the CPU on which its caller runs. One command of the daemon both sends a reply and
//! fetches the next request.
//!
//! An entry of a queue is a port: 288 bytes of headers and a payload. The port registers the
//! addresses of both with the kernel once. The headers contain the header of the request or reply
//! at offset 0, the operation's fixed struct at 128, and the fields of the entry itself at 256. The
//! payload contains the names and data of a request, or the body of a reply. `FORGET` and
//! `INTERRUPT` still arrive through `/dev/fuse` (`control`).
//!
//! The kernel sends no request until the queue of every possible CPU has an entry.

use crate::abi::{self, InHeader, OutHeader};
use crate::limits;
use crate::request::RawRequest;
use crate::worker::{Port, Reply};
use io_uring::{opcode, squeue, types};
use skep_env::Buf;
use skep_types::codec::{Codec, Reader};
use std::any::Any;
use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Length of `struct fuse_uring_req_header` in bytes.
const HEADER_BYTES: usize = 288;
const ARGUMENTS_AT: usize = 128;
const ARGUMENTS_BYTES: usize = 128;
const COMMIT_ID_AT: usize = 264;
const PAYLOAD_LEN_AT: usize = 272;

/// The memory whose addresses are registered with the kernel.
struct Memory {
    header: Buf,
    payload: Buf,
    vectors: [libc::iovec; 2],
    fd: Arc<OwnedFd>,
}

/// A port: one entry of one queue.
pub(crate) struct UringPort {
    memory: Rc<Memory>,
    queue: u16,
    commit_id: Cell<u64>,
}

impl UringPort {
    /// Creates an entry for the queue of a CPU. The first exchange of the port registers the entry
    /// with the kernel.
    pub(crate) fn new(fd: Arc<OwnedFd>, queue: u16) -> Self {
        let header = Buf::new(HEADER_BYTES);
        let payload = Buf::new(limits::MAX_IO_BYTES);
        let vectors = [
            libc::iovec { iov_base: header.as_ptr().cast(), iov_len: header.len() },
            libc::iovec { iov_base: payload.as_ptr().cast(), iov_len: payload.len() },
        ];
        let memory = Rc::new(Memory { header, payload, vectors, fd });
        Self { memory, queue, commit_id: Cell::new(0) }
    }

    fn command(&self, operation: u32) -> squeue::Entry128 {
        let mut command = [0_u8; 80];
        command[8..16].copy_from_slice(&self.commit_id.get().to_le_bytes());
        command[16..18].copy_from_slice(&self.queue.to_le_bytes());
        let entry =
            opcode::UringCmd80::new(types::Fd(self.memory.fd.as_raw_fd()), operation).cmd(command);
        if operation != REGISTER {
            return entry.build();
        }
        let entry = entry.addr(Some(self.memory.vectors.as_ptr() as u64)).build();
        // The number of vectors goes to `sqe->len`, for which the builder has no method. SAFETY: an
        // entry consists of 128 plain bytes, and any values of these bytes are valid.
        unsafe {
            let mut raw: [u8; 128] = std::mem::transmute(entry);
            raw[24..28].copy_from_slice(&2_u32.to_le_bytes());
            std::mem::transmute(raw)
        }
    }

    fn write_reply(&self, reply: &Reply) {
        let (error, len) = match reply.outcome {
            Ok(len) => (0, len),
            Err(errno) => (-errno, 0),
        };
        let header = OutHeader {
            len: (abi::OUT_HEADER_BYTES + len) as u32,
            error: error as u32,
            unique: reply.unique,
        };
        self.memory.header.write(0, &header.to_bytes());
        self.memory.header.write(PAYLOAD_LEN_AT, &(len as u32).to_le_bytes());
    }

    fn read_request(&self) -> Option<RawRequest> {
        let Memory { header, payload, .. } = &*self.memory;
        let bytes = header.bytes();
        let mut reader = Reader::new(&bytes);
        let in_header = InHeader::decode(&mut reader).ok()?;
        let mut reader = Reader::new(&bytes[COMMIT_ID_AT..]);
        self.commit_id.set(u64::decode(&mut reader).ok()?);
        let payload_len = u32::decode(&mut reader).ok()? as usize;
        Some(RawRequest {
            header: in_header,
            arguments: header.slice(ARGUMENTS_AT..ARGUMENTS_AT + ARGUMENTS_BYTES),
            payload: payload.slice(0..payload_len.min(payload.len())),
            reply: payload.clone(),
        })
    }
}

impl Port for UringPort {
    async fn exchange(&self, reply: Option<Reply>) -> Option<RawRequest> {
        let operation = match &reply {
            Some(reply) => {
                self.write_reply(reply);
                COMMIT_AND_FETCH
            }
            None => REGISTER,
        };
        let Memory { header, payload, .. } = &*self.memory;
        let fills = (header.begin_fill(), payload.begin_fill());
        let keep: Box<dyn Any> = Box::new((Rc::clone(&self.memory), fills));
        // SAFETY: `keep` owns all memory to which the entry points, and all registered memory.
        let (result, _) = unsafe { skep_env::submit(self.command(operation), keep) }.await;
        if result < 0 {
            // When the mount ends normally, the kernel returns ENOTCONN, ECONNABORTED or ECANCELED.
            if !matches!(-result, libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED) {
                let error = std::io::Error::from_raw_os_error(-result);
                let what = if operation == REGISTER { "refused a new" } else { "ended a" };
                tracing::warn!(
                    "the kernel {what} slot for requests on CPU {}: {error}; the worker of this \
                     CPU ends; if programs wait, unmount, and mount again",
                    self.queue
                );
            }
            return None;
        }
        self.read_request()
    }

    fn reply_memory(&self) -> Buf {
        self.memory.payload.clone()
    }

    fn is_memory_shared(&self) -> bool {
        self.memory.payload.handles() > 1
    }

    const NEEDS_KICKS: bool = true;

    fn queue(&self) -> u16 {
        self.queue
    }

    fn another(&self) -> Self {
        Self::new(Arc::clone(&self.memory.fd), self.queue)
    }
}
