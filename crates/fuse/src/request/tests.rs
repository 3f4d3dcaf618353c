//! Tests that requests of the kernel are parsed from their bytes, even if the bytes are truncated
//! or arbitrary.

use super::attributes::SetAttrIn;
use super::data::{AllocateIn, CopyIn, ReadIn, SeekIn, WriteIn};
use super::files::{CreateIn, FlushIn, FsyncIn, OpenIn, ReleaseIn};
use super::ioctl::IoctlIn;
use super::locks::LockIn;
use super::names::{LinkIn, MkDirIn, MkNodIn, Rename2In, RenameIn};
use super::xattrs::{GetXattrIn, SetXattrIn, XattrChange};
use super::*;
use crate::abi::InterruptIn;
use proptest::prelude::*;
use skep_client::SetTime;
use skep_types::Timestamp;

fn request(opcode: u32, arguments: &[u8], payload: &[u8]) -> RawRequest {
    let header = InHeader {
        len: 0,
        opcode,
        unique: 2,
        nodeid: 1,
        uid: 1000,
        gid: 100,
        pid: 7,
        extension_words: 0,
        padding: 0,
    };
    RawRequest {
        header,
        arguments: Buf::copy_of(arguments),
        payload: Buf::copy_of(payload),
        reply: Buf::new(8192),
    }
}

#[test]
fn entry_names_end_at_their_zero_byte() {
    let check = |payload: &[u8], expected: Result<&[u8], i32>| {
        let got = request(Opcode::Lookup as u32, &[], payload).parse();
        match (got, expected) {
            (Ok(Request::Names(NameRequest::Lookup { name, .. })), Ok(expected)) => {
                assert_eq!(name, expected)
            }
            (Err(got), Err(expected)) => assert_eq!(got, expected),
            (got, expected) => panic!("{got:?} instead of {expected:?}"),
        }
    };
    check(b"file\0", Ok(b"file"));
    check(b"file\0\0", Ok(b"file"));
    check(b"no zero", Err(libc::EINVAL));
    check(b"\0", Err(libc::EINVAL));
    check(b"", Err(libc::EINVAL));
}

#[test]
fn write_with_less_data_than_its_size_is_refused() {
    let arguments = WriteIn {
        handle: 5,
        offset: 0,
        size: 4,
        write_flags: 0,
        lock_owner: 0,
        flags: libc::O_DSYNC as u32,
        padding: 0,
    }
    .to_bytes();
    let parse = |data: &[u8]| request(Opcode::Write as u32, &arguments, data).parse();
    assert_eq!(parse(b"abc").unwrap_err(), libc::EINVAL);
    let Ok(Request::Data(DataRequest::Write(write))) = parse(b"abcde") else {
        panic!("expected a write")
    };
    assert_eq!(*write.data.bytes(), *b"abcd");
    assert!(write.is_synced);
}

/// Linux 6.18, fs/fuse/file.c: `fuse_send_read` sets the flag of the lock owner for direct I/O, and
/// `fuse_send_readpages` does not.
#[test]
fn direct_io_is_distinguished_from_io_of_the_page_cache() {
    let fills_pages = |read_flags| {
        let arguments = ReadIn {
            handle: 5,
            offset: 0,
            size: 4,
            read_flags,
            lock_owner: 0,
            flags: 0,
            padding: 0,
        };
        let got = request(Opcode::Read as u32, &arguments.to_bytes(), &[]).parse();
        let Ok(Request::Data(DataRequest::Read(read))) = got else { panic!("{got:?}") };
        read.fills_pages
    };
    assert!(fills_pages(0));
    assert!(!fills_pages(1 << 1));
    let is_write_back = |write_flags| {
        let arguments = WriteIn {
            handle: 5,
            offset: 0,
            size: 4,
            write_flags,
            lock_owner: 0,
            flags: libc::O_DIRECT as u32,
            padding: 0,
        };
        let got = request(Opcode::Write as u32, &arguments.to_bytes(), b"abcd").parse();
        let Ok(Request::Data(DataRequest::Write(write))) = got else { panic!("{got:?}") };
        assert_eq!(write.is_direct, !write.is_write_back);
        write.is_write_back
    };
    assert!(is_write_back(1 << 0));
    assert!(!is_write_back(1 << 1));
}

#[test]
fn setattr_sets_an_explicit_time_or_the_current_time() {
    let mut arguments = SetAttrIn::decode(&mut Reader::new(&[0; 88])).unwrap();
    arguments.valid = set_attr::ATIME | set_attr::MTIME | set_attr::MTIME_NOW | set_attr::UID;
    arguments.atime = (-5_i64) as u64;
    arguments.atime_nanoseconds = 9;
    let got = request(Opcode::SetAttr as u32, &arguments.to_bytes(), b"").parse();
    let Ok(Request::Attributes(AttributeRequest::Set { change, kill_privileges, .. })) = got else {
        panic!("{got:?}")
    };
    let at = Timestamp { seconds: -5, nanoseconds: 9 };
    assert_eq!(change.accessed, Some(SetTime { now: false, at }));
    assert!(change.modified.is_some_and(|time| time.now));
    assert!(kill_privileges, "a new owner clears set-user-id");
}

proptest! {
    #[test]
    fn parsing_an_arbitrary_request_never_panics(
        opcode in 0_u32..60,
        arguments in proptest::collection::vec(any::<u8>(), 0..128),
        payload in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let _ = request(opcode, &arguments, &payload).parse();
    }

    #[test]
    fn set_xattr_without_enough_data_is_refused(size in 0_u32..20, value in "[a-z]{0,20}") {
        let arguments = SetXattrIn { size, flags: 0, more_flags: 0, padding: 0 }.to_bytes();
        let payload = [b"user.a\0", value.as_bytes()].concat();
        let got = request(Opcode::SetXattr as u32, &arguments, &payload).parse();
        prop_assert_eq!(got.is_ok(), size as usize <= value.len());
    }
}

/// Kernels before 5.13 send only the first half of the struct, so the flags in the second half are
/// missing.
#[test]
fn set_xattr_requests_of_old_and_new_kernels_are_parsed() {
    let payload = b"user.a\0value";
    for is_long in [false, true] {
        let arguments = SetXattrIn { size: 5, flags: 0, more_flags: 1, padding: 0 }.to_bytes();
        let arguments = &arguments[..if is_long { 16 } else { 8 }];
        let bytes = [&header(Opcode::SetXattr).to_bytes(), arguments, payload].concat();
        let request = RawRequest::from_bytes(&Buf::copy_of(&bytes), Buf::new(100), is_long);
        match request.map(|request| request.parse()) {
            Some(Ok(Request::Xattrs(XattrRequest::Set(change)))) => {
                let XattrChange { name, value, clear_set_group_id, .. } = change;
                assert_eq!((&name[..], &value[..]), (&b"user.a"[..], &b"value"[..]));
                assert_eq!(clear_set_group_id, is_long);
            }
            other => panic!("{other:?}"),
        }
    }
}

fn header(opcode: Opcode) -> InHeader {
    InHeader {
        len: 0,
        opcode: opcode as u32,
        unique: 2,
        nodeid: 1,
        uid: 0,
        gid: 0,
        pid: 0,
        extension_words: 0,
        padding: 0,
    }
}

#[test]
fn truncated_requests_are_refused() {
    let header = header(Opcode::MkDir);
    let arguments = MkDirIn { mode: 0o40_755, umask: 0o22 };
    let bytes = [header.to_bytes(), arguments.to_bytes(), b"name\0".to_vec()].concat();
    assert!(is_request(&bytes));
    for len in 0..bytes.len() {
        assert!(!is_request(&bytes[..len]), "{len} bytes");
    }
}

/// Returns the length of an encoded record in bytes.
fn len_of<T: Codec>() -> usize {
    let zeros = [0; 512];
    let mut reader = Reader::new(&zeros);
    T::decode(&mut reader).unwrap();
    zeros.len() - reader.left()
}

#[test]
fn opcode_table_has_the_lengths_of_the_kernel_structs() {
    let check = |opcode: Opcode, len: usize| assert_eq!(opcode.argument_bytes(), len);
    check(Opcode::SetAttr, len_of::<SetAttrIn>());
    check(Opcode::MkNod, len_of::<MkNodIn>());
    check(Opcode::MkDir, len_of::<MkDirIn>());
    check(Opcode::Rename, len_of::<RenameIn>());
    check(Opcode::Rename2, len_of::<Rename2In>());
    check(Opcode::Link, len_of::<LinkIn>());
    check(Opcode::Open, len_of::<OpenIn>());
    check(Opcode::Create, len_of::<CreateIn>());
    check(Opcode::Read, len_of::<ReadIn>());
    check(Opcode::ReadDir, len_of::<ReadIn>());
    check(Opcode::ReadDirPlus, len_of::<ReadIn>());
    check(Opcode::Write, len_of::<WriteIn>());
    check(Opcode::Release, len_of::<ReleaseIn>());
    check(Opcode::Flush, len_of::<FlushIn>());
    check(Opcode::Fsync, len_of::<FsyncIn>());
    check(Opcode::FsyncDir, len_of::<FsyncIn>());
    check(Opcode::SetXattr, len_of::<SetXattrIn>());
    check(Opcode::GetXattr, len_of::<GetXattrIn>());
    check(Opcode::ListXattr, len_of::<GetXattrIn>());
    check(Opcode::Ioctl, len_of::<IoctlIn>());
    check(Opcode::Interrupt, len_of::<InterruptIn>());
    check(Opcode::FAllocate, len_of::<AllocateIn>());
    check(Opcode::LSeek, len_of::<SeekIn>());
    check(Opcode::CopyFileRange, len_of::<CopyIn>());
    check(Opcode::CopyFileRange64, len_of::<CopyIn>());
    check(Opcode::GetLock, len_of::<LockIn>());
    check(Opcode::SetLock, len_of::<LockIn>());
    check(Opcode::SetLockWait, len_of::<LockIn>());
    for opcode in Opcode::ALL {
        assert_eq!(Opcode::from_number(*opcode as u32), Some(*opcode));
    }
}

#[test]
fn only_opcodes_left_to_the_kernel_get_enosys() {
    for opcode in Opcode::ALL {
        let got = request(*opcode as u32, &[0; 128], b"a\0b\0").parse();
        let is_kernels_own = opcode.family() == Family::KernelsOwn;
        assert_eq!(matches!(got, Err(libc::ENOSYS)), is_kernels_own, "{opcode:?}: {got:?}");
    }
}
