//! Network benchmarks between two services, or between a client and a service: the code of both
//! ends. The messages are like the messages between clients and storage targets, with bulk data and
//! checksums, but no storage device is involved.
//!
//! The benchmark measures the path that file data takes. The benchmark uses the same kind of
//! connections, which lead to the threads of the named targets. The sender computes and the
//! receiver verifies the checksums of all bytes. Only the access to chunk files is missing.

use crate::access::{Channel, Identity};
use crate::call_options::CallOptions;
use crate::client::Connection;
use crate::limits::{LINK_LOOK, LINK_PATIENCE, MAX_LINK_BYTES, MAX_LINK_STREAMS, MAX_ROUND_TRIPS};
use skep_env::{Buf, Task};
use skep_types::codec::crc32c;
use skep_types::{Error, ErrorCode, GRANULE_BYTES, Result, TargetId};
use skep_wire::benchmark::{DiscardData, GiveData, GiveDataReply};
use skep_wire::limits::MAX_DATA_BYTES;
use skep_wire::management::EmptyReply;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// The number and size of the messages of a link measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkPlan {
    /// Number of connections, each with one message in flight.
    pub streams: u16,
    /// Number of messages on each connection.
    pub messages: u32,
    /// Bytes of bulk data per message. Zero means that the messages are empty and the benchmark
    /// measures each round trip.
    pub message_bytes: u32,
    /// Whether this side receives data. `false` means that this side sends data.
    pub is_receiving: bool,
}

/// The result of a link measurement. Times count from the boot of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkResult {
    /// The address at which the peer was reached.
    pub address: String,
    /// Bytes of bulk data that were transferred.
    pub bytes: u64,
    /// For each connection, the start of its first message and the end of its last message.
    pub streams: Vec<(Duration, Duration)>,
    /// The duration of each round trip; empty if the messages carried data.
    pub round_trips: Vec<Duration>,
}

impl LinkResult {
    /// Returns the earliest start of all connections.
    pub fn begin(&self) -> Duration {
        self.streams.iter().map(|(begin, _)| *begin).min().unwrap_or_default()
    }

    /// Returns the latest end of all connections.
    pub fn end(&self) -> Duration {
        self.streams.iter().map(|(_, end)| *end).max().unwrap_or_default()
    }
}

impl LinkPlan {
    /// Checks the plan against the limits.
    ///
    /// # Errors
    /// Returns `InvalidArgument`, whose context lists all problems.
    pub fn check(&self) -> Result<()> {
        let mut problems = Vec::new();
        let mut must = |holds: bool, problem: String| {
            if !holds {
                problems.push(problem);
            }
        };
        must(
            (1..=MAX_LINK_STREAMS).contains(&self.streams),
            format!("invalid number of streams {}: expected 1 to {MAX_LINK_STREAMS}", self.streams),
        );
        must(self.messages > 0, "invalid number of messages 0: expected at least 1".into());
        must(
            self.message_bytes as usize <= MAX_DATA_BYTES,
            format!(
                "invalid message size {}: expected at most {MAX_DATA_BYTES} bytes",
                self.message_bytes
            ),
        );
        let all = u64::from(self.streams) * u64::from(self.messages);
        let bytes = all.saturating_mul(u64::from(self.message_bytes));
        must(
            bytes <= MAX_LINK_BYTES,
            format!(
                "cannot send {bytes} bytes over a link in one run: the limit is {MAX_LINK_BYTES}"
            ),
        );
        must(
            self.message_bytes > 0 || all <= MAX_ROUND_TRIPS,
            format!("cannot measure {all} round trips in one run: the limit is {MAX_ROUND_TRIPS}"),
        );
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::new(ErrorCode::InvalidArgument, problems.join("; ")))
    }
}

/// Returns `len` bytes of pseudo-random data, since a network could compress zeros.
fn filler(len: usize) -> Buf {
    const PART: usize = 4096;
    let mut part = [0; PART];
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for word in part.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    let buf = Buf::new(len);
    for at in (0..len).step_by(PART) {
        buf.write(at, &part[..PART.min(len - at)]);
    }
    buf
}

fn checksums(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(GRANULE_BYTES as usize).map(crc32c).collect()
}

fn compare(bytes: &[u8], expected: &[u32]) -> Result<()> {
    let mut sums = bytes.chunks(GRANULE_BYTES as usize).map(crc32c);
    let is_same =
        sums.len() == expected.len() && expected.iter().all(|it| sums.next() == Some(*it));
    let wrong =
        || Error::new(ErrorCode::Protocol, "the data does not match the checksums sent with it");
    is_same.then_some(()).ok_or_else(wrong)
}

/// Handles [`DiscardData`]: verifies the checksums and drops the data.
///
/// # Errors
/// `Protocol` if the data does not match the request's checksums.
pub fn discard(request: &DiscardData, data: Option<&Buf>) -> Result<EmptyReply> {
    let bytes = data.map(Buf::bytes);
    compare(bytes.as_deref().unwrap_or_default(), &request.checksums).map(|()| EmptyReply {})
}

/// Handles [`GiveData`]: returns the reply and the requested number of bytes.
///
/// # Errors
/// `LimitReached` if the request asks for more bytes than a frame can contain.
pub fn give(request: GiveData) -> Result<(GiveDataReply, Buf)> {
    let len = request.bytes as usize;
    if len > MAX_DATA_BYTES {
        let context =
            format!("cannot send {len} bytes in one reply: the limit is {MAX_DATA_BYTES}");
        return Err(Error::new(ErrorCode::LimitReached, context));
    }
    let data = filler(len);
    let checksums = checksums(&data.bytes());
    Ok((GiveDataReply { checksums }, data))
}

/// One connection of a link measurement.
struct Stream {
    connection: Rc<Connection>,
    plan: LinkPlan,
    moved: Rc<Cell<u64>>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.close();
    }
}

/// The start of a stream, its end, and the durations of its round trips.
type StreamTimes = (Duration, Duration, Vec<Duration>);

impl Stream {
    async fn message(&self, buf: &Buf) -> Result<()> {
        let patience = CallOptions { time_left: Some(LINK_PATIENCE), ..CallOptions::default() };
        if self.plan.is_receiving && !buf.is_empty() {
            let options = CallOptions { into: Some(buf.clone()), ..patience };
            let request = GiveData { bytes: self.plan.message_bytes };
            let (given, count) = self.connection.call(&request, &options).await?;
            if count != buf.len() {
                return Err(Error::new(
                    ErrorCode::Protocol,
                    "the peer sent less data than was requested",
                ));
            }
            return compare(&buf.bytes(), &given.checksums);
        }
        let data = if buf.is_empty() { Vec::new() } else { vec![buf.clone()] };
        let request = DiscardData { checksums: checksums(&buf.bytes()) };
        let options = CallOptions { data, ..patience };
        self.connection.call(&request, &options).await.map(drop)
    }

    async fn run(self) -> Result<StreamTimes> {
        let times_each = self.plan.message_bytes == 0;
        let buf = filler(self.plan.message_bytes as usize);
        let mut trips = Vec::new();
        let begin = skep_env::now();
        let mut last = begin;
        for _ in 0..self.plan.messages {
            self.message(&buf).await?;
            self.moved.set(self.moved.get() + buf.len() as u64);
            let now = skep_env::now();
            if times_each {
                trips.push(now - last);
            }
            last = now;
        }
        Ok((begin, last, trips))
    }
}

/// Measures the network link to a service. The connections go to the threads of `targets` in turn:
/// after the last target, the first target is next. If `targets` is empty, all connections go to
/// the service itself. Every `LINK_LOOK`, the function calls `goes_on` with the number of
/// transferred bytes. If `goes_on` returns `false`, the measurement ends.
///
/// # Errors
/// - `InvalidArgument` if the plan exceeds a limit.
/// - The error of the connection or of the peer.
/// - `Interrupted` if `goes_on` returned `false`.
pub async fn measure(
    identity: &Identity,
    addresses: &[String],
    targets: &[TargetId],
    plan: LinkPlan,
    goes_on: impl Fn(u64) -> bool,
) -> Result<LinkResult> {
    plan.check()?;
    let moved = Rc::new(Cell::new(0));
    let target_of =
        |stream: usize| targets.get(stream % targets.len().max(1)).copied().unwrap_or_default();
    let (address, first) = connect(identity, addresses, target_of(0)).await?;
    let mut streams = vec![first];
    while streams.len() < plan.streams.into() {
        let target = target_of(streams.len());
        streams.push(Connection::connect(&address, identity, target, Channel::NONE).await?);
    }
    let stream = |connection| Stream { connection, plan, moved: Rc::clone(&moved) };
    let streams: Vec<Stream> = streams.into_iter().map(stream).collect();
    for stream in &streams {
        // A first message without timing wakes the threads and fills the caches on the path.
        stream.message(&Buf::new(0)).await?;
    }
    let tasks: Vec<Task<Result<StreamTimes>>> =
        streams.into_iter().map(|stream| skep_env::spawn(stream.run())).collect();
    let mut all = std::pin::pin!(async {
        let mut parts = Vec::new();
        for task in tasks {
            parts.push(task.await?);
        }
        Ok::<_, Error>(parts)
    });
    let parts = loop {
        if let Some(parts) = skep_env::timeout(LINK_LOOK, all.as_mut()).await {
            break parts?;
        }
        if !goes_on(moved.get()) {
            return Err(Error::new(ErrorCode::Interrupted, "the measurement was stopped"));
        }
    };
    goes_on(moved.get());
    Ok(LinkResult {
        address,
        bytes: moved.get(),
        streams: parts.iter().map(|(begin, end, _)| (*begin, *end)).collect(),
        round_trips: parts.into_iter().flat_map(|(_, _, trips)| trips).collect(),
    })
}

/// Connects to the first address at which the service can be reached.
async fn connect(
    identity: &Identity,
    addresses: &[String],
    target: TargetId,
) -> Result<(String, Rc<Connection>)> {
    let mut last =
        Error::new(ErrorCode::Disconnected, "the service has no address in the cluster map");
    for address in addresses {
        match Connection::connect(address, identity, target, Channel::NONE).await {
            Ok(connection) => return Ok((address.clone(), connection)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secrets;
    use crate::server::{IncomingStream, authenticate};
    use skep_env::TcpListener;
    use skep_types::codec::Codec;
    use skep_types::{ClusterId, NodeId, NodeKind};
    use skep_wire::Request;

    fn identity() -> Identity {
        Identity {
            cluster: ClusterId::new([5; 16]),
            secrets: Secrets::generate(),
            node: NodeId::new(1),
            kind: NodeKind::Client,
        }
    }

    /// Serves one connection like a service. If `is_broken` is set, corrupts one byte of the data
    /// that the service sends.
    async fn serve(listener: TcpListener, identity: Identity, is_broken: bool) {
        loop {
            let stream = listener.accept().await.unwrap();
            let identity = identity.clone();
            skep_env::spawn(async move {
                authenticate(&stream, &identity, 1, |_| Ok(())).await.unwrap();
                let (mut requests, outbox) = IncomingStream::new(stream, NodeKind::Client);
                while let Ok(Some(incoming)) = requests.next().await {
                    if incoming.header.message == GiveData::ID {
                        let request = GiveData::from_bytes(&incoming.body).unwrap();
                        let (reply, data) = give(request).unwrap();
                        if is_broken {
                            data.write(7, b"x");
                        }
                        outbox.reply_data(&incoming.header, &reply, vec![data]);
                        continue;
                    }
                    let request = DiscardData::from_bytes(&incoming.body).unwrap();
                    match discard(&request, incoming.data.as_ref()) {
                        Ok(done) => outbox.reply(&incoming.header, &done),
                        Err(error) => outbox.refuse(&incoming.header, &error),
                    }
                }
            })
            .detach();
        }
    }

    fn try_out(plan: LinkPlan, is_broken: bool, goes_on: bool) -> Result<LinkResult> {
        skep_env::block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_address().unwrap().to_string();
            let identity = identity();
            let _serving = skep_env::spawn(serve(listener, identity.clone(), is_broken));
            let addresses = ["127.0.0.1:1".to_owned(), address];
            measure(&identity, &addresses, &[], plan, |_| goes_on).await
        })
        .unwrap()
    }

    const PLAN: LinkPlan =
        LinkPlan { streams: 3, messages: 5, message_bytes: 10_000, is_receiving: false };

    #[test]
    fn link_benchmark_sends_both_ways_and_times_round_trips() {
        for is_receiving in [false, true] {
            let result = try_out(LinkPlan { is_receiving, ..PLAN }, false, true).unwrap();
            assert_eq!((result.bytes, result.streams.len()), (150_000, 3));
            assert!(result.end() > result.begin() && result.round_trips.is_empty());
        }
        let trips = LinkPlan { streams: 1, messages: 20, message_bytes: 0, ..PLAN };
        let result = try_out(trips, false, true).unwrap();
        assert_eq!((result.bytes, result.round_trips.len()), (0, 20));
        let sum: Duration = result.round_trips.iter().sum();
        assert_eq!(sum, result.end() - result.begin());
    }

    #[test]
    fn both_ends_of_a_link_measurement_detect_changed_data() {
        let error = try_out(LinkPlan { is_receiving: true, ..PLAN }, true, true).unwrap_err();
        assert!(error.context().contains("checksums"), "{error}");
        let data = filler(5000);
        let request = DiscardData { checksums: checksums(&data.bytes()) };
        discard(&request, Some(&data)).unwrap();
        data.write(4999, b"x");
        assert_eq!(discard(&request, Some(&data)).unwrap_err().code(), ErrorCode::Protocol);
        assert!(discard(&request, None).is_err());
    }

    #[test]
    fn link_measurement_has_limits_and_can_be_stopped() {
        let problem = |plan: LinkPlan| plan.check().unwrap_err().context().to_owned();
        assert!(problem(LinkPlan { streams: 0, ..PLAN }).contains("streams 0: expected 1 to 64"));
        assert!(problem(LinkPlan { messages: 0, ..PLAN }).contains("messages 0: expected"));
        assert!(problem(LinkPlan { message_bytes: 5 << 20, ..PLAN }).contains("4194304"));
        assert!(problem(LinkPlan { messages: u32::MAX, ..PLAN }).contains("over a link"));
        assert!(problem(LinkPlan { message_bytes: 0, messages: 9999, ..PLAN }).contains("trips"));
        assert!(give(GiveData { bytes: 5 << 20 }).is_err());
        let endless = LinkPlan { messages: 10_000_000, ..PLAN };
        let error = try_out(endless, false, false).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Interrupted);
    }
}
