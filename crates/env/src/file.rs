//! Files, read and written through the thread's event loop.

use crate::buffer::Buf;
use crate::event_loop::submit;
use io_uring::{opcode, types};
use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::rc::Rc;

/// An open file. Clones share the descriptor.
#[derive(Debug, Clone)]
pub struct File(Rc<OwnedFd>);

impl From<OwnedFd> for File {
    fn from(fd: OwnedFd) -> Self {
        Self(Rc::new(fd))
    }
}

impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> Self {
        Self(Rc::new(file.into()))
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

pub(crate) fn check(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

/// Closes a file and returns the result of `close(2)`. File systems that delay writes may report
/// write errors in this result. The drop of a file ignores these errors.
///
/// # Errors
/// Returns the errors of `close(2)`. The file is closed in any case.
pub fn close(file: std::fs::File) -> io::Result<()> {
    // SAFETY: this function owns the descriptor, and `into_raw_fd` gives up the ownership.
    if unsafe { libc::close(file.into_raw_fd()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

impl File {
    /// Opens a file with an ordinary system call, not through io_uring, since opening rarely waits.
    ///
    /// # Errors
    /// Returns the errors of `open(2)`.
    pub fn open(path: &std::path::Path, options: &std::fs::OpenOptions) -> io::Result<Self> {
        Ok(options.open(path)?.into())
    }

    /// Opens a file for direct I/O, or for I/O through the page cache if the file system lacks
    /// direct I/O. The returned flag is true if I/O is direct.
    ///
    /// # Errors
    /// Returns the errors of `open(2)`.
    pub fn open_direct(
        path: &std::path::Path,
        options: &std::fs::OpenOptions,
    ) -> io::Result<(Self, bool)> {
        use std::os::unix::fs::OpenOptionsExt;
        let direct = options.clone().custom_flags(libc::O_DIRECT).open(path);
        match direct {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                Ok((Self::open(path, options)?, false))
            }
            direct => Ok((direct?.into(), true)),
        }
    }

    fn fd(&self) -> types::Fd {
        types::Fd(self.0.as_raw_fd())
    }

    /// Reads from `offset` into `buf` and returns the number of bytes read. At the end of the file
    /// the number is less than the buffer's length.
    ///
    /// # Errors
    /// Returns the errors of `pread(2)`.
    pub async fn read_at(&self, buf: Buf, offset: u64) -> io::Result<usize> {
        let entry = opcode::Read::new(self.fd(), buf.as_ptr(), buf.len() as u32).offset(offset);
        let kept = Box::new((buf.begin_fill(), Rc::clone(&self.0)));
        // SAFETY: the operation keeps buffer and descriptor until the completion.
        let op = unsafe { submit(entry.build().into(), kept) };
        check(op.await.0)
    }

    /// Waits until a read returns immediately: bytes are available, or the end of the file is
    /// reached. This function works for terminals and other descriptors that poll(2) supports. The
    /// function reads nothing, so a dropped future loses no data.
    ///
    /// # Errors
    /// Returns the errors of `poll(2)`.
    pub async fn wait_readable(&self) -> io::Result<()> {
        let entry = opcode::PollAdd::new(self.fd(), libc::POLLIN as u32);
        // SAFETY: the operation keeps the descriptor until the completion.
        let op = unsafe { submit(entry.build().into(), Box::new(Rc::clone(&self.0))) };
        check(op.await.0).map(|_| ())
    }

    /// Writes all bytes of `buf` at `offset`.
    ///
    /// # Errors
    /// Returns the errors of `pwrite(2)`. A part of the bytes may have been written.
    pub async fn write_at(&self, buf: Buf, offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let rest = buf.slice(done..buf.len());
            let entry = opcode::Write::new(self.fd(), rest.as_ptr(), rest.len() as u32)
                .offset(offset + done as u64);
            // SAFETY: the operation keeps buffer and descriptor until the completion.
            let op = unsafe { submit(entry.build().into(), Box::new((rest, Rc::clone(&self.0)))) };
            match check(op.await.0)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => done += count,
            }
        }
        Ok(())
    }

    /// Writes all of `bytes` at `offset` with an ordinary system call. This function is for a small
    /// number of bytes that go to the page cache, because an ordinary call then costs less than a
    /// completion.
    ///
    /// # Errors
    /// Returns the errors of `pwrite(2)`.
    pub fn write_now(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&*self.borrow_std(), bytes, offset)
    }

    /// Fills `bytes` from `offset` on with ordinary system calls, and returns the number of bytes
    /// read. At the end of the file the number is less than the length of `bytes`.
    ///
    /// # Errors
    /// Returns the errors of `pread(2)`.
    pub fn read_now(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let file = self.borrow_std();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            match std::os::unix::fs::FileExt::read_at(&*file, &mut bytes[done..], at) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Makes an io_uring worker begin to write the dirty pages of a range to the device. Returns
    /// when the write requests are in the device's queue.
    ///
    /// # Errors
    /// Returns the errors of `sync_file_range(2)`. If the device fails, the next sync of the file
    /// also returns the error of the device. An error of the file system, such as `ENOSPC`, may
    /// appear only in the result of this call, and not in the next sync.
    pub async fn begin_write_back(&self, range: std::ops::Range<u64>) -> io::Result<()> {
        let len = (range.end - range.start).min(u64::from(u32::MAX)) as u32;
        let entry = opcode::SyncFileRange::new(self.fd(), len)
            .offset(range.start)
            .flags(libc::SYNC_FILE_RANGE_WRITE);
        // SAFETY: the operation keeps the descriptor until the completion.
        let op = unsafe { submit(entry.build().into(), Box::new(Rc::clone(&self.0))) };
        check(op.await.0).map(|_| ())
    }

    /// Waits until the file's data, and the metadata that reads of the data need, are on the
    /// device.
    ///
    /// # Errors
    /// Returns the errors of `fdatasync(2)`. After an error the page cache may have dropped dirty
    /// pages. So the caller must not retry the sync, and must stop writing to the target.
    pub async fn sync_data(&self) -> io::Result<()> {
        let entry = opcode::Fsync::new(self.fd()).flags(types::FsyncFlags::DATASYNC);
        // SAFETY: the operation keeps the descriptor until the completion.
        let op = unsafe { submit(entry.build().into(), Box::new(Rc::clone(&self.0))) };
        check(op.await.0).map(|_| ())
    }

    /// Returns the descriptor as a file of the standard library, for calls that do not go through
    /// io_uring, such as `metadata` and `set_len`.
    pub fn borrow_std(&self) -> StdFile<'_> {
        // SAFETY: the descriptor is open while `self` exists, which outlives the returned value.
        // `ManuallyDrop` leaves the descriptor open.
        let file = unsafe { std::fs::File::from_raw_fd(self.0.as_raw_fd()) };
        StdFile { file: ManuallyDrop::new(file), _borrowed: PhantomData }
    }
}

/// A view of a [`File`] as a file of the standard library. The drop of this value does not close
/// the descriptor.
#[derive(Debug)]
pub struct StdFile<'a> {
    file: ManuallyDrop<std::fs::File>,
    _borrowed: PhantomData<&'a File>,
}

impl std::ops::Deref for StdFile<'_> {
    type Target = std::fs::File;
    fn deref(&self) -> &std::fs::File {
        &self.file
    }
}
