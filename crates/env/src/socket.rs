//! TCP sockets on the thread's event loop.

use crate::buffer::Buf;
use crate::event_loop::{Traffic, submit, submit_traffic};
use crate::file::check;
use crate::mailbox::Mailbox;
use crate::threads::spawn_thread;
use io_uring::{opcode, types};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of parts that one `sendmsg` takes (`UIO_MAXIOV`).
const MAX_PARTS: usize = 1024;
/// Flags of a send: no signal if the connection has ended, and no short sends.
const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Number of [`TcpStream`] sockets that this process has open.
static OPEN_STREAMS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of connections that this process has open, in both directions. A connection
/// does not count while its descriptor is in the mailbox of another thread.
pub fn open_streams() -> u64 {
    OPEN_STREAMS.load(Ordering::Relaxed)
}

/// One connection in the count of [`open_streams`].
#[derive(Debug)]
struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        OPEN_STREAMS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The descriptor of a connection.
#[derive(Debug)]
struct Socket {
    fd: OwnedFd,
    _counted: Counted,
}

impl Socket {
    fn new(fd: OwnedFd) -> Self {
        OPEN_STREAMS.fetch_add(1, Ordering::Relaxed);
        Self { fd, _counted: Counted }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// A connected TCP socket. Clones share the descriptor.
#[derive(Debug, Clone)]
pub struct TcpStream(Rc<Socket>);

/// A part of a message to send.
#[derive(Debug)]
pub enum MessagePart {
    /// Bytes on the heap.
    Bytes(Vec<u8>),
    /// A handle to a shared buffer.
    Buf(Buf),
}

impl MessagePart {
    fn range(&self) -> (*mut u8, usize) {
        match self {
            Self::Bytes(bytes) => (bytes.as_ptr().cast_mut(), bytes.len()),
            Self::Buf(buf) => (buf.as_ptr(), buf.len()),
        }
    }
}

/// The memory that a `sendmsg` in flight points to.
struct SendState {
    parts: Vec<MessagePart>,
    vectors: Vec<libc::iovec>,
    header: Box<libc::msghdr>,
    fd: Rc<Socket>,
}

fn socket_address(address: &SocketAddr) -> (libc::sockaddr_storage, u32) {
    // SAFETY: all-zero is a valid `sockaddr_storage`.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let len = match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: `sockaddr_storage` is large and aligned enough for every address.
            unsafe { std::ptr::write((&raw mut storage).cast(), raw) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: `sockaddr_storage` is large and aligned enough for every address.
            unsafe { std::ptr::write((&raw mut storage).cast(), raw) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, len as u32)
}

fn new_socket(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: the call takes no pointers, and its result is checked.
    let raw = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn set_option(fd: &impl AsRawFd, level: i32, option: i32, value: i32) {
    // SAFETY: the value is an int, as all options that this module sets require. A refused option
    // only makes the connection slower than with the option.
    unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as u32,
        )
    };
}

fn look_up_at_once(address: &str) -> io::Result<SocketAddr> {
    let name = address.rsplit_once(':').map_or(address, |(name, _)| name);
    let failed = |why: String| {
        io::Error::new(io::ErrorKind::NotFound, format!("cannot resolve the name {name}: {why}"))
    };
    match address.to_socket_addrs() {
        // This error means that the address is malformed. For example, the port is not a number.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(error),
        Err(error) => Err(failed(error.to_string())),
        Ok(mut found) => found.next().ok_or_else(|| failed("this name has no address".into())),
    }
}

/// Whether the host of `host:port` has an address. Waits for the system resolver.
pub fn is_known_host(address: &str) -> bool {
    look_up_at_once(address).is_ok()
}

/// Resolves `host:port`. The system resolver may wait half a minute for name servers that do not
/// reply. So a separate thread calls the resolver, and the loop continues.
async fn look_up(address: &str) -> io::Result<SocketAddr> {
    if let Ok(numbers) = address.parse::<SocketAddr>() {
        return Ok(numbers);
    }
    let (sender, mailbox) = Mailbox::new(1)?;
    let name = address.to_owned();
    spawn_thread("skep-look-up".into(), None, move || {
        // `send` cannot fail, since the mailbox has space for the one result. If the caller's
        // future was dropped, the result is dropped with the mailbox.
        let _ = sender.send(look_up_at_once(&name));
    })?;
    mailbox.receive().await?
}

impl TcpStream {
    /// Connects to `host:port`.
    ///
    /// # Errors
    /// Returns the errors of `connect(2)`, or an error if the host has no address.
    pub async fn connect(address: &str) -> io::Result<Self> {
        let resolved = look_up(address).await?;
        let fd = Rc::new(Socket::new(new_socket(&resolved)?));
        // Moving an `Rc` leaves pointers to its contents valid, which does not hold for a `Box`.
        let target = Rc::new(socket_address(&resolved));
        let entry =
            opcode::Connect::new(types::Fd(fd.as_raw_fd()), (&raw const target.0).cast(), target.1);
        // SAFETY: the operation keeps address and descriptor until the completion.
        let op = unsafe { submit(entry.build().into(), Box::new((target, Rc::clone(&fd)))) };
        check(op.await.0)?;
        Ok(Self::tuned(fd))
    }

    fn tuned(fd: Rc<Socket>) -> Self {
        set_option(&*fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
        set_option(&*fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
        set_option(&*fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 5);
        set_option(&*fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 2);
        set_option(&*fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3);
        // TCP retransmits for a quarter of an hour by default. A peer that never acknowledges data
        // must not block a request for a quarter of an hour.
        set_option(&*fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 10_000);
        Self(fd)
    }

    /// Wraps a connected socket, which another thread may have accepted.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self::tuned(Rc::new(Socket::new(fd)))
    }

    /// Returns the descriptor of the socket, to send it to another thread.
    ///
    /// # Errors
    /// Returns an error if the socket is still shared and the process is out of file descriptors.
    pub fn into_fd(self) -> io::Result<OwnedFd> {
        match Rc::try_unwrap(self.0) {
            Ok(socket) => Ok(socket.fd),
            Err(shared) => shared.fd.try_clone(),
        }
    }

    /// Receives bytes that have arrived, at most the buffer's length. Returns their number, which
    /// is 0 at the end of the stream.
    ///
    /// # Errors
    /// Returns the errors of `recv(2)`.
    pub async fn receive(&self, buf: Buf) -> io::Result<usize> {
        self.receive_flags(buf, 0).await
    }

    async fn receive_flags(&self, buf: Buf, flags: i32) -> io::Result<usize> {
        let fd = types::Fd(self.0.as_raw_fd());
        let entry = opcode::Recv::new(fd, buf.as_ptr(), buf.len() as u32).flags(flags);
        // SAFETY: the operation keeps buffer and descriptor until the completion.
        let op = unsafe {
            let kept = Box::new((buf.begin_fill(), Rc::clone(&self.0)));
            submit_traffic(entry.build().into(), kept, Traffic::Received)
        };
        check(op.await.0)
    }

    /// Receives until the buffer is full.
    ///
    /// # Errors
    /// Returns the errors of `recv(2)`, and `UnexpectedEof` if the stream ends before the buffer is
    /// full.
    pub async fn receive_exact(&self, buf: Buf) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let rest = buf.slice(done..buf.len());
            match self.receive_flags(rest, libc::MSG_WAITALL).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => done += count,
            }
        }
        Ok(())
    }

    /// Sends all parts, in order, in as few system calls as the kernel allows.
    ///
    /// # Errors
    /// Returns the errors of `send(2)`. A part of the bytes may have been sent.
    pub async fn send(&self, mut parts: Vec<MessagePart>) -> io::Result<()> {
        if parts.len() == 1
            && let Some(part) = parts.pop()
        {
            return self.send_part(part).await;
        }
        let vectors = parts
            .iter()
            .map(MessagePart::range)
            .filter(|(_, len)| *len > 0)
            .map(|(start, len)| libc::iovec { iov_base: start.cast(), iov_len: len })
            .collect();
        // SAFETY: all-zero is a valid `msghdr`.
        let header = Box::new(unsafe { std::mem::zeroed::<libc::msghdr>() });
        let mut state = Box::new(SendState { parts, vectors, header, fd: Rc::clone(&self.0) });
        let mut first = 0;
        while first < state.vectors.len() {
            let count = (state.vectors.len() - first).min(MAX_PARTS);
            state.header.msg_iov = state.vectors[first..].as_mut_ptr();
            // In musl this field is an `int`, and the padding up to the size of the kernel's
            // `size_t` is zero.
            state.header.msg_iovlen = count as _;
            let entry =
                opcode::SendMsg::new(types::Fd(state.fd.as_raw_fd()), &raw const *state.header)
                    .flags(SEND_FLAGS as u32);
            // SAFETY: the state owns the message header, vectors, parts and descriptor, all on the
            // heap.
            let op = unsafe { submit_traffic(entry.build().into(), state, Traffic::Sent) };
            let (result, kept) = op.await;
            state = kept.downcast().expect("an operation returns the state that it kept");
            debug_assert!(!state.parts.is_empty(), "the vectors point to parts that exist");
            let mut sent = check(result)?;
            while first < state.vectors.len() && sent >= state.vectors[first].iov_len {
                sent -= state.vectors[first].iov_len;
                first += 1;
            }
            if sent > 0 {
                let vector = &mut state.vectors[first];
                // SAFETY: `sent` is less than the vector's length.
                vector.iov_base = unsafe { vector.iov_base.cast::<u8>().add(sent).cast() };
                vector.iov_len -= sent;
            }
        }
        Ok(())
    }

    /// Sends a message of one part, like most requests and replies. Unlike several parts, one part
    /// needs no message header and no vectors, which the kernel would have to copy.
    async fn send_part(&self, part: MessagePart) -> io::Result<()> {
        let (start, len) = part.range();
        let mut state = Box::new((part, Rc::clone(&self.0)));
        let mut sent = 0;
        while sent < len {
            let fd = types::Fd(state.1.as_raw_fd());
            // SAFETY: `sent` is less than the length of the part.
            let rest = unsafe { start.add(sent) };
            let rest_len = u32::try_from(len - sent).unwrap_or(u32::MAX);
            let entry = opcode::Send::new(fd, rest, rest_len).flags(SEND_FLAGS);
            // SAFETY: the state owns the bytes of the part, which are on the heap, and the
            // descriptor.
            let op = unsafe { submit_traffic(entry.build().into(), state, Traffic::Sent) };
            let (result, kept) = op.await;
            state = kept.downcast().expect("an operation returns the state that it kept");
            sent += check(result)?;
        }
        Ok(())
    }

    /// Shuts down both directions. Operations that wait on the socket return.
    pub fn shutdown(&self) {
        // SAFETY: the descriptor is open, and the call takes no pointers. If the kernel refuses,
        // the connection is closed already.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// Returns the peer's address as text, for log lines and errors.
    pub fn peer(&self) -> String {
        self.peer_address().map_or_else(|| "?".into(), |it| it.to_string())
    }

    /// Returns the peer's address. `None` means that the connection has ended already. The call
    /// needs no further descriptor.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: the descriptor is open while `self` exists, and `ManuallyDrop` leaves it open.
        let borrowed = unsafe { std::net::TcpStream::from_raw_fd(self.0.as_raw_fd()) };
        std::mem::ManuallyDrop::new(borrowed).peer_addr().ok()
    }
}

/// A listening TCP socket.
#[derive(Debug)]
pub struct TcpListener(Rc<OwnedFd>);

impl TcpListener {
    /// Listens on `host:port`. If the port is 0, the kernel chooses a free port.
    ///
    /// # Errors
    /// Returns the errors of `bind(2)`, such as `AddrInUse` if a process listens on the address
    /// already.
    pub fn bind(address: &str) -> io::Result<Self> {
        let resolved = look_up_at_once(address)?;
        let fd = new_socket(&resolved)?;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
        let (storage, len) = socket_address(&resolved);
        // SAFETY: the address is valid for `len` bytes.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const storage).cast(), len) } < 0
            // SAFETY: the descriptor is open, and the call takes no pointers.
            || unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) } < 0
        {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(Rc::new(fd)))
    }

    /// Wraps a listening socket, which may be a Unix domain socket. The connections of the socket
    /// are [`TcpStream`]s in both cases, but TCP options have no effect on connections of a Unix
    /// domain socket.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(Rc::new(fd))
    }

    /// Returns the address on which the socket listens.
    ///
    /// # Errors
    /// Returns the errors of `getsockname(2)`.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        std::net::TcpListener::from(self.0.try_clone()?).local_addr()
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// Returns the errors of `accept(2)`.
    pub async fn accept(&self) -> io::Result<TcpStream> {
        let fd = types::Fd(self.0.as_raw_fd());
        let entry = opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut())
            .flags(libc::SOCK_CLOEXEC);
        // SAFETY: no address is requested, and the operation keeps the descriptor until the
        // completion.
        let op = unsafe { submit(entry.build().into(), Box::new(Rc::clone(&self.0))) };
        let raw = check(op.await.0)? as i32;
        // SAFETY: the descriptor is new, and nothing else owns it.
        Ok(TcpStream::from_fd(unsafe { OwnedFd::from_raw_fd(raw) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{block_on, spawn};

    /// Connects two sockets and passes one of them to `send`, which must send `len` bytes. Returns
    /// the bytes that arrive at the other socket.
    fn arrived<F: Future<Output = ()> + 'static>(
        len: usize,
        send: impl FnOnce(TcpStream) -> F + 'static,
    ) -> Vec<u8> {
        block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_address().unwrap().to_string();
            let sender =
                spawn(async move { send(TcpStream::connect(&address).await.unwrap()).await });
            let stream = listener.accept().await.unwrap();
            let buf = Buf::new(len);
            stream.receive_exact(buf.clone()).await.unwrap();
            sender.await;
            assert_eq!(stream.receive(Buf::new(1)).await.unwrap(), 0);
            buf.bytes().to_vec()
        })
        .unwrap()
    }

    #[test]
    fn large_sends_of_many_parts_arrive_complete() {
        let bytes = arrived(3_000_000 + 6000 + 5000, |stream| async move {
            let mut parts = vec![MessagePart::Bytes(vec![7; 3_000_000])];
            parts.extend((0..2000).map(|_| MessagePart::Bytes(vec![1; 3])));
            parts.push(MessagePart::Buf(Buf::copy_of(&[9; 5000])));
            stream.send(parts).await.unwrap();
        });
        assert!(bytes[..3_000_000].iter().all(|byte| *byte == 7));
        assert!(bytes[3_000_000..3_006_000].iter().all(|byte| *byte == 1));
        assert!(bytes[3_006_000..].iter().all(|byte| *byte == 9));
    }

    #[test]
    fn large_sends_of_one_part_arrive_complete() {
        let bytes = arrived(3_000_000 + 5000, |stream| async move {
            let buf = Buf::copy_of(&[9; 5000]);
            let bytes = MessagePart::Bytes(vec![7; 3_000_000]);
            for part in [bytes, MessagePart::Bytes(Vec::new()), MessagePart::Buf(buf)] {
                stream.send(vec![part]).await.unwrap();
            }
            stream.send(Vec::new()).await.unwrap();
        });
        assert!(bytes[..3_000_000].iter().all(|byte| *byte == 7));
        assert!(bytes[3_000_000..].iter().all(|byte| *byte == 9));
    }

    #[test]
    fn host_names_are_resolved() {
        block_on(async {
            let listener = TcpListener::bind("localhost:0").unwrap();
            let port = listener.local_address().unwrap().port();
            TcpStream::connect(&format!("localhost:{port}")).await.unwrap();
            let error = TcpStream::connect("localhost:port").await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            let error = look_up_at_once("no..such:1").unwrap_err().to_string();
            assert!(error.starts_with("cannot resolve the name no..such"), "{error}");
            assert!(is_known_host("localhost:1") && !is_known_host("no..such:1"));
        })
        .unwrap();
    }

    #[test]
    fn listening_on_an_address_in_use_is_an_error() {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = first.local_address().unwrap().to_string();
        let error = TcpListener::bind(&address).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
