//! Allocated space, holes and copies: `fallocate`, `lseek` with `SEEK_DATA` and `SEEK_HOLE`,
//! `copy_file_range`.

use crate::{Test, ok, refused};
use rustix::fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, seek};
use rustix::io::Errno;
use skep_testkit::Random;
use skep_testkit::files;
use skep_testkit::program::run_in;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![allocation:
    fallocate_extends_or_keeps_the_size,
    allocation_beyond_free_space_is_refused,
    punched_range_is_a_hole_and_reads_as_zeros,
    zeroed_range_reads_as_zeros,
    mapped_data_is_not_a_hole,
    copy_file_range_copies_within_and_between_files,
    copy_file_range_keeps_bytes_around_the_range,
    fallocate_clears_setuid_and_setgid,
];

const KEEP: FallocateFlags = FallocateFlags::KEEP_SIZE;

fn punch(file: &File, offset: u64, length: u64) {
    files::fallocate(file, KEEP | FallocateFlags::PUNCH_HOLE, offset, length);
}

fn new(root: &Path, name: &str, bytes: &[u8]) -> File {
    files::write(root.join(name), bytes);
    files::open_with(OpenOptions::new().read(true).write(true), root.join(name))
}

/// docs/semantics.md 2.11.
fn fallocate_extends_or_keeps_the_size(root: &Path) {
    let file = new(root, "file", b"abc");
    let before = files::metadata_of(&file);
    files::fallocate(&file, KEEP, 0, 3_000_000);
    assert_eq!(files::metadata_of(&file).len(), 3);
    files::fallocate(&file, FallocateFlags::empty(), 1, 2_000_000);
    let after = files::metadata_of(&file);
    assert_eq!(after.len(), 2_000_001);
    assert!(after.blocks() * 512 >= 2_000_001, "{} blocks", after.blocks());
    assert!((after.ctime(), after.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
    files::fallocate(&file, FallocateFlags::empty(), 0, 10);
    let bytes = files::read(root.join("file"));
    assert_eq!((bytes.len(), &bytes[..3]), (2_000_001, &b"abc"[..]));
    assert!(bytes[3..].iter().all(|byte| *byte == 0));
    let reader = files::open(root.join("file"));
    refused(fallocate(&reader, FallocateFlags::empty(), 0, 10), Errno::BADF);
    refused(fallocate(&file, FallocateFlags::empty(), 0, 0), Errno::INVAL);
}

/// The file system type of FUSE in the result of `statfs`.
pub(crate) const FUSE: i64 = 0x6573_5546;

/// docs/semantics.md 2.11.
fn allocation_beyond_free_space_is_refused(root: &Path) {
    let file = new(root, "file", b"abc");
    // Run this call only on Skep. A local ext4 would allocate all free space before the call fails.
    if ok(rustix::fs::fstatfs(&file)).f_type != FUSE {
        return;
    }
    let wanted = [1 << 43, 1 << 42];
    refused(fallocate(&file, FallocateFlags::empty(), 0, wanted[1]), Errno::NOSPC);
    assert_eq!(files::metadata_of(&file).len(), 3);
    assert_eq!(files::read(root.join("file")), b"abc");
    punch(&file, 0, wanted[0]);
}

/// docs/semantics.md 2.11 and 2.12.
fn punched_range_is_a_hole_and_reads_as_zeros(root: &Path) {
    let mut expected = Random::new(5).bytes(5_000_000);
    let file = new(root, "file", &expected);
    files::sync_all(&file);
    let at = |what| ok(seek(&file, what));
    assert_eq!((at(SeekFrom::Data(7)), at(SeekFrom::Hole(7))), (7, 5_000_000));
    for (start, length) in [(100, 5), (4000, 200), (1_000_000, 2_000_000), (4_999_000, 9000)] {
        // Read the file, so that its pages are in the page cache before the test punches the hole.
        assert!(files::read(root.join("file")) == expected);
        punch(&file, start as u64, length as u64);
        let end = expected.len().min(start + length);
        expected[start..end].fill(0);
        assert!(files::read(root.join("file")) == expected, "{length} bytes at {start}");
    }
    assert_eq!(files::metadata_of(&file).len(), 5_000_000);
    assert!(files::metadata_of(&file).blocks() * 512 < 3_200_000);
    let hole = at(SeekFrom::Hole(200_000));
    assert_eq!(hole, 1_000_000_u64.next_multiple_of(4096));
    assert_eq!(at(SeekFrom::Hole(hole + 5)), hole + 5);
    assert_eq!(at(SeekFrom::Data(hole + 5)), 3_000_000 / 4096 * 4096);
    assert_eq!(at(SeekFrom::Hole(3_000_000)), 5_000_000);
    refused(seek(&file, SeekFrom::Data(5_000_000)), Errno::NXIO);
    refused(seek(&file, SeekFrom::Hole(5_000_000)), Errno::NXIO);
    files::set_len(&file, 9_000_000);
    // The hole begins at the end of the written data, or at the end of the block that contains this
    // end.
    let hole = at(SeekFrom::Hole(3_000_000));
    assert!((5_000_000..=5_000_000_u64.next_multiple_of(4096)).contains(&hole), "{hole}");
    refused(seek(&file, SeekFrom::Data(6_000_000)), Errno::NXIO);
    files::write_all_at(&file, b"x", 8_000_000);
    assert_eq!(at(SeekFrom::Data(6_000_000)), 8_000_000 / 4096 * 4096);
    refused(fallocate(&file, FallocateFlags::PUNCH_HOLE, 0, 10), Errno::OPNOTSUPP);
}

/// docs/semantics.md 2.11.
fn zeroed_range_reads_as_zeros(root: &Path) {
    let mut expected = Random::new(6).bytes(3_000_000);
    let file = new(root, "file", &expected);
    files::fallocate(&file, KEEP | FallocateFlags::ZERO_RANGE, 2_000_000, 5_000_000);
    expected[2_000_000..].fill(0);
    assert!(files::read(root.join("file")) == expected);
    files::fallocate(&file, FallocateFlags::ZERO_RANGE, 1_000_001, 3_000_000);
    expected[1_000_001..].fill(0);
    expected.resize(4_000_001, 0);
    assert!(files::read(root.join("file")) == expected);
}

/// docs/semantics.md 2.12.
fn mapped_data_is_not_a_hole(root: &Path) {
    let program = "import mmap, os\n\
         with open('file', 'w+b') as file:\n\
         \x20   file.truncate(3000000)\n\
         \x20   mapped = mmap.mmap(file.fileno(), 0)\n\
         \x20   mapped[2000000] = 7\n\
         \x20   at = os.lseek(file.fileno(), 0, os.SEEK_DATA)\n\
         \x20   assert at == 2000000 // 4096 * 4096, at\n\
         \x20   assert os.lseek(file.fileno(), at, os.SEEK_HOLE) == at + 4096\n\
         \x20   mapped[0] = 7\n\
         \x20   assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == 4096\n";
    run_in(root, "python3", ["-c", program]);
}

fn copy(from: &File, mut at: u64, to: &File, mut place: u64, length: usize) -> usize {
    let mut copied = 0;
    while copied < length {
        match ok(copy_file_range(from, Some(&mut at), to, Some(&mut place), length - copied)) {
            0 => break,
            count => copied += count,
        }
    }
    copied
}

/// docs/semantics.md 2.13.
fn copy_file_range_copies_within_and_between_files(root: &Path) {
    let bytes = Random::new(7).bytes(7_000_000);
    let from = new(root, "from", &bytes);
    let to = new(root, "to", b"");
    assert_eq!(copy(&from, 123, &to, 1_000_000, 5_000_000), 5_000_000);
    let got = files::read(root.join("to"));
    assert_eq!(got.len(), 6_000_000);
    assert!(got[..1_000_000].iter().all(|byte| *byte == 0));
    assert!(got[1_000_000..] == bytes[123..5_000_123]);
    assert_eq!(copy(&from, 6_000_000, &to, 0, 5_000_000), 1_000_000, "to the end of the source");
    assert!(files::read(root.join("to"))[..1_000_000] == bytes[6_000_000..]);
    assert_eq!(copy(&from, 7_000_000, &to, 0, 10), 0);
    // A copy within a single file succeeds for adjacent ranges, and fails for overlapping ranges.
    assert_eq!(copy(&from, 0, &from, 3_000_000, 3_000_000), 3_000_000);
    assert!(files::read(root.join("from"))[3_000_000..6_000_000] == bytes[..3_000_000]);
    let overlapping = copy_file_range(&from, Some(&mut 0), &from, Some(&mut 5), 10);
    refused(overlapping, Errno::INVAL);
}

fn copy_file_range_keeps_bytes_around_the_range(root: &Path) {
    let from = new(root, "from", &[1; 2_000_000]);
    let to = new(root, "to", &[2; 2_000_000]);
    // Read both files, so that their data is in the page cache. After the reads, punch a hole into
    // the source.
    punch(&from, 500_000, 500_000);
    assert_eq!(files::read(root.join("to")).len(), 2_000_000);
    assert_eq!(copy(&from, 400_001, &to, 300_007, 1_000_001), 1_000_001);
    let got = files::read(root.join("to"));
    assert_eq!(got.len(), 2_000_000);
    for (at, byte) in got.iter().enumerate() {
        let expected = match at {
            300_007..1_300_008 if (500_000..1_000_000).contains(&(at - 300_007 + 400_001)) => 0,
            300_007..1_300_008 => 1,
            _ => 2,
        };
        assert_eq!(*byte, expected, "byte {at}");
    }
}

fn fallocate_clears_setuid_and_setgid(root: &Path) {
    files::set_permissions(root, fs::Permissions::from_mode(0o777));
    for (index, how) in ["fallocate -l 100", "fallocate -p -o 0 -l 10"].into_iter().enumerate() {
        let path = root.join(format!("file{index}"));
        files::write(&path, [1; 50]);
        files::set_permissions(&path, fs::Permissions::from_mode(0o6777));
        let command = format!("{how} {}", path.display());
        run_in(root, "sh", ["-c", &command]);
        assert_eq!(
            files::metadata(&path).mode() & 0o7777,
            0o6777,
            "a call of root keeps set-user-ID and set-group-ID"
        );
        let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", &command];
        run_in(root, "setpriv", nobody);
        assert_eq!(files::metadata(&path).mode() & 0o7777, 0o777, "{how}");
    }
}
