//! Tests the end of mounts, and of programs that wait for a mount: by unmount, by signal, and by
//! kill.

use crate::harness::{Mounted, is_mounted, wait_until};
use crate::{Test, mounted};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command};

pub(crate) const TESTS: &[Test] = &[
    ("unmount_by_another_program_ends_the_server", unmount_by_another_program_ends_the_server),
    ("termination_signal_unmounts_the_file_system", termination_signal_unmounts_the_file_system),
    ("signal_detaches_a_mount_with_open_files", signal_detaches_a_mount_with_open_files),
    (
        "new_mount_replaces_the_dead_mount_of_a_killed_server",
        new_mount_replaces_the_dead_mount_of_a_killed_server,
    ),
    ("mount_on_a_mounted_directory_is_refused", mount_on_a_mounted_directory_is_refused),
    ("a_caller_that_waits_can_be_killed", a_caller_that_waits_can_be_killed),
    (
        "signal_that_does_not_kill_interrupts_no_creation",
        signal_that_does_not_kill_interrupts_no_creation,
    ),
    ("auto_uses_the_best_transport", auto_uses_the_best_transport),
    ("unmount_during_the_start_is_not_a_failure", unmount_during_the_start_is_not_a_failure),
];

fn unmount_by_another_program_ends_the_server(transport: &str) {
    let mut it = mounted(transport);
    fs::write(it.join("file"), "x").unwrap();
    assert!(Command::new("umount").arg(&it.path).status().unwrap().success());
    assert!(it.end().success());
    assert!(!is_mounted(&it.path));
}

/// One worker may serve requests while another worker has not reported yet that it is ready. An
/// unmount at that moment must not count as a refusal of the transport by the kernel.
fn unmount_during_the_start_is_not_a_failure(transport: &str) {
    for _ in 0..10 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut it = std::thread::scope(|scope| {
            let start = scope.spawn(|| Mounted::start(transport, path));
            wait_until("the directory is mounted", || is_mounted(path));
            // When `read_dir` returns, at least one worker has served requests.
            fs::read_dir(path).unwrap();
            assert!(Command::new("umount").arg(path).status().unwrap().success());
            start.join().unwrap().expect("the server reports that the mount was ready")
        });
        assert!(it.end().success());
        assert!(!is_mounted(path));
    }
}

fn termination_signal_unmounts_the_file_system(transport: &str) {
    // The server ignores the same signals as its parent, this process.
    for signal in skep_env::Signals::not_ignored(&[libc::SIGTERM, libc::SIGINT]) {
        let mut it = mounted(transport);
        fs::write(it.join("file"), "x").unwrap();
        it.signal(signal);
        assert!(it.end().success());
        assert!(!is_mounted(&it.path));
    }
}

fn signal_detaches_a_mount_with_open_files(transport: &str) {
    let mut it = mounted(transport);
    let mut file = File::create(it.join("file")).unwrap();
    it.signal(libc::SIGTERM);
    wait_until("the mount is detached", || !is_mounted(&it.path));
    file.write_all(b"served until it is closed").unwrap();
    drop(file);
    assert!(it.end().success());
}

fn new_mount_replaces_the_dead_mount_of_a_killed_server(transport: &str) {
    let directory = tempfile::tempdir().unwrap();
    let mut first = Mounted::start(transport, directory.path()).unwrap();
    fs::write(first.join("file"), "x").unwrap();
    first.signal(libc::SIGKILL);
    first.end();
    wait_until("the mount is dead", || {
        let error = fs::read_dir(&first.path).and_then(|mut it| it.next().transpose()).err();
        error.is_some_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
    });
    let mut second = Mounted::start(transport, directory.path()).unwrap();
    assert_eq!(fs::read_dir(&second.path).unwrap().count(), 0);
    second.signal(libc::SIGTERM);
    assert!(second.end().success());
    assert!(!is_mounted(&second.path), "no other mount is left on the directory");
}

fn mount_on_a_mounted_directory_is_refused(transport: &str) {
    let it = mounted(transport);
    let message = Mounted::start(transport, &it.path).err().unwrap();
    assert!(message.contains("is mounted already"), "{message}");
    assert_eq!(fs::read_dir(&it.path).unwrap().count(), 0);
}

fn start(program: &str, path: &Path) -> Child {
    Command::new(program).arg(path).spawn().unwrap()
}

/// Waits until a process sleeps inside the kernel's FUSE code.
fn wait_until_blocked(child: &Child) {
    wait_until("the caller waits for the server", || {
        fs::read_to_string(format!("/proc/{}/wchan", child.id()))
            .is_ok_and(|place| place.contains("fuse") || place.contains("request_wait_answer"))
    });
}

/// Returns the number of open handles in the file system in memory, and the number of creations
/// that wait.
fn inside(path: &Path) -> (u64, u64) {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the string ends with a zero byte, and all-zero is a valid `statvfs` to overwrite.
    unsafe {
        let mut buffer = std::mem::zeroed::<libc::statvfs>();
        assert_eq!(libc::statvfs(path.as_ptr(), &raw mut buffer), 0);
        (buffer.f_files, buffer.f_ffree)
    }
}

/// docs/semantics.md 4.1.
fn a_caller_that_waits_can_be_killed(transport: &str) {
    let it = mounted(transport);
    // Start two rounds of 40 callers. Each worker has 16 slots. So on a machine with up to two
    // workers, the callers of the second round need the slots of the callers killed in the first.
    for _ in 0..2 {
        let mut callers: Vec<_> =
            (0..40).map(|i| start("stat", &it.join(&format!("never-{i}")))).collect();
        callers.iter().for_each(wait_until_blocked);
        callers.iter_mut().for_each(|caller| caller.kill().unwrap());
        for caller in &mut callers {
            caller.wait().unwrap();
        }
    }
    fs::create_dir(it.join("d")).unwrap();
    let mut creating = start("touch", &it.join("d/slow"));
    wait_until("the creation has begun", || inside(&it.path).1 == 1);
    creating.kill().unwrap();
    creating.wait().unwrap();
    fs::write(it.join("go"), "").unwrap();
    wait_until("the creation is finished", || it.join("d/slow").exists());
    wait_until("no handle is left behind", || inside(&it.path) == (0, 0));
}

/// docs/semantics.md 4.4.
fn signal_that_does_not_kill_interrupts_no_creation(transport: &str) {
    let it = mounted(transport);
    // Create the file in a separate directory, since the kernel locks the directory during the
    // creation.
    fs::create_dir(it.join("d")).unwrap();
    let mut creating = Command::new("sh")
        .arg("-c")
        .arg("trap : USR1; : > \"$1\"")
        .arg("sh")
        .arg(it.join("d/slow"))
        .spawn()
        .unwrap();
    wait_until("the creation has begun", || inside(&it.path).1 == 1);
    // SAFETY: the call takes no pointers. The test has not waited for the child yet, so the id is
    // still the child's.
    assert_eq!(unsafe { libc::kill(creating.id() as i32, libc::SIGUSR1) }, 0);
    fs::write(it.join("go"), "").unwrap();
    assert!(creating.wait().unwrap().success());
}

fn auto_uses_the_best_transport(_: &str) {
    assert_eq!(Mounted::new("auto").transport, "uring");
}
