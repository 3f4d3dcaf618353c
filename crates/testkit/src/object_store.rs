//! A small object store with the interface of S3, for tests of copies.
//!
//! The store checks signatures and checksums with code of its own, returns listings in pages,
//! supports multipart uploads, and fails when a test requests a failure. The store keeps all
//! objects in memory, and has a single bucket, [`BUCKET`]. The store refuses requests with any
//! access key other than [`ACCESS`].
//!
//! This module stores the objects, and causes the failures. The module `operations` executes the
//! requests, `wire` handles HTTP and signatures, and `tls` handles certificates and encryption.

mod operations;
mod tls;
mod wire;

use crate::page::PageHost;
use md5::{Digest, Md5};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sha2::Sha256;
use std::collections::BTreeMap;
use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
pub use tls::Authority;
use tls::TlsServer;
pub(crate) use wire::{Reply, Request};

/// Name of the only bucket.
pub const BUCKET: &str = "data";
/// Access key id of the only credentials that may use the bucket.
pub const ACCESS: &str = "AKIDTEST";
/// Secret access key of these credentials.
pub const SECRET: &str = "secret/of+the=tests";
/// Session token of these credentials. The store refuses requests without this token.
pub const TOKEN: &str = "session-token-of-the-tests";
/// Minimum length of each part of a multipart upload except the last part, in bytes.
const LEAST_PART: usize = 5 << 20;
/// Name of the header with the checksum of an object.
const CRC: &str = "x-amz-checksum-crc32c";

/// A stored object.
#[derive(Debug, Clone, Default)]
pub struct Stored {
    /// The bytes of the object.
    pub bytes: Vec<u8>,
    /// The object's entity tag, including quotation marks.
    pub etag: String,
    /// The object's metadata, without the prefix `x-amz-meta-`.
    pub metadata: BTreeMap<String, String>,
    /// Whether the store has a checksum of the object.
    pub has_crc: bool,
}

impl Stored {
    /// Creates an object as a program other than Skep would store it: with metadata, and without a
    /// checksum.
    pub fn new(bytes: &[u8], metadata: &[(&str, &str)]) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            bytes: bytes.to_vec(),
            etag: etag(bytes),
            metadata: metadata.iter().map(own).collect(),
            has_crc: false,
        }
    }
}

/// A failure that a test requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The store replies with status 503 and the code `SlowDown`.
    SlowDown,
    /// The store carries out the request, but closes the connection before it has sent the reply.
    Lost,
    /// The store closes the connection after it has sent this number of bytes of the reply's body.
    CutAfter(usize),
    /// The store changes one bit: in the stored bytes for a PUT, and in the body of the reply for a
    /// GET.
    Damage,
    /// The store replies with status 403.
    Denied,
    /// The store replies with status 400 and the code `ExpiredToken`.
    Expired,
    /// The store replies with status 200, and with an error in the body.
    LateError,
    /// Before the store carries out the request, the store replaces the contents and the entity tag
    /// of the object.
    Change,
}

#[derive(Debug, Default)]
struct Upload {
    key: String,
    metadata: BTreeMap<String, String>,
    has_crc: bool,
    parts: BTreeMap<u32, Vec<u8>>,
}

#[derive(Debug)]
struct Planned {
    method: String,
    /// Text that the path and query of the request must contain.
    part: String,
    fault: Fault,
    /// Number of matching requests that succeed before the failure begins.
    skipped: u32,
    times: u32,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Stored>,
    uploads: BTreeMap<String, Upload>,
    next_upload: u32,
    faults: Vec<Planned>,
    /// Method, path and query of each request so far.
    log: Vec<String>,
    /// Number of entries on a page of a listing.
    page: usize,
    /// Whether the store does not support checksums, like older stores.
    is_plain: bool,
    /// Whether clients use TLS. A store with TLS accepts the payload hash `UNSIGNED-PAYLOAD`.
    is_secure: bool,
}

/// A running store.
#[derive(Debug)]
pub struct ObjectStore {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    has_ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// The file of the network namespace in which the store runs. `None` means the test's own
    /// namespace.
    namespace: Option<PathBuf>,
}

/// Calls a function in a network namespace. The sockets that the function creates belong to this
/// namespace.
fn within<T: Send + 'static>(
    namespace: Option<&PathBuf>,
    call: impl FnOnce() -> T + Send + 'static,
) -> T {
    let namespace = namespace.cloned();
    let thread = std::thread::spawn(move || {
        if let Some(path) = namespace {
            let file = File::open(path).expect("a network namespace");
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("root enters a network namespace");
        }
        call()
    });
    thread.join().expect("no panic in the namespace")
}

impl ObjectStore {
    /// Starts a store on a free port of 127.0.0.1. Each page of a listing has three entries.
    pub fn start() -> Self {
        Self::start_on(None, "127.0.0.1:0", None)
    }

    /// Starts a store with TLS on a free port of 127.0.0.1. The store's certificate has the
    /// signature of `authority`, and is valid for the names in `names`, such as `IP:127.0.0.1` or
    /// `DNS:localhost`.
    pub fn start_secure(authority: &Authority, names: &str) -> Self {
        Self::start_on(None, "127.0.0.1:0", Some(authority.server(names)))
    }

    /// Starts a store in the network namespace of `host`, on the address `address`.
    pub fn start_at(host: &PageHost, address: &str) -> Self {
        Self::start_on(Some(host.network()), address, None)
    }

    fn start_on(namespace: Option<PathBuf>, address: &str, tls: Option<TlsServer>) -> Self {
        let is_secure = tls.is_some();
        let address = address.to_owned();
        let bind = move || TcpListener::bind(address).expect("a free port");
        let listener = within(namespace.as_ref(), bind);
        let address = listener.local_addr().expect("the address of a listener");
        let state = Arc::new(Mutex::new(State { page: 3, is_secure, ..State::default() }));
        let has_ended = Arc::new(AtomicBool::new(false));
        let (shared, end) = (state.clone(), has_ended.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let (state, tls) = (shared.clone(), tls.clone());
                // The new thread ends when its connection ends.
                std::thread::spawn(move || {
                    let reply = |request| answer(&state, request);
                    match tls {
                        Some(tls) => wire::serve(tls.accept(stream), reply),
                        None => wire::serve(stream, reply),
                    }
                });
            }
        });
        Self { address, state, has_ended, thread: Some(thread), namespace }
    }

    /// Returns the URL of the store.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.lock().is_secure { "https" } else { "http" }, self.address)
    }

    /// Returns the port of the store.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns shell commands that set environment variables with the store's credentials.
    pub fn exports(&self) -> String {
        let line = |(name, value): (&str, &str)| format!("export {name}='{value}'\n");
        self.variables().map(line).concat()
    }

    /// Returns environment variables with the store's credentials.
    pub fn variables(&self) -> [(&'static str, &'static str); 3] {
        [
            ("AWS_ACCESS_KEY_ID", ACCESS),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_SESSION_TOKEN", TOKEN),
        ]
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the store behave like older stores, which do not support checksums.
    pub fn without_checksums(&self) {
        self.lock().is_plain = true;
    }

    /// Stores an object under a key.
    pub fn put(&self, key: &str, object: Stored) {
        self.lock().objects.insert(key.to_owned(), object);
    }

    /// Returns the object with a key.
    pub fn get(&self, key: &str) -> Option<Stored> {
        self.lock().objects.get(key).cloned()
    }

    /// Returns the keys of all objects.
    pub fn keys(&self) -> Vec<String> {
        self.lock().objects.keys().cloned().collect()
    }

    /// Returns the number of multipart uploads that are not complete.
    pub fn uploads(&self) -> usize {
        self.lock().uploads.len()
    }

    /// Causes failures: the next `times` requests with this method, and with `part` in path and
    /// query, fail.
    pub fn fail(&self, method: &str, part: &str, fault: Fault, times: u32) {
        self.fail_later(method, part, fault, (0, times));
    }

    /// Makes requests fail like [`Self::fail`], but the first `skipped` matching requests succeed.
    pub fn fail_later(&self, method: &str, part: &str, fault: Fault, (skipped, times): (u32, u32)) {
        let planned = Planned { method: method.into(), part: part.into(), fault, skipped, times };
        self.lock().faults.push(planned);
    }

    /// Returns the number of requests so far with this method, and with `part` in path and query.
    pub fn count(&self, method: &str, part: &str) -> usize {
        let state = self.lock();
        let is_meant = |line: &&String| line.starts_with(method) && line.contains(part);
        state.log.iter().filter(is_meant).count()
    }

    /// Removes all requests so far from the store's log of requests.
    pub fn forget(&self) {
        self.lock().log.clear();
    }
}

impl Drop for ObjectStore {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
        // Connect once, so that the listening thread wakes up and ends.
        let address = self.address;
        within(self.namespace.as_ref(), move || drop(TcpStream::connect(address)));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn etag(bytes: &[u8]) -> String {
    format!("\"{}\"", hex(&Md5::digest(bytes)))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let number =
            (0..3).fold(0_u32, |sum, it| sum << 8 | u32::from(chunk.get(it).copied().unwrap_or(0)));
        for index in 0..4 {
            let digit = DIGITS[(number >> (18 - 6 * index)) as usize & 63];
            text.push(if index > chunk.len() { '=' } else { char::from(digit) });
        }
    }
    text
}

fn crc_text(bytes: &[u8]) -> String {
    base64(&skep_types::codec::crc32c(bytes).to_be_bytes())
}

/// Checks and executes one request, and returns the reply.
fn answer(state: &Mutex<State>, mut request: Request) -> Reply {
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    state.log.push(format!("{} {}", request.method, request.target));
    let planned = state.faults.iter_mut().find(|it| {
        it.times > 0 && it.method == request.method && request.target.contains(&it.part)
    });
    let fault = planned.and_then(|it| {
        let fails = it.skipped == 0;
        it.skipped = it.skipped.saturating_sub(1);
        it.times -= u32::from(fails);
        fails.then_some(it.fault)
    });
    match fault {
        Some(Fault::SlowDown) => return Reply::error(503, "SlowDown"),
        Some(Fault::Denied) => return Reply::error(403, "AccessDenied"),
        Some(Fault::LateError) => return Reply::error(200, "InternalError"),
        Some(Fault::Expired) => return Reply::error(400, "ExpiredToken"),
        Some(Fault::Damage) if request.method == "PUT" => request.damage(),
        Some(Fault::Change) => {
            if let Some(object) = request.key().and_then(|key| state.objects.get_mut(&key)) {
                *object = Stored::new(b"changed meanwhile", &[]);
            }
        }
        _ => {}
    }
    let refused =
        if fault == Some(Fault::Damage) { None } else { refusal(&request, state.is_secure) };
    let mut reply = refused.unwrap_or_else(|| operations::carry_out(&mut state, &request));
    match fault {
        Some(Fault::Lost) => reply.cut_after = Some(None),
        Some(Fault::CutAfter(len)) => reply.cut_after = Some(Some(len)),
        Some(Fault::Damage) if request.method == "GET" && !reply.body.is_empty() => {
            let middle = reply.body.len() / 2;
            reply.body[middle] ^= 1;
        }
        _ => {}
    }
    reply
}

/// Returns an error reply if the signature of a request is wrong, or if the body does not match the
/// checksums in the headers.
fn refusal(request: &Request, is_secure: bool) -> Option<Reply> {
    if let Err(reason) = request.check_signature() {
        return Some(Reply::error(403, reason));
    }
    let sha256 = request.header("x-amz-content-sha256").unwrap_or_default();
    let is_unsigned = is_secure && sha256 == "UNSIGNED-PAYLOAD";
    if !is_unsigned && sha256 != hex(&Sha256::digest(&request.body)) {
        return Some(Reply::error(400, "XAmzContentSHA256Mismatch"));
    }
    let crc = request.header(CRC).filter(|_| request.method == "PUT");
    match crc {
        Some(crc) if crc != crc_text(&request.body) => Some(Reply::error(400, "BadDigest")),
        _ => None,
    }
}
