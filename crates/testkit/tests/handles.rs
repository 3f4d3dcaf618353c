//! File handles of `name_to_handle_at` and `open_by_handle_at`, on the same mount and on another
//! mount.

use skep_testkit::files;
use skep_testkit::program::run_in;
use skep_testkit::{Cluster, Shape, Transport, wait_for};
use std::path::Path;
use std::time::Duration;

/// A program that prints the handle of a path, or opens a handle and prints its path and the text
/// of its file. The program is in Python, because Rust's standard library does not have these two
/// calls.
const SCRIPT: &str = r#"
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]
handle = Handle(bytes=128)
if sys.argv[1] == "get":
    mount = ctypes.c_int()
    path = sys.argv[2].encode()
    if libc.name_to_handle_at(-100, path, ctypes.byref(handle), ctypes.byref(mount), 0):
        sys.exit(os.strerror(ctypes.get_errno()))
    print(handle.kind, bytes(handle.data[:handle.bytes]).hex())
else:
    data = bytes.fromhex(sys.argv[4])
    handle.bytes, handle.kind = len(data), int(sys.argv[3])
    ctypes.memmove(handle.data, data, len(data))
    mount = os.open(sys.argv[2], os.O_RDONLY)
    file = libc.open_by_handle_at(mount, ctypes.byref(handle), os.O_RDONLY)
    if file < 0:
        print(errno.errorcode[ctypes.get_errno()])
    else:
        path = os.path.relpath(os.readlink(f"/proc/self/fd/{file}"), sys.argv[2])
        print(path if os.path.isdir(f"/proc/self/fd/{file}") else os.read(file, 100).decode())
"#;

fn python(arguments: &[&str]) -> String {
    let all = [&["-c", SCRIPT], arguments].concat();
    run_in(Path::new("/"), "python3", all).trim().to_owned()
}

/// Kind and bytes of a handle, as the script prints them.
type Handle = (String, String);

fn handle(path: &Path) -> Handle {
    let text = python(&["get", path.to_str().expect("UTF-8")]);
    let (kind, bytes) = text.split_once(' ').expect("kind and bytes");
    (kind.to_owned(), bytes.to_owned())
}

/// Opens a handle on a mount. Returns the path and the text of the handle's file, or the name of
/// the error.
fn open(mount: &Path, (kind, bytes): &Handle) -> String {
    python(&["open", mount.to_str().expect("UTF-8"), kind, bytes])
}

/// docs/semantics.md 1.19.
#[test]
fn file_handle_opens_its_inode_until_the_inode_is_removed() {
    for transport in Transport::ALL {
        let mut cluster = Cluster::start(Shape { transport, ..Shape::default() });
        let root = cluster.path().to_owned();
        let mut expected = Vec::new();
        for index in 0..6 {
            let inner = format!("directory-{index}/inner");
            files::create_dir_all(root.join(&inner));
            let file = root.join(&inner).join("file");
            files::write(&file, format!("text {index}"));
            expected.push((handle(&root.join(&inner)), inner));
            expected.push((handle(&file), format!("text {index}")));
        }
        let gone = root.join("gone");
        files::create_dir(&gone);
        files::write(root.join("removed"), "x");
        let removed = [handle(&gone), handle(&root.join("removed"))];
        assert_eq!(open(&root, &removed[0]), "gone");
        files::remove_dir(&gone);
        files::remove_file(root.join("removed"));
        // After a move of the file, the handle still refers to this file.
        files::rename(root.join("directory-0/inner"), root.join("directory-1/moved"));
        expected[0].1 = "directory-1/moved".to_owned();
        let check = |mount: &Path| {
            for (handle, leads_to) in &expected {
                assert_eq!(open(mount, handle), *leads_to, "{}", mount.display());
            }
            for handle in &removed {
                assert_eq!(open(mount, handle), "ESTALE");
            }
        };
        check(&root);
        let second = cluster.mount(transport);
        check(second.path());
        second.unmount();
        cluster.stop();
        cluster.up().expect_success();
        check(&root);
        cluster.stop();
    }
}

/// docs/semantics.md 1.19. The handle of an open file stays valid on the mount that has the file
/// open. On other mounts, the handle becomes invalid when the file loses its last name.
#[test]
fn handles_of_unlinked_files_are_valid_while_the_file_is_open() {
    for transport in Transport::ALL {
        let mut cluster = Cluster::start(Shape { transport, ..Shape::default() });
        let second = cluster.mount(transport);
        let (here, there) = (cluster.path().to_owned(), second.path().to_owned());
        files::write(here.join("file"), "text of it");
        let leads_to = handle(&here.join("file"));
        assert_eq!(handle(&there.join("file")), leads_to, "both mounts have the same handle");
        let open_there = files::open(there.join("file"));
        let open_here = files::open(here.join("file"));
        files::remove_file(here.join("file"));
        for mount in [&here, &there] {
            assert_eq!(open(mount, &leads_to), "text of it", "{}", mount.display());
        }
        // Wait, because the kernel sends the last close asynchronously. Until the attribute
        // timeout, the kernel may also use cached attributes of the inode.
        let is_gone = |mount: &Path| {
            wait_for("the handle is invalid", Duration::from_secs(30), || {
                (open(mount, &leads_to) == "ESTALE").then_some(())
            });
        };
        drop(open_there);
        is_gone(&there);
        assert_eq!(
            open(&here, &leads_to),
            "text of it",
            "the handle of an open file is valid on the file's mount"
        );
        drop(open_here);
        is_gone(&here);
        is_gone(&there);
        second.unmount();
        cluster.stop();
    }
}
