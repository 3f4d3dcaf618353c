//! Processes that do not belong to the cluster. A foreign process listens on the port of a dead
//! service. Other processes open thousands of connections and send no bytes. Users of a server's
//! host try to read the server's data.

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use skep_testkit::{Cluster, PATIENCE, Shape, files, wait_for};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Returns the address of the first service of a kind, from the cluster map.
fn address_of(cluster: &Cluster, kind: &str) -> String {
    let nodes = cluster.skep_json(&["node", "list"]);
    let node = nodes.as_array().expect("a list").iter().find(|node| node["kind"] == kind);
    let address = &node.expect("the service is in the map")["addresses"][0];
    address.as_str().expect("an address").to_owned()
}

/// Computes a CRC-32C bit by bit, without Skep's own code.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ (0x82F6_3B78 * (crc & 1));
        }
    }
    !crc
}

/// Returns an error reply to `Hello` in the form of `docs/protocol/frame.md`.
fn refusal(status: u16) -> Vec<u8> {
    let text = b"forged\nline";
    let mut body = (text.len() as u32).to_le_bytes().to_vec();
    body.extend(text);
    let mut header = vec![0_u8; 128];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"SKEP");
    put(4, &128_u16.to_le_bytes());
    // The fields are the protocol version, the message number, the version of the message, and the
    // flag that marks a reply.
    for (at, number) in [(8, 1_u16), (10, 1), (12, 1), (14, 1)] {
        put(at, &number.to_le_bytes());
    }
    put(16, &(body.len() as u32).to_le_bytes());
    put(44, &status.to_le_bytes());
    put(120, &crc32c(&body).to_le_bytes());
    let crc = crc32c(&header[..124]);
    header[124..].copy_from_slice(&crc.to_le_bytes());
    [header, body].concat()
}

/// Reads the first frame of a connection.
fn read_hello(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut header = [0; 128];
    stream.read_exact(&mut header)?;
    let len = u32::from_le_bytes([header[16], header[17], header[18], header[19]]);
    stream.read_exact(&mut vec![0; len as usize])
}

/// A process that listens at the address of a dead service. This process replies to each `Hello`
/// with an error, and uses each error code in turn.
struct Stranger {
    address: String,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Stranger {
    fn at(address: &str) -> Self {
        let listener = wait_for("the port is free", PATIENCE, || TcpListener::bind(address).ok());
        let (stop, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (is_over, count) = (Arc::clone(&stop), Arc::clone(&answered));
        let thread = std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                if is_over.load(Ordering::Acquire) {
                    break;
                }
                stream.set_read_timeout(Some(Duration::from_secs(1))).expect("a socket");
                let status = count.load(Ordering::Acquire) % 41 + 1;
                if read_hello(&mut stream).is_ok() {
                    // Ignore errors, because the mount may have closed the connection.
                    let _ = stream.write_all(&refusal(status as u16));
                    count.fetch_add(1, Ordering::AcqRel);
                    // Read until the mount has sent all its bytes. A close of the connection while
                    // bytes arrive could lose the reply.
                    let _ = stream.read(&mut [0]);
                }
            }
        });
        Self { address: address.to_owned(), stop, answered, thread: Some(thread) }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Connect once, because the thread waits for a connection before it checks `stop`.
        drop(TcpStream::connect(&self.address));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// docs/semantics.md 4.11.
///
/// Regression test: programs got each error that the foreign process sent, and after `Evicted` the
/// mount gave up its handles for writing.
#[test]
fn mount_waits_while_a_foreign_process_has_a_services_port() {
    let cluster = Cluster::start(Shape::small());
    cluster.turn_off_inline_bytes();
    let path = cluster.path().join("file");
    let mut file = files::create(&path);
    file.write_all(b"before").expect("the file is written");
    let address = address_of(&cluster, "storage");
    let services = cluster.processes("storage");
    let [service] = &services[..] else {
        panic!("expected one storage service, found {services:?}")
    };
    // The supervisor would restart the killed service, so suspend the supervisor first.
    cluster.processes("up").iter().for_each(|it| it.signal(Signal::STOP));
    service.kill();
    let stranger = Stranger::at(&address);
    let writer = std::thread::spawn(move || {
        file.write_all(b" and after").and_then(|()| file.sync_all()).map(|()| file)
    });
    wait_for("the foreign process has sent each code twice", PATIENCE, || {
        (stranger.answered.load(Ordering::Acquire) > 82).then_some(())
    });
    assert!(!writer.is_finished(), "the program waits");
    drop(stranger);
    cluster.processes("up").iter().for_each(|it| it.signal(Signal::CONT));
    writer.join().expect("no panic").expect("the write succeeds");
    assert_eq!(files::read(&path), b"before and after");
    let log =
        String::from_utf8_lossy(&files::read(cluster.data().join("logs/mount.log"))).into_owned();
    assert!(log.contains(&address), "the mount names the address: {log}");
    assert!(!log.lines().any(|line| line.starts_with("line")), "each message has one line: {log}");
    assert!(log.lines().count() < 50, "the log has few lines: {log}");
}

/// Regression test: 3,000 connections without any bytes cost 200 MiB of memory, and each connection
/// cost a log line.
#[test]
fn silent_connections_cost_little_memory_and_block_no_mount() {
    const STRANGERS: usize = 3000;
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).expect("the limit can be raised");
    let mut cluster = Cluster::start(Shape::small());
    // The file is larger than the inline bytes, so the new mount needs the storage service.
    files::write(cluster.path().join("file"), vec![b'x'; 65_536]);
    let log = cluster.data().join("logs/storage-1.log");
    let lines = || String::from_utf8_lossy(&files::read(&log)).lines().count();
    let (address, before) = (address_of(&cluster, "storage"), lines());
    let services = cluster.processes("storage");
    let [service] = &services[..] else {
        panic!("expected one storage service, found {services:?}")
    };
    let memory = service.memory("VmRSS");
    let began = Instant::now();
    let strangers: Vec<_> = (0..STRANGERS)
        .map(|_| {
            TcpStream::connect(&address).expect("the service accepts or queues the connection")
        })
        .collect();
    // A new mount connects to the same service from the same address.
    let mount = cluster.mount(skep_testkit::Transport::Device);
    assert!(files::read(mount.path().join("file")) == vec![b'x'; 65_536]);
    let cost = service.memory("VmRSS").saturating_sub(memory);
    assert!(cost < 32 << 20, "{cost} bytes of memory for {} connections", strangers.len());
    let descriptors =
        std::fs::read_dir(format!("/proc/{}/fd", service.pid)).expect("the process runs");
    assert!(descriptors.count() < 1000, "the service closes surplus sockets");
    let most = before + 20 + 2 * began.elapsed().as_secs() as usize;
    assert!(lines() <= most, "{} lines, at most {most} expected", lines());
    drop(strangers);
    mount.unmount();
}

/// Returns the files and directories below `directory` that other users may access.
fn open_to_others(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("the directory can be read").flatten() {
        // Skip a file that the service has removed in the meantime.
        let Ok(metadata) = entry.path().symlink_metadata() else { continue };
        if metadata.mode() & 0o077 != 0 && !metadata.is_symlink() {
            found.push(format!("{} {:o}", entry.path().display(), metadata.mode()));
        }
        if metadata.is_dir() {
            found.extend(open_to_others(&entry.path()));
        }
    }
    found
}

/// Regression test: every user of a server's host could read the data of all files, unless the
/// shipped systemd units had started the services.
#[test]
fn other_users_cannot_read_data_of_services() {
    let cluster = Cluster::start(Shape::small());
    let bytes = vec![1_u8; 100_000];
    files::write(cluster.path().join("file"), &bytes);
    assert!(!cluster.chunk_files().is_empty());
    let found = open_to_others(cluster.data());
    assert!(found.is_empty(), "{found:#?}");
    // An older version created directories that other users could read. At its start, a service
    // removes these permissions.
    cluster.stop();
    let target = cluster.data().join("storage-1");
    std::fs::set_permissions(&target, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("our own directory");
    cluster.up().expect_success();
    assert_eq!(
        std::fs::metadata(&target).expect("the target directory exists").mode() & 0o777,
        0o700
    );
    wait_for("the mount reads the file", Duration::from_secs(60), || {
        (std::fs::read(cluster.path().join("file")).ok()? == bytes).then_some(())
    });
}
