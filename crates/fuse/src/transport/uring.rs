//! FUSE over io_uring (Linux 6.14): each CPU has a queue in the kernel, a request is handed to the
//! queue of the CPU that its caller runs on, and one command both replies and fetches the next one.
//!
//! An entry of a queue is a port: 288 bytes of headers and a payload, registered once by address.
//! The headers have the request's or reply's header at 0, the operation's fixed struct at 128, and
//! the fields of the entry itself at 256. Names and data of a request and the body of a reply are
//! in the payload. `FORGET` and `INTERRUPT` still come by `/dev/fuse` (`control`).
//!
//! Every possible CPU's queue must have an entry before the kernel lets any request through.

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
/// Bytes of `struct fuse_uring_req_header`.
const HEADER_BYTES: usize = 288;
const ARGUMENTS_AT: usize = 128;
const ARGUMENTS_BYTES: usize = 128;
const COMMIT_ID_AT: usize = 264;
const PAYLOAD_LEN_AT: usize = 272;

/// The memory whose addresses the kernel has.
struct Memory {
    header: Buf,
    payload: Buf,
    vectors: [libc::iovec; 2],
    fd: Arc<OwnedFd>,
}

/// One entry of one queue.
pub(crate) struct UringPort {
    memory: Rc<Memory>,
    queue: u16,
    commit_id: Cell<u64>,
}

impl UringPort {
    /// An entry for the queue of a CPU; it is registered by its first exchange.
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
        // entry is 128 plain bytes, and any such bytes are an entry.
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
        let mut reader = Reader::new(header.bytes());
        let in_header = InHeader::decode(&mut reader).ok()?;
        let mut reader = Reader::new(&header.bytes()[COMMIT_ID_AT..]);
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
        let keep: Box<dyn Any> = Box::new(Rc::clone(&self.memory));
        // SAFETY: `keep` owns all memory that the entry points to, and that was registered.
        let (result, _) = unsafe { skep_env::submit(self.command(operation), keep) }.await;
        if result < 0 {
            // ENOTCONN and ECONNABORTED are the ordinary end.
            if !matches!(-result, libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED) {
                let error = std::io::Error::from_raw_os_error(-result);
                tracing::warn!(
                    queue = self.queue,
                    operation,
                    "the kernel ended an entry of a FUSE queue: {error}"
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
