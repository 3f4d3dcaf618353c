//! The serving side of a connection: authenticates peers, receives requests, sends replies.

use crate::access::{Identity, Peer};
use crate::handshake;
use crate::idle_peers::{self, PeerUse};
use crate::limits::MAX_OUTBOX_BYTES;
use crate::stream::FrameReader;
use skep_env::local::Notify;
use skep_env::{Buf, MessagePart, TcpStream};
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, NodeKind, Result, TargetId};
use skep_wire::bounds::{Bounds, bounds};
use skep_wire::frame::Header;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Authenticates the peer of a new connection. `check_target` returns an error for a target that
/// this process does not serve. Afterwards, the caller may pass the socket to another thread.
///
/// # Errors
/// The reason for which the handshake refused the peer. The peer has received the same error.
pub async fn authenticate(
    stream: &TcpStream,
    identity: &Identity,
    incarnation: u64,
    check_target: impl Fn(TargetId) -> Result<()>,
) -> Result<Peer> {
    handshake::accept(stream, identity, incarnation, check_target).await
}

/// A received request.
#[derive(Debug)]
pub struct Incoming {
    /// The request's header.
    pub header: Header,
    /// The request's body. The server has verified the checksum of the body, but has not decoded
    /// the body.
    pub body: Vec<u8>,
    /// The request's bulk data. The server has not verified the checksums of the bulk data.
    pub data: Option<Buf>,
    /// Time at which the header was received, before the body and the bulk data.
    pub arrived_at: Duration,
}

/// The stream of requests from one peer.
pub struct IncomingStream {
    reader: FrameReader,
    peer: NodeKind,
    outbox: Rc<Outbox>,
}

impl IncomingStream {
    /// Splits an authenticated connection into a stream of requests and an outbox for replies.
    /// `peer` is the kind of the node at the other end.
    pub fn new(stream: TcpStream, peer: NodeKind) -> (Self, Rc<Outbox>) {
        let outbox = Rc::new(Outbox {
            stream: stream.clone(),
            parts: RefCell::default(),
            waiting_bytes: Cell::new(0),
            is_sending: Cell::new(false),
            is_closed: Cell::new(false),
            drained: Notify::default(),
            refusals: Cell::new(0),
            on_data_sent: RefCell::default(),
            peer_use: PeerUse::new(stream.clone(), skep_env::now()),
        });
        if peer == NodeKind::Client {
            idle_peers::add(&outbox.peer_use);
        }
        (Self { reader: FrameReader::new(stream), peer, outbox: Rc::clone(&outbox) }, outbox)
    }

    /// Receives the next request; returns `None` when the peer has closed the connection, or when
    /// this process has ended the connection because the connection was idle. Waits while more than
    /// `MAX_OUTBOX_BYTES` of replies wait to be sent to the peer.
    ///
    /// Refuses a request that nodes of the peer's kind may not send, and receives the next request.
    ///
    /// # Errors
    /// `Disconnected` if the connection is lost, `Protocol` if a frame is invalid or longer than
    /// its message may be. After an error, the caller must not use the connection any more.
    pub async fn next(&mut self) -> Result<Option<Incoming>> {
        loop {
            self.outbox.below_limit().await;
            self.outbox.peer_use.set_awaits_request(true);
            let header = self.reader.header().await?;
            self.outbox.peer_use.set_awaits_request(false);
            let Some((header, crc)) = header else {
                return Ok(None);
            };
            let arrived_at = skep_env::now();
            if !self.outbox.peer_use.arrived(arrived_at) {
                return Ok(None);
            }
            let bounds = bounds(header.message);
            check_length(&header, &bounds)?;
            let body = self.reader.body(&header, crc).await?;
            let data = match header.data_bytes as usize {
                0 => None,
                len => {
                    let buf = Buf::new(len);
                    self.reader.data(&buf).await?;
                    Some(buf)
                }
            };
            if bounds.senders.allow(self.peer) {
                return Ok(Some(Incoming { header, body, data, arrived_at }));
            }
            let context = format!(
                "cannot accept message {} from a {:?} node: only {} send this message",
                header.message,
                self.peer,
                bounds.senders.words()
            );
            self.outbox.refuse(&header, &Error::new(ErrorCode::NotPermitted, context));
        }
    }
}

/// Checks the lengths in a header before the receiver allocates memory for the frame.
fn check_length(header: &Header, bounds: &Bounds) -> Result<()> {
    let (body, data) = (header.body_bytes as usize, header.data_bytes as usize);
    if body <= bounds.body_bytes && data <= bounds.data_bytes {
        return Ok(());
    }
    let context = format!(
        "cannot accept message {}: the message has a body of {body} bytes and {data} bytes of \
         data, and the limits are {} and {}",
        header.message, bounds.body_bytes, bounds.data_bytes
    );
    Err(Error::new(ErrorCode::Protocol, context))
}

/// A function that gets the duration of each send with bulk data.
type SendObserver = dyn Fn(Duration);

/// The replies to one peer. The server collects the replies of one iteration of the event loop, and
/// sends them together.
pub struct Outbox {
    stream: TcpStream,
    parts: RefCell<Vec<MessagePart>>,
    waiting_bytes: Cell<usize>,
    is_sending: Cell<bool>,
    is_closed: Cell<bool>,
    drained: Notify,
    refusals: Cell<u64>,
    on_data_sent: RefCell<Option<Rc<SendObserver>>>,
    peer_use: Rc<PeerUse>,
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Outbox({} bytes)", self.waiting_bytes.get())
    }
}

impl Outbox {
    /// Calls `observer` with the duration of each send that had bulk data. On a slow link, the send
    /// takes the time in which earlier data leaves the socket's buffer.
    pub fn on_data_sent(&self, observer: impl Fn(Duration) + 'static) {
        *self.on_data_sent.borrow_mut() = Some(Rc::new(observer));
    }

    async fn below_limit(&self) {
        while self.waiting_bytes.get() > MAX_OUTBOX_BYTES {
            self.drained.wait().await;
        }
    }

    /// Sends a reply to a request.
    pub fn reply(self: &Rc<Self>, request: &Header, body: &impl Codec) {
        self.push(request.reply().frame(body, 0), Vec::new());
    }

    /// Sends a reply whose body is already encoded.
    pub fn reply_raw(self: &Rc<Self>, request: &Header, body: &[u8]) {
        self.push(request.reply().frame_raw(body, 0), Vec::new());
    }

    /// Sends a reply with bulk data.
    pub fn reply_data(self: &Rc<Self>, request: &Header, body: &impl Codec, data: Vec<Buf>) {
        let data_bytes: usize = data.iter().map(Buf::len).sum();
        self.push(request.reply().frame(body, data_bytes as u32), data);
    }

    /// Replies to a request with an error.
    pub fn refuse(self: &Rc<Self>, request: &Header, error: &Error) {
        self.refusals.set(self.refusals.get() + 1);
        let header = Header { status: error.code() as u16, ..request.reply() };
        self.push(header.frame(&error.context().to_owned(), 0), Vec::new());
    }

    /// Returns the number of requests that were refused so far.
    pub fn refusals(&self) -> u64 {
        self.refusals.get()
    }

    /// Closes the connection.
    pub fn close(&self) {
        self.is_closed.set(true);
        self.stream.shutdown();
    }

    /// Whether this process has closed the connection.
    pub fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Returns the use of the connection by the peer.
    #[cfg(test)]
    pub(crate) fn peer_use(&self) -> &PeerUse {
        &self.peer_use
    }

    fn push(self: &Rc<Self>, frame: Vec<u8>, data: Vec<Buf>) {
        self.peer_use.replied();
        let bytes = frame.len() + data.iter().map(Buf::len).sum::<usize>();
        self.waiting_bytes.set(self.waiting_bytes.get() + bytes);
        {
            let mut parts = self.parts.borrow_mut();
            // The server joins small replies in one part, so that the send needs only one I/O
            // vector for these replies.
            match parts.last_mut() {
                Some(MessagePart::Bytes(last)) if last.len() < 16 << 10 => {
                    last.extend_from_slice(&frame)
                }
                _ => parts.push(MessagePart::Bytes(frame)),
            }
            parts.extend(data.into_iter().map(MessagePart::Buf));
        }
        if self.is_sending.replace(true) {
            return;
        }
        let outbox = Rc::clone(self);
        skep_env::spawn(async move {
            loop {
                let parts = outbox.parts.take();
                if parts.is_empty() {
                    break;
                }
                let bytes = outbox.waiting_bytes.get();
                let has_data = parts.iter().any(|part| matches!(part, MessagePart::Buf(_)));
                let observer = outbox.on_data_sent.borrow().clone().filter(|_| has_data);
                let started = observer.as_ref().map(|_| skep_env::now());
                if outbox.stream.send(parts).await.is_err() {
                    // The task that reads from this connection also receives the end of the stream,
                    // and cleans up.
                    outbox.stream.shutdown();
                    outbox.parts.take();
                    outbox.waiting_bytes.set(0);
                    break;
                }
                if let (Some(observer), Some(started)) = (observer, started) {
                    observer(skep_env::now() - started);
                }
                let waiting = outbox.waiting_bytes.get().checked_sub(bytes);
                outbox.waiting_bytes.set(waiting.expect("only this task subtracts bytes"));
                outbox.drained.notify();
            }
            outbox.peer_use.sent(skep_env::now());
            outbox.is_sending.set(false);
            outbox.drained.notify();
        })
        .detach();
    }
}
