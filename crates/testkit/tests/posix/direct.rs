//! Reads and writes with `O_DIRECT`.

use crate::Test;
use skep_testkit::files;
use skep_testkit::program::run_in;
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![direct:
    direct_reads_return_written_bytes,
    cached_reads_return_direct_writes,
    cached_reads_return_asynchronous_direct_writes,
];

fn direct_reads_return_written_bytes(root: &Path) {
    files::write(root.join("source"), skep_testkit::Random::new(9).bytes(8 << 20));
    let copy = ["if=source", "of=copy", "bs=1M", "iflag=direct", "oflag=direct", "status=none"];
    run_in(root, "dd", copy);
    assert!(files::read(root.join("copy")) == files::read(root.join("source")));
}

fn cached_reads_return_direct_writes(root: &Path) {
    files::write(root.join("file"), vec![1; 1 << 20]);
    assert!(files::read(root.join("file")).iter().all(|byte| *byte == 1));
    let two = root.join("two");
    files::write(&two, vec![2; 4096]);
    let over = ["if=two", "of=file", "bs=4096", "seek=3", "conv=notrunc", "oflag=direct"];
    run_in(root, "dd", [&over[..], &["status=none"]].concat());
    let bytes = files::read(root.join("file"));
    assert_eq!(bytes.len(), 1 << 20);
    let twos: Vec<_> = (0..bytes.len()).filter(|at| bytes[*at] == 2).collect();
    assert_eq!((twos.len(), twos[0]), (4096, 3 * 4096));
}

/// Before an asynchronous direct write, the kernel drops its cached pages. The kernel does not drop
/// the pages a second time after the write. docs/semantics.md 2.1.
fn cached_reads_return_asynchronous_direct_writes(root: &Path) {
    files::write(root.join("file"), vec![0; 8 * 4096]);
    run_in(root, "python3", ["-c", include_str!("asynchronous.py"), "file", "600"]);
}
