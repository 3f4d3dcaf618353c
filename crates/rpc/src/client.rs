//! The requesting side of a connection to one target: many requests in flight, replies matched by
//! tag.

use crate::access::{Channel, Identity};
use crate::call_options::CallOptions;
use crate::calls::RunningCall;
use crate::dial::first_success;
use crate::handshake;
use crate::idle::IdleClock;
use crate::limits::{ABANDONED_PATIENCE, ADDRESS_STAGGER, CONNECT_TIMEOUT, MAX_PEER_TEXT};
use crate::origin::Origin;
use crate::refusal;
use crate::reply_time::reply_time;
use crate::stream::FrameReader;
use skep_env::local::{Receiver, Sender, oneshot};
use skep_env::{Buf, MessagePart, NumberMap, TcpStream};
use skep_types::codec::Codec;
use skep_types::text::shown;
use skep_types::{Error, ErrorCode, MapVersion, Result, TargetId};
use skep_wire::Request;
use skep_wire::bounds::bounds;
use skep_wire::catalog::waits_for_event;
use skep_wire::frame::{FLAG_DURABLE, HEADER_BYTES, Header};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

struct Reply {
    header: Header,
    body: Vec<u8>,
}

/// Connects to an address, without the handshake.
async fn open_socket(address: &str) -> Result<TcpStream> {
    let failed =
        |problem: String| Err(Error::new(ErrorCode::Disconnected, format!("{address}: {problem}")));
    let is_number = address.parse::<std::net::SocketAddr>().is_ok();
    match skep_env::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
        Some(Ok(stream)) => Ok(stream),
        Some(Err(error)) => failed(error.to_string()),
        None if is_number => failed(format!("no answer within {CONNECT_TIMEOUT:?}")),
        None => failed(format!(
            "no answer within {CONNECT_TIMEOUT:?}, or the host name cannot be resolved"
        )),
    }
}

struct Pending {
    sender: Sender<Reply>,
    into: Option<Buf>,
    /// Time at which an operation of a program sent the request. `None` if no program waits for the
    /// reply, or if the request is meant to wait, such as a request for a lock.
    sent_at: Option<Duration>,
    /// Makes the event loop poll briefly for the reply before the loop sleeps. `None` for a request
    /// whose reply takes long ([`reply_time`]).
    _expected: Option<skep_env::ExpectedReply>,
}

thread_local! {
    /// The connections of this thread. The next new connection removes ended connections from this
    /// list.
    static CONNECTIONS: RefCell<Vec<Weak<Connection>>> = const { RefCell::new(Vec::new()) };
}

/// A target that has accepted a request and has not replied for long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SilentTarget {
    /// The target that has not replied.
    pub target: TargetId,
    /// The name of the target's node. Empty if the sender does not have this name.
    pub node: String,
}

impl std::fmt::Display for SilentTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &*self.node {
            "" => write!(f, "{}", self.target),
            node => write!(f, "{} on {node}", self.target),
        }
    }
}

/// Returns the targets that have not replied to a request of a program for `age`, although the
/// connection of this thread to the target is open. The target that has not replied for the longest
/// time comes first.
///
/// The connection may be open only because the loss of the network has not been detected yet.
pub fn silent_targets(age: Duration) -> Vec<SilentTarget> {
    let now = skep_env::now();
    let oldest = |connection: &Connection| {
        let pending = connection.pending.borrow();
        let oldest = pending.values().filter_map(|it| it.sent_at).min();
        oldest.filter(|sent| now.saturating_sub(*sent) >= age)
    };
    CONNECTIONS.with_borrow(|all| {
        let open = all.iter().filter_map(Weak::upgrade).filter(|it| !it.is_closed());
        let found = |it: Rc<Connection>| {
            let sent = oldest(&it)?;
            let node = it.node.borrow().clone();
            Some((sent, SilentTarget { target: it.target, node }))
        };
        let mut silent: Vec<_> = open.filter_map(found).collect();
        silent.sort_unstable_by_key(|(sent, it)| (*sent, it.target));
        silent.into_iter().map(|(_, target)| target).collect()
    })
}

/// An authenticated connection to one target.
pub struct Connection {
    target: TargetId,
    /// The name of the node at the other end, for the log. Empty until [`Self::set_node`].
    node: RefCell<String>,
    stream: TcpStream,
    outbox: RefCell<Vec<MessagePart>>,
    is_sending: Cell<bool>,
    /// Tag of the reply whose bulk data is being received. The request of this reply is not in
    /// `pending` any more, and the call does not have the reply yet. `None` means that no bulk data
    /// is being received.
    receiving: Cell<Option<u64>>,
    pending: RefCell<NumberMap<Pending>>,
    next_tag: Cell<u64>,
    is_closed: Cell<bool>,
    /// Whether the connection ends as soon as no request waits for a reply.
    closes_when_idle: Cell<bool>,
    /// The newest map version that a reply of the peer has required.
    needed_map: Cell<MapVersion>,
    idle: IdleClock,
    incarnation: u64,
}

/// Guard for the buffer that a call lends to its connection. When the call is dropped, the guard
/// replaces the buffer by a new buffer, so that the connection discards reply data that arrives
/// after the drop. If the connection is already receiving the data, it uses the old buffer for at
/// most [`ABANDONED_PATIENCE`].
struct LentBuffer<'a> {
    connection: &'a Rc<Connection>,
    tag: u64,
}

impl Drop for LentBuffer<'_> {
    fn drop(&mut self) {
        if let Some(pending) = self.connection.pending.borrow_mut().get_mut(&self.tag) {
            pending.into = pending.into.take().map(|into| Buf::new(into.len()));
        }
        // After the end of the thread's event loop, no task can run, so this function starts no
        // task.
        if self.connection.receiving.get() == Some(self.tag) && skep_env::is_running() {
            let (connection, tag) = (Rc::clone(self.connection), self.tag);
            skep_env::spawn(async move {
                skep_env::sleep(ABANDONED_PATIENCE).await;
                if connection.receiving.get() == Some(tag) {
                    connection.close();
                }
            })
            .detach();
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connection")
    }
}

impl Connection {
    /// Connects to `address` (`host:port`) and authenticates. A `target` of zero addresses the node
    /// itself. The new connection ends the previous connection on the same channel, if such a
    /// connection exists.
    ///
    /// # Errors
    /// - `Disconnected` if nothing listens at the address, the host does not reply in time, or the
    ///   connection ends during the handshake. A process at the address that does not behave like a
    ///   service of this cluster gives the same error.
    /// - `StaleMap` or `NotReady` if the peer refuses the target.
    /// - `AuthenticationFailed` or `VersionMismatch` if the peer refuses the handshake with this
    ///   code and this node has not joined the cluster yet (`identity` has no node id). A member of
    ///   the cluster gets `Disconnected` in place of these two codes (see [`crate::refusal`]).
    pub async fn connect(
        address: &str,
        identity: &Identity,
        target: TargetId,
        channel: Channel,
    ) -> Result<Rc<Self>> {
        Self::over(open_socket(address).await?, address, identity, target, channel).await
    }

    /// Like [`Self::connect`], for a host with several addresses. Also connects to the next address
    /// if earlier addresses do not answer in time, and authenticates at the first address that
    /// accepts. If the process at that address is not the service, tries the other addresses.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::connect`]. `Disconnected` if there is no address.
    pub async fn connect_any(
        addresses: &[String],
        identity: &Identity,
        target: TargetId,
        channel: Channel,
    ) -> Result<Rc<Self>> {
        async fn open(address: String) -> Result<(TcpStream, String)> {
            Ok((open_socket(&address).await?, address))
        }
        let mut left = addresses.to_vec();
        let mut last =
            Error::new(ErrorCode::Disconnected, "cannot connect: the list of addresses is empty");
        while let Some(opened) = first_success(left.clone(), ADDRESS_STAGGER, open).await {
            let (stream, address) = opened?;
            match Self::over(stream, &address, identity, target, channel).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
            left.retain(|other| *other != address);
        }
        Err(last)
    }

    /// Authenticates over a new socket, and starts the task that reads replies.
    async fn over(
        stream: TcpStream,
        address: &str,
        identity: &Identity,
        target: TargetId,
        channel: Channel,
    ) -> Result<Rc<Self>> {
        let mut reader = FrameReader::new(stream.clone());
        let welcome = handshake::connect(&stream, &mut reader, identity, target, channel)
            .await
            .map_err(|error| refusal::judge(error, address, identity))?;
        let connection = Rc::new(Self {
            target,
            node: RefCell::default(),
            stream,
            outbox: RefCell::default(),
            is_sending: Cell::new(false),
            receiving: Cell::new(None),
            pending: RefCell::default(),
            next_tag: Cell::new(1),
            is_closed: Cell::new(false),
            closes_when_idle: Cell::new(false),
            needed_map: Cell::default(),
            idle: IdleClock::default(),
            incarnation: welcome.incarnation,
        });
        CONNECTIONS.with_borrow_mut(|all| {
            all.retain(|it| it.strong_count() > 0);
            all.push(Rc::downgrade(&connection));
        });
        let reading = Rc::clone(&connection);
        skep_env::spawn(async move {
            let _ended = reading.read_replies(reader).await;
            reading.close();
        })
        .detach();
        Ok(connection)
    }

    /// Sets the name of the node at the other end, which [`silent_targets`] returns.
    pub(crate) fn set_node(&self, name: &str) {
        name.clone_into(&mut self.node.borrow_mut());
    }

    /// Returns the newest map version that the peer has named in a reply. Receivers must not
    /// execute later requests of this process under an older map than this version.
    pub fn needed_map(&self) -> MapVersion {
        self.needed_map.get()
    }

    /// Whether the connection has ended, so that callers cannot use the connection any more.
    pub fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Checks the use of the connection at `now`, and returns the time for which it has had no
    /// request, according to the checks so far ([`IdleClock`]).
    pub(crate) fn idle_time(&self, now: Duration) -> Duration {
        let has_request = !self.pending.borrow().is_empty() || self.receiving.get().is_some();
        self.idle.look(self.next_tag.get(), has_request || self.is_sending.get(), now)
    }

    /// Returns the incarnation of the peer: a number that changes with each start of the peer's
    /// process.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Ends the connection. All calls in flight fail with `Disconnected`.
    pub fn close(&self) {
        if !self.is_closed.replace(true) {
            self.stream.shutdown();
        }
        let pending = std::mem::take(&mut *self.pending.borrow_mut());
        drop(pending);
        // The connection will not send the waiting requests any more. If these requests stayed in
        // the queue, they would keep the buffers of their callers until the last handle of the
        // connection is dropped.
        let unsent = self.outbox.take();
        drop(unsent);
    }

    /// Ends the connection when all calls in flight have their replies. The caller must send no
    /// further request on this connection.
    pub(crate) fn close_when_idle(&self) {
        self.closes_when_idle.set(true);
        if self.pending.borrow().is_empty() {
            self.close();
        }
    }

    async fn read_replies(&self, mut reader: FrameReader) -> Result<()> {
        let broken = |problem: &str| Err(Error::new(ErrorCode::Protocol, problem.to_owned()));
        while let Some((header, crc)) = reader.header().await? {
            let body = reader.body(&header, crc).await?;
            let Some(Pending { sender, into, .. }) = self.pending.borrow_mut().remove(&header.tag)
            else {
                return broken("the peer sent a reply without a request");
            };
            if header.data_bytes > 0 {
                let len = header.data_bytes as usize;
                self.receiving.set(Some(header.tag));
                match into {
                    Some(into) if into.len() >= len => reader.data(&into.slice(0..len)).await?,
                    _ => return broken("the peer sent more data than was requested"),
                }
                self.receiving.set(None);
            }
            sender.send(Reply { header, body });
            if self.closes_when_idle.get() && self.pending.borrow().is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn start_sending(self: &Rc<Self>) {
        if self.is_sending.replace(true) {
            return;
        }
        let connection = Rc::clone(self);
        skep_env::spawn(async move {
            loop {
                let parts = connection.outbox.take();
                if parts.is_empty() {
                    break;
                }
                if connection.stream.send(parts).await.is_err() {
                    connection.close();
                    break;
                }
            }
            connection.is_sending.set(false);
        })
        .detach();
    }

    fn post(
        self: &Rc<Self>,
        header: &Header,
        body: &impl Codec,
        options: &CallOptions,
        sent_at: Option<Duration>,
    ) -> Result<(u64, Receiver<Reply>)> {
        let tag = self.next_tag.get();
        self.next_tag.set(tag + 1);
        let (sender, receiver) = oneshot();
        if self.is_closed() {
            return Ok((tag, receiver));
        }
        let data_bytes: usize = options.data.iter().map(Buf::len).sum();
        let header = Header { tag, ..header.clone() };
        let frame = header.frame(body, data_bytes as u32);
        let (len, longest) = (frame.len() - HEADER_BYTES, bounds(header.message).body_bytes);
        if len > longest {
            // Refuse the request on this side. If this side sent the request, the receiver would
            // end the connection, and each retry of the sender would fail in the same way.
            let context = format!(
                "cannot send message {} with a body of {len} bytes: the limit is {longest}",
                header.message
            );
            return Err(Error::new(ErrorCode::TooLarge, context));
        }
        if let Some(facts) = &options.facts {
            facts.body_bytes.set(len);
        }
        let _expected = reply_time(&header).map(skep_env::expect_reply);
        let pending = Pending { sender, into: options.into.clone(), sent_at, _expected };
        self.pending.borrow_mut().insert(tag, pending);
        let mut outbox = self.outbox.borrow_mut();
        outbox.push(MessagePart::Bytes(frame));
        outbox.extend(options.data.iter().cloned().map(MessagePart::Buf));
        drop(outbox);
        self.start_sending();
        Ok((tag, receiver))
    }

    /// Sends a request and waits for its reply, which may be an error. `sent_at` is the present
    /// time if a program waits for a reply that should arrive soon, and `None` in all other cases.
    async fn exchange(
        self: &Rc<Self>,
        header: &Header,
        request: &impl Codec,
        options: &CallOptions,
        sent_at: Option<Duration>,
    ) -> Result<Reply> {
        let (tag, receiver) = self.post(header, request, options, sent_at)?;
        let _lent = LentBuffer { connection: self, tag };
        let reply = match options.time_left {
            None => receiver.await,
            Some(left) => {
                let late = || {
                    let context = format!("no answer within {:.1} s", left.as_secs_f64());
                    Error::new(ErrorCode::TimedOut, context)
                };
                skep_env::timeout(left, receiver).await.ok_or_else(late)?
            }
        };
        let lost =
            || Error::new(ErrorCode::Disconnected, "the connection was lost before the reply");
        reply.ok_or_else(lost)
    }

    /// Sends a request and waits for its reply. Returns the reply and the number of bytes of its
    /// bulk data.
    ///
    /// # Errors
    /// - The error in the peer's reply.
    /// - `Disconnected` if the connection ends before the reply.
    /// - `TimedOut` if no reply arrives within `time_left`; the peer may still execute the request.
    /// - `Protocol` if the reply cannot be decoded.
    /// - `TooLarge` if the request is longer than its receiver accepts. The connection does not
    ///   send such a request.
    pub async fn call<R: Request>(
        self: &Rc<Self>,
        request: &R,
        options: &CallOptions,
    ) -> Result<(R::Reply, usize)> {
        let time_left_ms = options.time_left.map_or(0, |left| {
            (left.as_millis() as u32).clamp(1, skep_wire::limits::MAX_TIME_LEFT_MS)
        });
        let mut header = Header {
            message: R::ID,
            message_version: R::VERSION,
            flags: if options.durable { FLAG_DURABLE } else { 0 },
            session: options.session,
            slot: options.slot,
            sequence: options.sequence,
            group: options.group,
            time_left_ms,
            epoch: options.epoch,
            lowest_map: options.lowest_map,
            trace: options.trace,
            sender_group: options.sender.group,
            sender_epoch: options.sender.epoch,
            ..Header::default()
        };
        if options.start != 0 {
            header.set_start(options.start);
        }
        let origin = Origin::current();
        origin.write_to(&mut header);
        let running = RunningCall::begin(origin, R::ID, self.target);
        let sent_at = running.filter(|_| !waits_for_event(R::ID)).map(|it| it.begun_at());
        let exchanged = self.exchange(&header, request, options, sent_at).await;
        if let Some(running) = running {
            let reply = exchanged.as_ref().ok().map(|reply| &reply.header);
            running.end(reply, options.data.iter().map(Buf::len).sum());
        }
        let Reply { header, body } = exchanged?;
        self.needed_map.set(self.needed_map.get().max(header.lowest_map));
        if header.status != 0 {
            let code = ErrorCode::from_number(header.status).unwrap_or(ErrorCode::Protocol);
            let text = String::from_bytes(&body).unwrap_or_default();
            return Err(Error::new(code, shown(&text, MAX_PEER_TEXT)));
        }
        let reply = R::Reply::from_bytes(&body).map_err(|error| {
            Error::new(ErrorCode::Protocol, format!("cannot decode the reply: {error}"))
        })?;
        if let Some(facts) = &options.facts {
            facts.change.set(header.sequence);
        }
        Ok((reply, header.data_bytes as usize))
    }
}
