//! A proxy for the connections between one mount and all services of a cluster. The proxy drops the
//! reply to one chosen request, after the service has executed the request.
//!
//! The mount runs in a separate network namespace, in which the proxy listens on the addresses of
//! the services. So the mount needs no settings for the proxy. The proxy drops the chosen reply,
//! and then closes the connection, because a TCP connection that loses a reply also loses all later
//! bytes. Other connections continue.
//!
//! The proxy creates and removes the namespace and the connections. The proxy does not change the
//! forwarded bytes.

use crate::program::{clean_up, run};
use crate::wait::PATIENCE;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

static NEXT: AtomicU32 = AtomicU32::new(1);

/// Length of the header of a frame in bytes (docs/protocol/frame.md).
const HEADER_BYTES: usize = 128;
/// Maximum length in bytes of a message body that the proxy forwards.
const MAX_BODY_BYTES: usize = 32 << 20;
/// Flag in the header of a frame that is a reply.
const FLAG_REPLY: u16 = 1;

/// Kinds of requests whose replies a test can drop, with their message numbers
/// (docs/protocol/reference.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Message {
    /// Changes attributes, or truncates a file.
    SetAttributes = 42,
    /// Creates a hard link.
    Link = 50,
    /// Unlinks a file.
    Unlink = 51,
    /// Renames an entry.
    Rename = 53,
    /// Sets or releases a lock.
    SetLock = 64,
    /// Writes inline bytes of a file.
    WriteInline = 72,
    /// Writes bytes of a chunk file.
    WriteChunk = 96,
}

/// State of the proxy's chosen request.
#[derive(Debug, Default)]
enum Aim {
    /// No request is chosen.
    #[default]
    Idle,
    /// The proxy waits for a request of the kind `message` whose body contains the bytes `part`.
    Armed { message: Message, part: Vec<u8> },
    /// The proxy has forwarded the chosen request, which has this tag, on this connection.
    Forwarded { connection: u64, tag: [u8; 8] },
    /// The proxy has dropped the reply. New connections of the mount must wait.
    Dropped,
}

#[derive(Debug, Default)]
struct State {
    /// The mutex protects the state of the chosen request, which the threads of all connections
    /// use. A poisoned mutex is still usable, because the state is always replaced as a whole. A
    /// thread that has locked this mutex locks no other mutex.
    aim: Mutex<Aim>,
    changed: Condvar,
    is_ending: AtomicBool,
    next_connection: AtomicU64,
}

impl State {
    fn aim(&self) -> MutexGuard<'_, Aim> {
        self.aim.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, aim: Aim) {
        *self.aim() = aim;
        self.changed.notify_all();
    }

    /// Waits until [`DroppedReply::release`] allows new connections.
    fn wait_until_released(&self) {
        let is_dropped =
            |aim: &mut Aim| matches!(aim, Aim::Dropped) && !self.is_ending.load(Ordering::Relaxed);
        let released = self.changed.wait_while(self.aim(), is_dropped);
        drop(released.unwrap_or_else(PoisonError::into_inner));
    }
}

/// A proxy for the connections between one mount and all services.
#[derive(Debug)]
pub struct Proxy {
    namespace: String,
    ports: Vec<u16>,
    state: Arc<State>,
}

impl Proxy {
    /// Creates a network namespace, and listens on the ports `ports` of 127.0.0.1 in this
    /// namespace.
    ///
    /// # Panics
    /// Panics if the test does not run as root, or if the kernel has no network namespaces.
    pub fn new(ports: &[u16]) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("skep-proxy-{}-{number}", std::process::id());
        run("ip", ["netns", "add", &namespace]);
        let proxy = Self { namespace, ports: ports.to_owned(), state: Arc::default() };
        run("ip", ["-n", &proxy.namespace, "link", "set", "lo", "up"]);
        let listeners = proxy.in_namespace(TcpListener::bind::<SocketAddr>);
        let listeners = listeners.expect("the test runs as root");
        assert_eq!(listeners.len(), ports.len(), "the ports of a new namespace are free");
        for listener in listeners {
            let state = Arc::clone(&proxy.state);
            thread::spawn(move || accept(&listener, &state));
        }
        proxy
    }

    /// Runs `act` for each port. A separate thread first enters the namespace of the proxy, and
    /// then runs `act`. The sockets that `act` creates stay in this namespace.
    fn in_namespace<T: Send + 'static>(
        &self,
        act: fn(SocketAddr) -> io::Result<T>,
    ) -> io::Result<Vec<T>> {
        let (path, ports) = (format!("/run/netns/{}", self.namespace), self.ports.clone());
        let made = thread::spawn(move || {
            let namespace = File::open(path)?;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            let address = |port: &u16| SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
            Ok(ports.iter().filter_map(|port| act(address(port)).ok()).collect())
        });
        made.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the proxy has panicked")))
    }

    /// Returns a command that runs `program` in the namespace of the proxy.
    pub fn command(&self, program: &std::path::Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespace)).arg(program);
        command
    }

    /// Chooses the next request of kind `message` whose body contains `part`, for example a name or
    /// the bytes of an inode number. The proxy forwards that request and drops the reply.
    pub fn drop_reply(&self, message: Message, part: &[u8]) -> DroppedReply<'_> {
        assert!(!part.is_empty(), "every body contains an empty part");
        self.state.set(Aim::Armed { message, part: part.to_owned() });
        DroppedReply { state: &self.state, message }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.is_ending.store(true, Ordering::Relaxed);
        self.state.set(Aim::Idle);
        // Wake the threads that accept connections, so that these threads end. If the namespace
        // does not exist any more, these threads end together with the process.
        let _woken = self.in_namespace(TcpStream::connect::<SocketAddr>);
        let mut remove = Command::new("ip");
        clean_up(remove.args(["netns", "delete", &self.namespace]));
    }
}

/// A chosen request whose reply the proxy drops. After the proxy has dropped the reply, new
/// connections of the mount wait until this value is dropped.
#[derive(Debug)]
pub struct DroppedReply<'a> {
    state: &'a State,
    message: Message,
}

impl DroppedReply<'_> {
    /// Waits until the service has executed the request, and the proxy has dropped the reply. The
    /// mount cannot open new connections before [`Self::release`].
    ///
    /// # Panics
    /// Panics if the proxy drops no reply within a minute.
    pub fn wait(&self) {
        let deadline = Instant::now() + PATIENCE;
        let mut aim = self.state.aim();
        while !matches!(*aim, Aim::Dropped) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                left > Duration::ZERO,
                "the proxy has dropped no reply to {:?}: {aim:?}",
                self.message
            );
            let woken = self.state.changed.wait_timeout(aim, left);
            aim = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Lets the mount open new connections to the services.
    pub fn release(self) {
        drop(self);
    }
}

impl Drop for DroppedReply<'_> {
    fn drop(&mut self) {
        self.state.set(Aim::Idle);
    }
}

/// For each connection that the mount opens, connects to the service on the same port, and forwards
/// frames. Continues until the proxy ends.
fn accept(listener: &TcpListener, state: &Arc<State>) {
    let port = listener.local_addr().expect("a bound socket").port();
    while let Ok((mount, _)) = listener.accept() {
        if state.is_ending.load(Ordering::Relaxed) {
            return;
        }
        let state = Arc::clone(state);
        thread::spawn(move || {
            state.wait_until_released();
            // If the service is not running, close the connection of the mount.
            let Ok(service) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return };
            let ends = (mount.try_clone(), service.try_clone());
            let (Ok(from_mount), Ok(from_service)) = ends else { return };
            let connection = state.next_connection.fetch_add(1, Ordering::Relaxed);
            let requests = Arc::clone(&state);
            thread::spawn(move || {
                // An error means that the mount or the service has closed the connection.
                let _ = forward(&from_mount, &service, |frame| {
                    note_request(&requests, connection, frame);
                    true
                });
                close(&from_mount, &service);
            });
            let is_kept = |frame: &[u8]| !is_chosen_reply(&state, connection, frame);
            if forward(&from_service, &mount, is_kept).is_ok() {
                // Set this state before the connection is closed. After the close, the mount
                // immediately opens a new connection, and must then wait.
                state.set(Aim::Dropped);
            }
            close(&from_service, &mount);
        });
    }
}

fn close(one: &TcpStream, other: &TcpStream) {
    // Ignore errors, because the mount or the service may already have closed its connection.
    let _ = one.shutdown(Shutdown::Both);
    let _ = other.shutdown(Shutdown::Both);
}

/// Forwards frames from `from` to `to`. Returns `Ok` at the first frame for which `is_kept` returns
/// `false`.
fn forward(
    mut from: &TcpStream,
    mut to: &TcpStream,
    is_kept: impl Fn(&[u8]) -> bool,
) -> io::Result<()> {
    loop {
        let mut frame = vec![0; HEADER_BYTES];
        from.read_exact(&mut frame)?;
        let body = u32_at(&frame, 16) as usize;
        if body > MAX_BODY_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        frame.resize(HEADER_BYTES + body, 0);
        from.read_exact(&mut frame[HEADER_BYTES..])?;
        if !is_kept(&frame) {
            return Ok(());
        }
        to.write_all(&frame)?;
        let data = u64::from(u32_at(&frame, 20));
        if io::copy(&mut from.take(data), &mut to)? < data {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn u16_at(frame: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([frame[at], frame[at + 1]])
}

fn u32_at(frame: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]])
}

fn tag_of(frame: &[u8]) -> [u8; 8] {
    frame[24..32].try_into().expect("eight bytes")
}

fn note_request(state: &State, connection: u64, frame: &[u8]) {
    let mut aim = state.aim();
    let is_aimed = match &*aim {
        Aim::Armed { message, part } => {
            let mut parts = frame[HEADER_BYTES..].windows(part.len());
            u16_at(frame, 10) == *message as u16 && parts.any(|it| it == part.as_slice())
        }
        _ => false,
    };
    if is_aimed {
        *aim = Aim::Forwarded { connection, tag: tag_of(frame) };
    }
}

fn is_chosen_reply(state: &State, connection: u64, frame: &[u8]) -> bool {
    let is_reply = u16_at(frame, 14) & FLAG_REPLY != 0;
    let chosen = match *state.aim() {
        Aim::Forwarded { connection, tag } => Some((connection, tag)),
        _ => None,
    };
    is_reply && chosen == Some((connection, tag_of(frame)))
}
