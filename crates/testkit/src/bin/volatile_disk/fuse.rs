//! A FUSE server for one file, which is the root of its own mount. The server supports only the
//! requests that a loop device causes.
//!
//! The file is open for direct I/O, so the kernel has no cache between the loop device and this
//! program. The server refuses other requests with `ENOSYS`, and the kernel does not repeat such a
//! request. For example, after a refused request to zero a range, the kernel writes zeros.
//!
//! # Source
//! `include/uapi/linux/fuse.h`

use crate::cache::Cache;
use crate::{Outcome, lock};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use std::ffi::CString;
use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Mutex;

const IN_HEADER_BYTES: usize = 40;
/// The version of the FUSE protocol. The kernel uses the lower of this version and its own version.
const VERSION: [u32; 2] = [7, 31];
const MAX_WRITE_BYTES: u32 = 1 << 20;
const MAX_PAGES: u32 = MAX_WRITE_BYTES / 4096;
/// The flags `FUSE_ASYNC_READ`, `FUSE_BIG_WRITES`, `FUSE_ASYNC_DIO` and `FUSE_MAX_PAGES`.
const FLAGS: u32 = 1 | 1 << 5 | 1 << 15 | 1 << 22;
/// The flag `FOPEN_DIRECT_IO`.
const DIRECT_IO: u32 = 1;
/// Mode of a regular file that only root may use.
const MODE: u32 = 0o100_600;

/// The numbers of the requests that this server supports.
mod opcode {
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const DESTROY: u32 = 38;
    pub(super) const BATCH_FORGET: u32 = 42;
}

/// The server of a mounted file.
#[derive(Debug)]
pub(crate) struct Server {
    device: File,
    bytes: u64,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Errno> {
    bytes.get(at..at + N).and_then(|it| it.try_into().ok()).ok_or(Errno::INVAL)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Errno> {
    number(bytes, at).map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, Errno> {
    number(bytes, at).map(u64::from_ne_bytes)
}

fn words(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_ne_bytes).collect()
}

fn errno(error: &std::io::Error) -> Errno {
    eprintln!("skep-volatile-disk: cannot access an image of the disk: {error}");
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

impl Server {
    /// Mounts a disk of `bytes` bytes over the file at `path`.
    pub(crate) fn mount(path: &Path, bytes: u64) -> Outcome<Self> {
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let options = format!("fd={},rootmode=100000,user_id=0,group_id=0", device.as_raw_fd());
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("skep-volatile-disk", path, "fuse", flags, &*CString::new(options)?)?;
        Ok(Self { device, bytes })
    }

    /// Serves requests until the file is unmounted.
    pub(crate) fn serve(&self, cache: &Mutex<Cache>) -> Outcome {
        let mut buffer = vec![0; MAX_WRITE_BYTES as usize + (64 << 10)];
        loop {
            let len = match (&self.device).read(&mut buffer) {
                Ok(len) => len,
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::NODEV) => return Ok(()),
                    // The kernel has cancelled a request, so read the next request.
                    Some(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
                    _ => return Err(error.into()),
                },
            };
            let request = &buffer[..len];
            let (code, unique) = (u32_at(request, 4)?, u64_at(request, 8)?);
            let body = request.get(IN_HEADER_BYTES..).unwrap_or_default();
            let is_oneway = matches!(
                code,
                opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT | opcode::DESTROY
            );
            if !is_oneway {
                // Wait without the lock on the cache, so that commands to this program can lock the
                // cache.
                if matches!(code, opcode::READ | opcode::WRITE | opcode::FSYNC) {
                    let delay = lock(cache).delay();
                    std::thread::sleep(delay);
                }
                // Hold the lock until the reply has been sent, so that the server sends no reply
                // after a stall has begun.
                let mut cache = lock(cache);
                let result = self.reply_to(code, body, &mut cache);
                self.send(unique, &result)?;
            }
        }
    }

    fn reply_to(&self, code: u32, body: &[u8], cache: &mut Cache) -> Result<Vec<u8>, Errno> {
        match code {
            opcode::INIT => Ok(words(
                [
                    VERSION[0],
                    VERSION[1],
                    MAX_WRITE_BYTES,
                    FLAGS,
                    // `max_background` (64 requests), and in the upper 16 bits
                    // `congestion_threshold` (48 requests).
                    64 | 48 << 16,
                    MAX_WRITE_BYTES,
                    1,
                    MAX_PAGES,
                ]
                .into_iter()
                .chain([0; 8]),
            )),
            opcode::GETATTR | opcode::SETATTR => Ok(self.attributes()),
            opcode::OPEN => Ok(words([0, 0, DIRECT_IO, 0])),
            opcode::READ => {
                let (offset, len) = (u64_at(body, 8)?, u32_at(body, 16)?);
                let len = self.bytes.saturating_sub(offset).min(u64::from(len));
                cache.read(offset, usize::try_from(len).expect("64 bits")).map_err(|it| errno(&it))
            }
            opcode::WRITE => {
                let (offset, len) = (u64_at(body, 8)?, u32_at(body, 16)?);
                let bytes = body.get(40..).unwrap_or_default();
                let end = offset.checked_add(bytes.len() as u64).ok_or(Errno::FBIG)?;
                if bytes.len() != len as usize || end > self.bytes {
                    return Err(Errno::FBIG);
                }
                cache.write(offset, bytes).map_err(|it| errno(&it))?;
                Ok(words([len, 0]))
            }
            opcode::FSYNC => cache.flush().map(|()| Vec::new()).map_err(|it| errno(&it)),
            opcode::FLUSH | opcode::RELEASE => Ok(Vec::new()),
            _ => Err(Errno::NOSYS),
        }
    }

    /// Returns the encoded struct `fuse_attr_out`.
    fn attributes(&self) -> Vec<u8> {
        // Validity of the attributes (3600 s and 0 ns), padding, inode number, size and blocks.
        let numbers = [3600, 0, 1, self.bytes, self.bytes / 512, 0, 0, 0];
        let mut reply: Vec<u8> = numbers.into_iter().flat_map(u64::to_ne_bytes).collect();
        // The nanoseconds of the three timestamps, then mode, links, owner, group, device, block
        // size and flags.
        reply.extend(words([0, 0, 0, MODE, 1, 0, 0, 0, 4096, 0]));
        reply
    }

    fn send(&self, unique: u64, result: &Result<Vec<u8>, Errno>) -> Outcome {
        let (body, error) = match result {
            Ok(body) => (&body[..], 0),
            Err(error) => (&[][..], -error.raw_os_error()),
        };
        let len = u32::try_from(16 + body.len()).expect("a bounded reply");
        let mut header = len.to_ne_bytes().to_vec();
        header.extend(error.to_ne_bytes());
        header.extend(unique.to_ne_bytes());
        let parts = [IoSlice::new(&header), IoSlice::new(body)];
        match (&self.device).write_vectored(&parts) {
            Ok(_) => Ok(()),
            // The kernel has cancelled the request, so the reply is not necessary.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
