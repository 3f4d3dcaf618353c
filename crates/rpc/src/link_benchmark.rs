//! Both ends of a benchmark of the network: messages as those of clients to storage, with bulk data
//! and its checksums, that no device is behind.
//!
//! What is measured is the way of real data: connections of the same kind, on the thread that
//! answers for what they name, with every byte summed and compared. Only files are missing.

use crate::access::{Channel, Identity};
use crate::client::{CallOptions, Connection};
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

/// What is moved over a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkPlan {
    /// Connections, each with one message under way.
    pub streams: u16,
    /// Messages of each.
    pub messages: u32,
    /// Bulk data in each; zero: round trips are timed one by one.
    pub message_bytes: u32,
    /// Data come from the other side; else they go there.
    pub is_receiving: bool,
}

/// What was measured. Times are since this host booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkResult {
    /// The address at which the other side answered.
    pub address: String,
    /// Bytes of bulk data.
    pub bytes: u64,
    /// Begin and end of each connection's messages.
    pub streams: Vec<(Duration, Duration)>,
    /// Each round trip, if they were timed.
    pub round_trips: Vec<Duration>,
}

impl LinkResult {
    /// The first begin.
    pub fn begin(&self) -> Duration {
        self.streams.iter().map(|(begin, _)| *begin).min().unwrap_or_default()
    }

    /// The last end.
    pub fn end(&self) -> Duration {
        self.streams.iter().map(|(_, end)| *end).max().unwrap_or_default()
    }
}

impl LinkPlan {
    /// Refuses what is too much.
    ///
    /// # Errors
    /// `InvalidArgument` with all that is wrong.
    pub fn check(&self) -> Result<()> {
        let mut problems = Vec::new();
        let mut must = |holds: bool, what: String| {
            if !holds {
                problems.push(what);
            }
        };
        must(
            (1..=MAX_LINK_STREAMS).contains(&self.streams),
            format!("1 to {MAX_LINK_STREAMS} streams are possible, not {}", self.streams),
        );
        must(self.messages > 0, "at least one message is needed".into());
        must(
            self.message_bytes as usize <= MAX_DATA_BYTES,
            format!("a message has at most {MAX_DATA_BYTES} bytes, not {}", self.message_bytes),
        );
        let all = u64::from(self.streams) * u64::from(self.messages);
        let bytes = all.saturating_mul(u64::from(self.message_bytes));
        must(
            bytes <= MAX_LINK_BYTES,
            format!("at most {MAX_LINK_BYTES} bytes go over a link at once, not {bytes}"),
        );
        must(
            self.message_bytes > 0 || all <= MAX_ROUND_TRIPS,
            format!("at most {MAX_ROUND_TRIPS} round trips are timed at once, not {all}"),
        );
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::new(ErrorCode::InvalidArgument, problems.join("; ")))
    }
}

/// Data that means nothing. No zeros, which a network could leave out.
fn meaningless(len: usize) -> Buf {
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
    let wrong = || Error::new(ErrorCode::Protocol, "data don't have the checksums they came with");
    is_same.then_some(()).ok_or_else(wrong)
}

/// Answers [`DiscardData`].
///
/// # Errors
/// `Protocol` if data and checksums don't agree.
pub fn discard(request: &DiscardData, data: Option<&Buf>) -> Result<EmptyReply> {
    compare(data.map_or(&[], Buf::bytes), &request.checksums).map(|()| EmptyReply {})
}

/// Answers [`GiveData`].
///
/// # Errors
/// `LimitReached` for more than fits into a frame.
pub fn give(request: GiveData) -> Result<(GiveDataReply, Buf)> {
    let len = request.bytes as usize;
    if len > MAX_DATA_BYTES {
        let what = format!("{len} bytes asked for, {MAX_DATA_BYTES} fit into a reply");
        return Err(Error::new(ErrorCode::LimitReached, what));
    }
    let data = meaningless(len);
    Ok((GiveDataReply { checksums: checksums(data.bytes()) }, data))
}

/// One connection, and what it has done.
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

/// Begin and end of a stream, and its round trips.
type MessagePart = (Duration, Duration, Vec<Duration>);

impl Stream {
    async fn message(&self, buf: &Buf) -> Result<()> {
        let patience = CallOptions { time_left: Some(LINK_PATIENCE), ..CallOptions::default() };
        if self.plan.is_receiving && !buf.is_empty() {
            let options = CallOptions { into: Some(buf.clone()), ..patience };
            let request = GiveData { bytes: self.plan.message_bytes };
            let (given, count) = self.connection.call(&request, &options).await?;
            if count != buf.len() {
                return Err(Error::new(ErrorCode::Protocol, "less data came than was asked for"));
            }
            return compare(buf.bytes(), &given.checksums);
        }
        let data = if buf.is_empty() { Vec::new() } else { vec![buf.clone()] };
        let request = DiscardData { checksums: checksums(buf.bytes()) };
        let options = CallOptions { data, ..patience };
        self.connection.call(&request, &options).await.map(drop)
    }

    async fn run(self) -> Result<MessagePart> {
        let times_each = self.plan.message_bytes == 0;
        let buf = meaningless(self.plan.message_bytes as usize);
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

/// Measures the link to a service: to the threads of these targets of it, one stream after the
/// other, or without targets to the service itself. `goes_on` is told now and then how many bytes
/// were moved; when it says no, the measurement is given up.
///
/// # Errors
/// What is wrong with the plan; what kept the other side from being reached, or from answering;
/// `Interrupted` if `goes_on` said no.
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
        // Untimed: everything on the way is awake.
        stream.message(&Buf::new(0)).await?;
    }
    let tasks: Vec<Task<Result<MessagePart>>> =
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
            return Err(Error::new(ErrorCode::Interrupted, "given up"));
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

/// Connects at the first address that answers.
async fn connect(
    identity: &Identity,
    addresses: &[String],
    target: TargetId,
) -> Result<(String, Rc<Connection>)> {
    let mut last = Error::new(ErrorCode::Disconnected, "it has no address");
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
    use crate::access::Secret;
    use crate::server::{IncomingStream, authenticate};
    use skep_env::TcpListener;
    use skep_types::codec::Codec;
    use skep_types::{ClusterId, NodeId, NodeKind};
    use skep_wire::Request;

    fn identity() -> Identity {
        Identity {
            cluster: ClusterId::new([5; 16]),
            secret: Secret::generate(),
            node: NodeId::new(1),
            kind: NodeKind::Client,
        }
    }

    /// Answers as services do; changes a byte of what it gives if it is told to.
    async fn serve(listener: TcpListener, identity: Identity, is_broken: bool) {
        loop {
            let stream = listener.accept().await.unwrap();
            let identity = identity.clone();
            skep_env::spawn(async move {
                authenticate(&stream, &identity, 1, |_| Ok(())).await.unwrap();
                let (mut requests, outbox) = IncomingStream::new(stream);
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
    fn data_go_both_ways_and_round_trips_are_timed() {
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
    fn changed_data_are_noticed_at_both_ends() {
        let error = try_out(LinkPlan { is_receiving: true, ..PLAN }, true, true).unwrap_err();
        assert!(error.context().contains("checksums"), "{error}");
        let data = meaningless(5000);
        let request = DiscardData { checksums: checksums(data.bytes()) };
        discard(&request, Some(&data)).unwrap();
        data.write(4999, b"x");
        assert_eq!(discard(&request, Some(&data)).unwrap_err().code(), ErrorCode::Protocol);
        assert!(discard(&request, None).is_err());
    }

    #[test]
    fn what_is_too_much_is_refused_and_what_nobody_waits_for_given_up() {
        let problem = |plan: LinkPlan| plan.check().unwrap_err().context().to_owned();
        assert!(problem(LinkPlan { streams: 0, ..PLAN }).contains("1 to 64 streams"));
        assert!(problem(LinkPlan { messages: 0, ..PLAN }).contains("one message"));
        assert!(problem(LinkPlan { message_bytes: 5 << 20, ..PLAN }).contains("4194304"));
        assert!(problem(LinkPlan { messages: u32::MAX, ..PLAN }).contains("over a link"));
        assert!(problem(LinkPlan { message_bytes: 0, messages: 9999, ..PLAN }).contains("trips"));
        assert!(give(GiveData { bytes: 5 << 20 }).is_err());
        let endless = LinkPlan { messages: 10_000_000, ..PLAN };
        let error = try_out(endless, false, false).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Interrupted);
    }
}
