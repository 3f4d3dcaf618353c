//! A flood of requests and of silent connections to the pages of the monitor and of a service,
//! while a program writes on a mount.

use super::{address_of, monitored, try_get};
use skep_testkit::process::Process;
use skep_testkit::{Cluster, EndGuard, PATIENCE, wait_for};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Number of connections to each page that send nothing. This number exceeds the connections that
/// each page accepts.
const SILENT: usize = 300;
/// Number of threads that send requests to each page. Each thread sends one request at a time.
const REQUESTERS: usize = 4;
/// Time limit of a request of these threads. A request waits while silent connections use all
/// connections of a page.
const REQUEST_LIMIT: Duration = Duration::from_secs(2);
/// Number of files that the program must write and read during each part of the flood.
const FILES: u64 = 100;
/// Maximum number of sockets that a process opens for other reasons during the test.
const OTHER_SOCKETS: usize = 16;
/// Maximum growth of the memory of a process during the test, in bytes.
const MORE_MEMORY: u64 = 128 << 20;

/// A page under the flood, and the process that serves it.
struct Flooded {
    path: &'static str,
    process: Process,
    /// Maximum number of connections that the page serves at the same time.
    connections: usize,
    /// Sockets and memory in bytes of the process before the flood.
    before: (usize, u64),
    /// Largest number of sockets during the flood.
    most_sockets: usize,
}

/// Returns the number of sockets of a process.
fn sockets(process: &Process) -> usize {
    let open = fs::read_dir(format!("/proc/{}/fd", process.pid)).expect("the process runs");
    let targets = open.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

impl Flooded {
    fn new(cluster: &Cluster, role: &str, path: &'static str, connections: usize) -> Self {
        let process = cluster.processes(role).swap_remove(0);
        let before = (sockets(&process), process.memory("VmRSS"));
        Self { path, process, connections, before, most_sockets: 0 }
    }

    /// Whether silent connections used most connections of the page.
    fn is_flooded(&self) -> bool {
        self.most_sockets >= self.before.0 + self.connections / 2
    }

    /// Checks the number of connections and the memory of the process.
    fn check(&mut self) {
        let (sockets, memory) = (sockets(&self.process), self.process.memory("VmRSS"));
        let most = self.before.0 + self.connections + OTHER_SOCKETS;
        assert!(sockets <= most, "{}: {sockets} sockets, {:?} before", self.path, self.before);
        let grown = memory.saturating_sub(self.before.1);
        assert!(grown <= MORE_MEMORY, "{}: {} MiB more memory", self.path, grown >> 20);
        self.most_sockets = self.most_sockets.max(sockets);
    }
}

/// Sends a request. Returns whether the reply reports success.
fn ask(address: &str, path: &str) -> std::io::Result<bool> {
    let address: SocketAddr = address.parse().expect("an address with a port");
    let mut stream = TcpStream::connect_timeout(&address, REQUEST_LIMIT)?;
    stream.set_read_timeout(Some(REQUEST_LIMIT))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    Ok(reply.starts_with(b"HTTP/1.1 200 OK\r\n"))
}

/// Writes, syncs and reads files in a directory until `stop` is set. Counts these files in
/// `written`.
fn write_files(directory: &Path, stop: &AtomicBool, written: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        let number = written.load(Ordering::SeqCst);
        let (path, text) = (directory.join(format!("f{}", number % 20)), number.to_string());
        let mut file = fs::File::create(&path).expect("a file");
        file.write_all(text.as_bytes()).expect("the file is written");
        file.sync_all().expect("the file is synced");
        assert_eq!(fs::read_to_string(&path).expect("the file is read"), text);
        written.fetch_add(1, Ordering::SeqCst);
    }
}

/// Waits until the program has written [`FILES`] further files, and checks the pages during this
/// wait.
fn wait_for_files(written: &AtomicU64, pages: &mut [Flooded]) {
    let before = written.load(Ordering::SeqCst);
    wait_for("the program on the mount continues", PATIENCE, || {
        pages.iter_mut().for_each(Flooded::check);
        (written.load(Ordering::SeqCst) >= before + FILES).then_some(())
    });
}

/// Command: skep monitor.
#[test]
fn flood_of_page_requests_blocks_neither_mount_nor_pages() {
    let cluster = Cluster::start(monitored());
    let file = cluster.data().join("storage-1/metrics-address");
    let of_service = fs::read_to_string(&file).expect("the address of the service's page");
    let of_service = (of_service.trim().to_owned(), "/metrics");
    let of_monitor = (address_of(&cluster), "/api/history?span=3600&points=300");
    // The limits are in `crates/monitor/src/limits.rs` and in `crates/exporter/src/http.rs`.
    let mut pages = [
        Flooded::new(&cluster, "monitor", of_monitor.1, 256),
        Flooded::new(&cluster, "storage", of_service.1, 16),
    ];
    let addresses = [of_monitor, of_service];
    let replies = [AtomicU64::new(0), AtomicU64::new(0)];
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // The threads must end even if an assertion fails.
        let _end = EndGuard(&stop);
        scope.spawn(|| write_files(cluster.path(), &stop, &written));
        for ((address, path), replies) in addresses.iter().zip(&replies) {
            for _ in 0..REQUESTERS {
                let stop = &stop;
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let is_answered = ask(address, path).unwrap_or(false);
                        replies.fetch_add(u64::from(is_answered), Ordering::SeqCst);
                    }
                });
            }
        }
        wait_for("each page replies to requests", PATIENCE, || {
            replies.iter().all(|it| it.load(Ordering::SeqCst) > 20).then_some(())
        });
        wait_for_files(&written, &mut pages);
        let connect = |address: &str| TcpStream::connect(address).expect("a connection");
        let silent: Vec<_> = addresses
            .iter()
            .flat_map(|(address, _)| (0..SILENT).map(move |_| connect(address)))
            .collect();
        wait_for("each page accepts silent connections", PATIENCE, || {
            pages.iter_mut().for_each(Flooded::check);
            pages.iter().all(Flooded::is_flooded).then_some(())
        });
        wait_for_files(&written, &mut pages);
        drop(silent);
    });
    for (address, path) in &addresses {
        wait_for(path, PATIENCE, || ask(address, path).unwrap_or(false).then_some(()));
    }
    assert!(try_get(&addresses[0].0, "/api/live").is_some());
    cluster.stop();
}
