//! Requests that measure the network. Every service handles these requests on connections to the
//! node itself. Storage targets also handle these requests on connections to the target, which
//! normally carry file data.

use skep_rpc::link_benchmark::{self, LinkPlan, LinkResult};
use skep_rpc::{Identity, Incoming, MapCell, Outbox};
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, Result, TargetId};
use skep_wire::Request;
use skep_wire::benchmark::{DiscardData, GiveData, MeasureLink, MeasureLinkReply};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Time limit of a measurement. The service ends a measurement that takes longer than this time,
/// because its requester may have disappeared.
const MAX_TIME: Duration = Duration::from_secs(600);

/// Measures the links from this service to other services. At most one measurement runs at a time.
#[derive(Debug)]
pub struct Links {
    identity: Identity,
    map: Arc<MapCell>,
    is_measuring: Cell<bool>,
}

/// Marks a measurement as running. The next measurement can begin after this guard is dropped.
struct MeasuringGuard<'a>(&'a Cell<bool>);

impl Drop for MeasuringGuard<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Links {
    /// Creates a [`Links`] for the service with this identity. The addresses of other services come
    /// from `map`.
    pub fn new(identity: Identity, map: Arc<MapCell>) -> Rc<Self> {
        Rc::new(Self { identity, map, is_measuring: Cell::new(false) })
    }

    async fn measure(&self, request: MeasureLink, time_left: Duration) -> Result<MeasureLinkReply> {
        if self.is_measuring.replace(true) {
            let problem = "cannot measure the network: this node runs another measurement; repeat \
                           the command after the end of that measurement";
            return Err(Error::new(ErrorCode::InUse, problem));
        }
        let _measuring = MeasuringGuard(&self.is_measuring);
        let addresses = self.addresses(&request)?;
        let MeasureLink { target, streams, messages, message_bytes, is_receiving, .. } = request;
        let plan = LinkPlan { streams, messages, message_bytes, is_receiving };
        let deadline = skep_env::now() + time_left;
        let goes_on = move |_| skep_env::now() < deadline;
        let (identity, targets) = (&self.identity, [target]);
        let measured = link_benchmark::measure(identity, &addresses, &targets, plan, goes_on);
        measured.await.map(|result| reply(&result))
    }

    /// Returns the addresses of another service. The node and the target in the request must be in
    /// the cluster map.
    fn addresses(&self, request: &MeasureLink) -> Result<Vec<String>> {
        let map = self.map.load();
        let MeasureLink { node, target, .. } = request;
        let unknown = |problem: String| Error::new(ErrorCode::NotFound, problem);
        let found = map.node(*node).filter(|it| !it.addresses.is_empty()).ok_or_else(|| {
            unknown(format!(
                "cannot measure the link: service {node} is not in cluster map {}",
                map.version
            ))
        })?;
        let is_its = map.target(*target).is_some_and(|it| it.node == *node);
        if *target != TargetId::default() && !is_its {
            return Err(unknown(format!(
                "cannot measure the link: service {node} has no target {target}"
            )));
        }
        Ok(found.addresses.clone())
    }
}

fn reply(result: &LinkResult) -> MeasureLinkReply {
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let begin = result.begin();
    let part =
        |(from, to): &(Duration, Duration)| (nanoseconds(*from - begin), nanoseconds(*to - begin));
    MeasureLinkReply {
        address: result.address.clone(),
        bytes: result.bytes,
        streams: result.streams.iter().map(part).collect(),
        round_trips_ns: result.round_trips.iter().copied().map(nanoseconds).collect(),
    }
}

/// Whether a message number belongs to a request that measures the network.
pub fn is_link_request(message: u16) -> bool {
    [DiscardData::ID, GiveData::ID, MeasureLink::ID].contains(&message)
}

/// Handles a request that measures the network. A measurement runs in a separate task. `None` for
/// `links` means that this process cannot connect to other services, and refuses to measure.
pub fn answer(links: Option<&Rc<Links>>, incoming: Incoming, outbox: &Rc<Outbox>) {
    let Incoming { header, body, data, .. } = incoming;
    let result = match header.message {
        DiscardData::ID => DiscardData::from_bytes(&body)
            .and_then(|request| link_benchmark::discard(&request, data.as_ref()))
            .map(|reply| outbox.reply(&header, &reply)),
        GiveData::ID => GiveData::from_bytes(&body)
            .and_then(link_benchmark::give)
            .map(|(reply, data)| outbox.reply_data(&header, &reply, vec![data])),
        _ => MeasureLink::from_bytes(&body).and_then(|request| {
            let none = || {
                let problem = "cannot measure the link: management connects to no other service; \
                               measure from a metadata or storage service";
                Error::new(ErrorCode::Unsupported, problem)
            };
            let links = Rc::clone(links.ok_or_else(none)?);
            let (header, outbox) = (header.clone(), Rc::clone(outbox));
            let left = match header.time_left_ms {
                0 => MAX_TIME,
                left => MAX_TIME.min(Duration::from_millis(left.into())),
            };
            skep_env::spawn(async move {
                match links.measure(request, left).await {
                    Ok(reply) => outbox.reply(&header, &reply),
                    Err(error) => outbox.refuse(&header, &error),
                }
            })
            .detach();
            Ok(())
        }),
    };
    if let Err(error) = result {
        outbox.refuse(&header, &error);
    }
}
