//! Mapped files. A Python program maps the files, so that the tests need no unsafe code.

use crate::Test;
use skep_testkit::files;
use skep_testkit::program::run_in;
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![mmap:
    mapping_has_the_bytes_of_the_file,
    writes_to_a_shared_mapping_reach_the_file,
    writes_to_a_private_mapping_do_not_reach_the_file,
    processes_share_a_mapping,
];

fn python(root: &Path, program: &str) {
    run_in(root, "python3", ["-c", program]);
}

fn mapping_has_the_bytes_of_the_file(root: &Path) {
    let bytes = skep_testkit::Random::new(11).bytes(3_000_001);
    files::write(root.join("file"), &bytes);
    python(
        root,
        "import mmap\n\
         with open('file', 'rb') as file:\n\
         \x20   mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n\
         \x20   assert len(mapped) == 3000001\n\
         \x20   with open('copy', 'wb') as copy: copy.write(mapped[:])\n",
    );
    assert!(files::read(root.join("copy")) == bytes);
}

/// docs/semantics.md 2.8.
fn writes_to_a_shared_mapping_reach_the_file(root: &Path) {
    files::write(root.join("file"), vec![1; 2_000_000]);
    python(
        root,
        "import mmap\n\
         with open('file', 'r+b') as file:\n\
         \x20   mapped = mmap.mmap(file.fileno(), 0)\n\
         \x20   for at in range(0, 2000000, 4096): mapped[at] = 2\n\
         \x20   mapped[1999999] = 3\n\
         \x20   mapped.flush()\n\
         \x20   mapped[5] = 4\n\
         \x20   mapped.close()\n",
    );
    let bytes = files::read(root.join("file"));
    assert_eq!(bytes.len(), 2_000_000);
    for (at, byte) in bytes.iter().enumerate() {
        let expected = match at {
            1_999_999 => 3,
            5 => 4,
            at if at % 4096 == 0 => 2,
            _ => 1,
        };
        assert_eq!(*byte, expected, "byte {at}");
    }
}

fn writes_to_a_private_mapping_do_not_reach_the_file(root: &Path) {
    files::write(root.join("file"), vec![1; 10_000]);
    python(
        root,
        "import mmap\n\
         with open('file', 'rb') as file:\n\
         \x20   mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)\n\
         \x20   mapped[0:5] = b'hello'\n\
         \x20   assert mapped[0:6] == b'hello\\x01'\n",
    );
    assert!(files::read(root.join("file")).iter().all(|byte| *byte == 1));
}

fn processes_share_a_mapping(root: &Path) {
    files::write(root.join("file"), vec![0; 8192]);
    python(
        root,
        "import mmap, os\n\
         file = open('file', 'r+b')\n\
         mapped = mmap.mmap(file.fileno(), 0)\n\
         child = os.fork()\n\
         if child == 0:\n\
         \x20   mapped[4096:4101] = b'child'\n\
         \x20   os._exit(0)\n\
         os.waitpid(child, 0)\n\
         assert mapped[4096:4101] == b'child'\n\
         assert os.pread(file.fileno(), 5, 4096) == b'child'\n",
    );
    assert_eq!(&files::read(root.join("file"))[4096..4101], b"child");
}
