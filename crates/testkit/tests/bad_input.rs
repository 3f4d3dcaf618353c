//! Bad input of all kinds. Skep refuses each input with a message that names the input and contains
//! a hint on how to fix the input. The input damages no data.

use rustix::fs::{CWD, FileType, Mode, OFlags, XattrFlags, mknodat, setxattr};
use skep_testkit::cluster::{program, skep};
use skep_testkit::files;
use skep_testkit::power::Disk;
use skep_testkit::process::Process;
use skep_testkit::program::finish;
use skep_testkit::view::Typed;
use skep_testkit::{Cluster, Random, Scratch, Shape, Transport, eventually, wait_for};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit of each command. The limit is shorter than in other tests, because Skep should refuse
/// bad input immediately.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum time until a metadata log has used up its preallocated space, so that the service
/// notices the full disk.
const FULL_PATIENCE: Duration = Duration::from_secs(300);

/// Checks that a message contains all of `words`.
#[track_caller]
fn check_message(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "no '{word}' in: {message}");
    }
}

fn token(cluster: &Cluster) -> String {
    let token = fs::read_to_string(cluster.data().join("management/join-token"));
    token.expect("management keeps a token").trim().to_owned()
}

/// Tries to mount with a token that must be refused. Returns the message of `skep mount`.
fn mount_with(scratch: &Scratch, token: &str) -> String {
    let file = scratch.join("token");
    files::write_secret(&file, token);
    let mut command = Command::new(program());
    command
        .args(["mount", "--foreground", "--token-file"])
        .arg(&file)
        .arg(scratch.directory("mnt"));
    finish(&mut command, PATIENCE).expect_failure()
}

#[test]
fn mount_with_a_wrong_token_is_refused() {
    let (cluster, scratch) = (Cluster::start(Shape::small()), Scratch::new());
    let good = token(&cluster);
    let (key, address) = good.split_once('@').expect("a token names an address");
    let last = if key.ends_with('0') { '1' } else { '0' };
    let bad = format!("{}{last}@{address}", &key[..key.len() - 1]);
    let message = mount_with(&scratch, &bad);
    check_message(&message, &["token"]);
    check_message(&mount_with(&scratch, "nonsense"), &["token"]);
    check_message(&mount_with(&scratch, &key[..20]), &["token"]);
    // The message contains no part of the secret.
    assert!(!message.contains(&key[key.len() - 20..key.len() - 2]), "{message}");
}

#[test]
fn mount_with_a_token_of_another_cluster_is_refused() {
    let (cluster, other, scratch) =
        (Cluster::start(Shape::small()), Cluster::start(Shape::small()), Scratch::new());
    let (here, there) = (token(&cluster), token(&other));
    let (_, address) = here.split_once('@').expect("a token names an address");
    let (key, _) = there.split_once('@').expect("a token names an address");
    check_message(&mount_with(&scratch, &format!("{key}@{address}")), &["cluster"]);
}

/// As in other file systems, a mount point must be a directory, whose contents the mounted file
/// system hides.
#[test]
fn error_names_an_unusable_mount_point() {
    let (mut cluster, scratch) = (Cluster::start(Shape::small()), Scratch::new());
    let data = cluster.data().to_owned();
    let refused = |path: &Path| {
        let mut command = Command::new(program());
        command.args(["mount", "--foreground", "--cluster"]).arg(&data).arg(path);
        let message = finish(&mut command, PATIENCE).expect_failure();
        check_message(&message, &[path.to_str().expect("UTF-8")]);
        message
    };
    check_message(&refused(&scratch.join("missing")), &["No such file or directory"]);
    files::write(scratch.join("file"), "x");
    check_message(&refused(&scratch.join("file")), &["not a directory"]);
    check_message(&refused(cluster.path()), &["mounted already"]);
    let full = cluster.path().with_file_name("mnt-1");
    files::create_dir(&full);
    files::write(full.join("below"), "x");
    let mounted = cluster.mount(Transport::Device);
    assert_eq!(mounted.path(), full);
    assert!(!full.join("below").exists());
    mounted.unmount();
    assert_eq!(files::read(full.join("below")), b"x");
}

fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

/// Returns the first frame of a connection. The frame offers the protocol versions `oldest` to
/// `newest`, and the secret with the id `secret`. The test builds the frame from the description in
/// docs/protocol, without Skep's own code.
fn hello(cluster: [u8; 16], oldest: u16, newest: u16, secret: u64) -> Vec<u8> {
    let mut body = cluster.to_vec();
    body.extend(oldest.to_le_bytes());
    body.extend(newest.to_le_bytes());
    // The next fields state that the sender is a client without an id. This client connects to the
    // node itself (target 0), and uses no channel. The nonce follows.
    body.extend([4, 0, 0, 0, 0, 0, 0, 0, 0]);
    body.extend([0; 8]);
    body.extend([7; 16]);
    // The number of secrets, followed by the id of each secret.
    body.extend(1_u32.to_le_bytes());
    body.extend(secret.to_le_bytes());
    let mut frame = b"SKEP\x80\0\0\0".to_vec();
    frame.extend([1, 0, 1, 0, 1, 0, 0, 0]);
    frame.extend((body.len() as u32).to_le_bytes());
    frame.resize(120, 0);
    frame.extend(crc32c(&body).to_le_bytes());
    frame.extend(crc32c(&frame).to_le_bytes());
    frame.extend(body);
    frame
}

/// Sends a frame to management. Returns the status and the text of the reply.
fn ask(address: &str, frame: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("management accepts connections");
    stream.set_read_timeout(Some(PATIENCE)).expect("a deadline");
    stream.write_all(frame).expect("sent");
    let mut header = [0; 128];
    stream.read_exact(&mut header).expect("an answer");
    let len = u32::from_le_bytes(header[16..20].try_into().expect("four bytes"));
    let mut body = vec![0; len as usize];
    stream.read_exact(&mut body).expect("the body of the reply");
    let status = u16::from_le_bytes([header[44], header[45]]);
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[test]
fn peer_without_a_common_protocol_version_is_refused() {
    let cluster = Cluster::start(Shape::small());
    let token = token(&cluster);
    let (key, address) = token.split_once('@').expect("a token names an address");
    let id = key.split('-').nth(1).expect("a token names its cluster");
    let byte = |at: usize| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).expect("hexadecimal");
    let id: [u8; 16] = std::array::from_fn(byte);
    let management = cluster.data().join("management").display().to_string();
    let listed = skep(["token", "list", "--directory", &management, "--output", "json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed.expect_success()).expect("JSON");
    let secret = listed[0]["id"].as_str().expect("a text");
    let secret = u64::from_str_radix(secret, 16).expect("hexadecimal");
    let (status, text) = ask(address, &hello(id, 7, 9, secret));
    assert_ne!(status, 0);
    check_message(&text, &["7 to 9", "upgrade"]);
    // A client that offers the current and the next protocol version gets a challenge.
    assert_eq!(ask(address, &hello(id, 1, 2, secret)).0, 0);
}

/// Stops a cluster. Returns its service processes with the role `role`, including their command
/// lines.
fn stopped(cluster: &Cluster, role: &str) -> Vec<Process> {
    let found = wait_for("services to look at", PATIENCE, || {
        let found = cluster.processes(role);
        (!found.is_empty()).then_some(found)
    });
    cluster.stop();
    found
}

/// Starts a stopped service with its old command line, after `change` has replaced some of the
/// arguments. The start must fail. Returns the error message.
fn start_again(process: &Process, change: impl Fn(&mut Vec<String>)) -> String {
    let mut arguments = process.arguments[1..].to_vec();
    change(&mut arguments);
    finish(Command::new(program()).args(arguments), PATIENCE).expect_failure()
}

#[test]
fn error_for_a_port_in_use_names_its_number() {
    let cluster = Cluster::start(Shape::small());
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("the socket has an address").to_string();
    let token = cluster.data().join("management/join-token").display().to_string();
    for role in ["management", "metadata", "storage"] {
        // Start a second service on the same host. The settings of this service contain a port that
        // is already in use.
        let scratch = Scratch::new();
        let directory = scratch.join("service").display().to_string();
        let target = scratch.join("target").display().to_string();
        let mut arguments = vec![role, "--directory", &directory];
        let mut init = vec!["--init", "--listen", "127.0.0.1:0"];
        if role != "management" {
            arguments.extend(["--target", &target]);
            init.extend(["--token-file", &token]);
        }
        skep([&arguments[..], &init].concat()).expect_success();
        let message = skep([&arguments[..], &["--listen", &address]].concat()).expect_failure();
        check_message(&message, &[&address, "listen", "choose another"]);
    }
}

#[test]
fn error_for_a_foreign_target_directory_names_its_path() {
    let (cluster, other) = (Cluster::start(Shape::small()), Cluster::start(Shape::small()));
    let storage = stopped(&cluster, "storage").remove(0);
    stopped(&other, "storage");
    let own = cluster.data().join("storage-1/t1").display().to_string();
    let second = cluster.data().join("storage-1/t2").display().to_string();
    let foreign = other.data().join("storage-1/t1").display().to_string();
    // Remove the second target from the command line. With this argument, the service would start
    // and serve that target.
    let swap = |with: &str| {
        let with = with.to_owned();
        let (own, second) = (own.clone(), second.clone());
        move |arguments: &mut Vec<String>| {
            if let Some(at) = arguments.iter().position(|it| *it == second) {
                arguments.drain(at - 1..=at);
            }
            for argument in arguments.iter_mut().filter(|it| **it == own) {
                argument.clone_from(&with);
            }
        }
    };
    check_message(&start_again(&storage, swap(&foreign)), &[&foreign, "cluster"]);
    // An empty directory may be the mount point of a missing disk. So the service must not treat an
    // empty directory as a new target.
    let blank = cluster.data().join("blank");
    files::create_dir(&blank);
    let blank = blank.display().to_string();
    check_message(&start_again(&storage, swap(&blank)), &[&blank, "--init"]);
    let metadata = cluster.data().join("metadata-1/t1").display().to_string();
    check_message(&start_again(&storage, swap(&metadata)), &[&metadata, "metadata"]);
    let missing = cluster.data().join("missing").display().to_string();
    check_message(&start_again(&storage, swap(&missing)), &[&missing]);
    // After the refused starts, the cluster can still start.
    cluster.up().expect_success();
    cluster.stop();
}

/// Writes a file until no space is left. Checks that the file contains exactly the bytes of the
/// acknowledged writes. Returns the length of the file.
fn fill(path: &Path) -> usize {
    let mut random = Random::new(5);
    let bytes = random.bytes(1 << 20);
    let mut file = files::create(path);
    let mut written = 0;
    let error = loop {
        match file.write(&bytes) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
        assert!(written < 4 << 30, "a write fails before 4 GiB, because the disk is smaller");
    };
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    file.sync_all().expect("the written bytes can be synced");
    drop(file);
    let found = files::read(path);
    assert_eq!(found.len(), written, "the file has only bytes of acknowledged writes");
    for (number, piece) in found.chunks(1 << 20).enumerate() {
        assert!(piece == &bytes[..piece.len()], "MiB {number}");
    }
    written
}

/// docs/semantics.md 4.8.
#[test]
fn full_target_returns_enospc_until_space_is_freed() {
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, 512 << 20);
    let cluster = Cluster::start_in(disk.path(), Shape::small());
    let before = cluster.path().join("before");
    files::write(&before, vec![9; 100_000]);
    let first = fill(&cluster.path().join("large"));
    assert!(first > 50 << 20, "{first} bytes fitted");
    assert!(files::read(&before).iter().all(|byte| *byte == 9));
    // The removal of a file frees space. So a removal must succeed even if no space is free.
    files::remove_file(cluster.path().join("large"));
    wait_for("free space is reported again", PATIENCE, || {
        fs::write(cluster.path().join("after"), vec![8; 20 << 20]).ok()
    });
    assert!(files::read(cluster.path().join("after")).iter().all(|byte| *byte == 8));
    cluster.stop();
}

/// Returns a running cluster whose only metadata target is on the separate disk at `disk`.
fn with_metadata_on(disk: &Path) -> Cluster {
    let cluster = Cluster::start(Shape::small());
    cluster.stop();
    let (target, moved) = (cluster.data().join("metadata-1/t1"), disk.join("t1"));
    finish(Command::new("cp").arg("-a").args([&target, &moved]), PATIENCE).expect_success();
    files::remove_dir_all(&target);
    files::symlink(&moved, &target);
    cluster.up().expect_success();
    cluster
}

/// Fills a disk until the disk has no free space.
fn take_all(path: &Path) {
    let mut file = files::create(path);
    for block in [1 << 20, 4096] {
        let zeros = vec![0; block];
        while file.write_all(&zeros).is_ok() {}
        // The file system reserves space for a growing file. This sync releases the reserved space,
        // so the next iteration uses up this space, too.
        files::sync_all(&file);
    }
}

/// Waits until the metadata target has noticed the full disk and refuses new entries. Checks that
/// the target returns no other error than ENOSPC.
#[track_caller]
fn takes_nothing_new(root: &Path) {
    let probe = root.join("probe");
    wait_for("a refusal", PATIENCE, || match File::create(&probe) {
        Ok(_) => fs::remove_file(&probe).err(),
        Err(error) => Some(error),
    });
    let (old, new, directory) = (root.join("file-1"), root.join("new"), root.join("directory"));
    let (any, mode) = (XattrFlags::empty(), Mode::RUSR | Mode::WUSR);
    let node = |kind| mknodat(CWD, &new, kind, mode, 0).err();
    let nameless = || rustix::fs::open(root, OFlags::TMPFILE | OFlags::RDWR, mode).err();
    let set = |path: &Path, name: &str, value: &str| {
        setxattr(path, name, value.as_bytes(), any).err().map(std::io::Error::from)
    };
    let refusals = [
        ("create", File::create(&new).err()),
        ("mkdir", fs::create_dir(&new).err()),
        ("symlink", std::os::unix::fs::symlink("there", &new).err()),
        ("link", fs::hard_link(&old, &new).err()),
        ("a pipe", node(FileType::Fifo).map(Into::into)),
        ("a file by mknod", node(FileType::RegularFile).map(Into::into)),
        ("O_TMPFILE", nameless().map(Into::into)),
        ("an attribute", set(&old, "user.new", "x")),
        ("an attribute of a directory", set(&directory, "user.new", "x")),
        ("a pattern", set(&directory, "user.skep.pattern", "count=1")),
    ];
    for (what, refusal) in refusals {
        let kind = refusal.map(|error| error.kind());
        assert_eq!(kind, Some(std::io::ErrorKind::StorageFull), "{what}");
    }
}

/// docs/semantics.md 4.8.
#[test]
fn full_metadata_target_refuses_only_new_entries() {
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, 512 << 20);
    let cluster = with_metadata_on(disk.path());
    let at = |number: u32| cluster.path().join(format!("file-{number}"));
    // The files are larger than the inline bytes, so their bytes are on storage.
    let content = |number: u32, version: u32| format!("{number}, version {version}").repeat(2_000);
    for number in 0..200 {
        files::write(at(number), content(number, 1));
    }
    let small = cluster.path().join("small");
    files::write(&small, "small");
    files::create_dir(cluster.path().join("directory"));
    let stranger = disk.path().join("stranger");
    take_all(&stranger);
    takes_nothing_new(cluster.path());
    wait_for("the target is shown as almost full", PATIENCE, || {
        let targets = cluster.skep_json(&["target", "list"]);
        let metadata = targets.as_array()?.iter().find(|it| it["kind"] == "metadata")?;
        (metadata["pool"] == "emergency").then_some(())
    });
    let refused = fs::write(&small, "other bytes").map_err(|error| error.kind());
    assert_eq!(refused, Err(std::io::ErrorKind::StorageFull), "metadata has the bytes of the file");
    // Programs can still read, overwrite, extend, rename and remove other existing files, also
    // after a kill of the target.
    for (version, first) in [(2, 0), (3, 100)] {
        for number in first..first + 50 {
            files::write(at(number), content(number, version));
            let found = files::read_to_string(at(number));
            assert_eq!(found, content(number, version));
        }
        files::rename(at(first), at(first + 1));
        for number in first + 50..first + 100 {
            files::remove_file(at(number));
        }
        takes_nothing_new(cluster.path());
        cluster.kill_all();
        cluster.up().expect_success();
        let moved = files::read_to_string(at(first + 1));
        assert_eq!(moved, content(first, version));
        for number in first + 2..first + 50 {
            let found = files::read_to_string(at(number));
            assert_eq!(found, content(number, version));
        }
        assert!(!at(first).exists() && !at(first + 50).exists());
        takes_nothing_new(cluster.path());
    }
    files::remove_file(&stranger);
    wait_for("the full file system has space again", PATIENCE, || {
        fs::create_dir(cluster.path().join("d")).ok()
    });
    for number in 1000..1100 {
        files::write(at(number), content(number, 1));
    }
    let is_file = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("file-");
    let names = files::read_dir(cluster.path()).map(|it| it.expect("one").file_name());
    assert_eq!(names.filter(is_file).count(), 49 + 49 + 100);
    cluster.stop();
}

/// The service must write each change to its log, even if the change itself needs no space. If the
/// disk has no space for the log, the service logs a message and waits for space. No acknowledged
/// change is lost. After space on the disk is freed, waiting clients continue without a restart of
/// the service. docs/semantics.md 4.8.
#[test]
fn metadata_service_waits_for_log_space_and_then_continues() {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, 512 << 20);
    let cluster = with_metadata_on(disk.path());
    let paths: Vec<_> = (0..4).map(|number| cluster.path().join(format!("f{number}"))).collect();
    for path in &paths {
        files::write(path, "x");
    }
    let stranger = disk.path().join("stranger");
    take_all(&stranger);
    let process = cluster.processes("metadata")[0].pid;
    let (is_enough, done) = (AtomicBool::new(false), AtomicU32::new(0));
    let change = |path: &Path| {
        let mut mode = 0;
        while !is_enough.load(Ordering::Relaxed) {
            mode = (mode + 1) % 0o1000;
            let permissions = fs::Permissions::from_mode(mode);
            fs::set_permissions(path, permissions)
                .expect("an operation on a full disk waits, and does not fail");
            done.fetch_add(1, Ordering::Relaxed);
        }
        mode
    };
    std::thread::scope(|scope| {
        let changing: Vec<_> = paths.iter().map(|path| scope.spawn(|| change(path))).collect();
        let log = cluster.data().join("logs/metadata-1.log");
        let printed = eventually(FULL_PATIENCE, || {
            let text = fs::read_to_string(&log).ok()?;
            text.contains("is full; free up space on this disk").then_some(())
        });
        // Free the space before any assertion, because the waiting changes need space to complete.
        files::remove_file(&stranger);
        let before = done.load(Ordering::Relaxed);
        wait_for("the waiting changes continue", PATIENCE, || {
            (done.load(Ordering::Relaxed) > before + 100).then_some(())
        });
        is_enough.store(true, Ordering::Relaxed);
        assert!(printed.is_some(), "the service reports the full disk");
        for (path, changing) in paths.iter().zip(changing) {
            let mode = changing.join().expect("no change failed");
            let found = files::metadata(path).permissions().mode();
            assert_eq!(found & 0o777, mode, "{}", path.display());
        }
    });
    assert_eq!(cluster.processes("metadata")[0].pid, process, "the process continues");
    cluster.stop();
}

fn segments(cluster: &Cluster) -> Vec<PathBuf> {
    let log = cluster.data().join("metadata-1/t1/log");
    let mut found: Vec<_> = files::read_dir(log).map(|it| it.expect("an entry").path()).collect();
    found.sort();
    found
}

/// Starts a cluster, writes many records to its metadata log, and kills the cluster.
fn with_a_log() -> Cluster {
    let cluster = Cluster::start(Shape::small());
    for number in 0..300 {
        files::write(cluster.path().join(format!("file-{number}")), "x");
    }
    let directory = files::open(cluster.path());
    files::sync_all(&directory);
    drop(directory);
    cluster.kill_all();
    cluster
}

/// Returns the newest segment of the log, and its bytes up to the end of the last record.
fn last_segment(cluster: &Cluster) -> (PathBuf, Vec<u8>) {
    let last = segments(cluster).pop().expect("a segment");
    let mut bytes = files::read(&last);
    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).expect("not empty") + 1);
    (last, bytes)
}

#[test]
fn torn_log_tail_is_truncated_and_logged() {
    let cluster = with_a_log();
    let (last, bytes) = last_segment(&cluster);
    let file = files::open_with(OpenOptions::new().write(true), &last);
    // Truncate the log in the middle of its last record, as a power loss might do.
    files::set_len(&file, bytes.len() as u64 - 20);
    drop(file);
    cluster.up().expect_success();
    let found = files::read_dir(cluster.path()).count();
    assert!((299..=300).contains(&found), "{found} files are left");
    files::write(cluster.path().join("more"), "y");
    let log = files::read_to_string(cluster.data().join("logs/metadata-1.log"));
    check_message(&log, &["bytes at the end of its log, since a crash left an unfinished write"]);
    cluster.stop();
}

#[test]
fn flipped_bit_in_the_log_is_reported_with_its_file() {
    let cluster = with_a_log();
    let (last, bytes) = last_segment(&cluster);
    let file = files::open_with(OpenOptions::new().write(true), &last);
    // Damage a byte in the first third of the log. The records after this byte were synced, so the
    // service must not treat the damage as a torn write.
    let at = bytes.len() / 3;
    files::write_all_at(&file, &[bytes[at] ^ 0x10], at as u64);
    drop(file);
    let message = cluster.up().expect_failure();
    check_message(&message, &["metadata-1", last.to_str().expect("ASCII")]);
    // After the bit has been restored, the cluster starts and has all files.
    let file = files::open_with(OpenOptions::new().write(true), &last);
    files::write_all_at(&file, &[bytes[at]], at as u64);
    drop(file);
    cluster.up().expect_success();
    assert_eq!(files::read_dir(cluster.path()).count(), 300);
    cluster.stop();
}

fn files_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for path in files::read_dir(directory).map(|it| it.expect("an entry").path()) {
        if path.is_dir() {
            files_below(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Returns the name of the storage target that stores a chunk file.
fn target_at(cluster: &Cluster, chunk_file: &Path) -> String {
    let targets = cluster.skep_list(&["target", "list"]);
    let is_its = |it: &&serde_json::Value| {
        it["kind"] == "storage" && chunk_file.starts_with(it["path"].text())
    };
    let target = targets.iter().find(is_its).expect("a target has the chunk file");
    format!("t{}", target["id"])
}

/// docs/semantics.md 4.7.
#[test]
fn flipped_bit_in_a_chunk_file_fails_reads_and_is_logged() {
    let cluster = Cluster::start(Shape::small());
    let (bad, good) = (cluster.path().join("bad"), cluster.path().join("good"));
    let bytes = Random::new(3).bytes(300_000);
    for path in [&bad, &good] {
        let file = files::create(path);
        files::write_all(&file, &bytes);
        files::sync_all(&file);
    }
    cluster.stop();
    // Find the chunk files with the bytes of `bad` and `good`. The files `bad` and `good` have the
    // same bytes, but the test damages only one chunk file.
    let mut found = Vec::new();
    for target in ["t1", "t2"] {
        files_below(&cluster.data().join("storage-1").join(target).join("chunks"), &mut found);
    }
    let part = &bytes[100_000..100_064];
    let (path, at) = found
        .iter()
        .find_map(|path| {
            let content = files::read(path);
            let at = content.windows(part.len()).position(|window| window == part)?;
            Some((path.clone(), at))
        })
        .expect("the bytes are in a chunk file");
    let file = files::open_with(OpenOptions::new().write(true), &path);
    files::write_all_at(&file, &[part[0] ^ 1], at as u64);
    drop(file);
    cluster.up().expect_success();
    let results = [&bad, &good].map(fs::read);
    let failed: Vec<_> = results.iter().filter_map(|it| it.as_ref().err()).collect();
    assert_eq!(failed.len(), 1, "exactly one of the two files is damaged");
    assert_eq!(failed[0].raw_os_error(), Some(5), "{}", failed[0]);
    let whole: Vec<_> = results.iter().flatten().collect();
    assert!(*whole[0] == bytes, "wrong bytes were read");
    let log = |name: &str| {
        let path = cluster.data().join("logs").join(name);
        files::read_to_string(path)
    };
    let name = path.file_name().and_then(|it| it.to_str()).expect("ASCII");
    check_message(&log("storage-1.log"), &["checksum", name]);
    let damaged = if results[0].is_err() { &bad } else { &good };
    // The client's log contains the id of the file, and the target that sent the damaged bytes.
    let info = cluster.skep_json(&["entry", "info", damaged.to_str().expect("ASCII")]);
    let file = info["entry_id"].text();
    let target = target_at(&cluster, &path);
    let mounts = log("mount.log");
    let line = mounts.lines().find(|line| line.contains("ERROR")).expect("an error is logged");
    check_message(line, &[&format!("file {file}"), &format!("target {target}"), "checksum"]);
    // The other parts of the file, which are not damaged, can still be read.
    let mut first = vec![0; 4096];
    files::read_exact_at(&files::open(damaged), &mut first, 0);
    assert!(first == bytes[..4096]);
    cluster.stop();
}

#[test]
fn unreadable_configuration_is_refused_with_the_reason() {
    let scratch = Scratch::new();
    let with = |text: &str| {
        let file = scratch.join("storage.toml");
        files::write(&file, text);
        let file = file.display().to_string();
        (file.clone(), skep(["storage", "--config", &file]).expect_failure())
    };
    let missing = scratch.join("missing.toml").display().to_string();
    check_message(
        &skep(["storage", "--config", &missing]).expect_failure(),
        &[&missing, "No such file"],
    );
    let (file, message) = with("targets = [\"/a\"\n");
    check_message(&message, &[&file, "line"]);
    let (file, message) = with("targetz = [\"/a\"]\n");
    check_message(&message, &[&file, "targetz", "targets"]);
    // A single message must report all mistakes in a settings file.
    let (_, message) =
        with("targets = []\n[node]\nlisten = \"10.0.0.1:port\"\nlog = \"skep_rpc=loud\"\n");
    check_message(&message, &["targets", "node.directory", "node.listen", "node.log"]);
    files::write(scratch.join("storage.toml"), [0xff, 0xfe, 0]);
    let file = scratch.join("storage.toml").display().to_string();
    check_message(&skep(["storage", "--config", &file]).expect_failure(), &[&file]);
}
