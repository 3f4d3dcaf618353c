//! The thread that owns a storage target, with its connections, chunk files and background tasks.
//!
//! Targets share no state, but the targets of one device may share a thread (`event_loops`). The
//! service's main thread sends connections and other events through a mailbox.

use crate::benchmark::Benchmark;
use crate::chunk_store::{ChunkStore, CleanEnd, PreparedStore};
use crate::emulation::Device;
use crate::event_loops::EventLoops;
use crate::fair_permits::{self, FairPermits};
use crate::handlers::{self, Requester};
use crate::limits::{
    MAX_REQUESTS_PER_CLIENT, MAX_REQUESTS_PER_CONNECTION, MAX_REQUESTS_PER_TARGET, SPIN,
};
use crate::loss::Loss;
use crate::orphans::{CleanUpProgress, clean_up_forever};
use crate::request_meter::RequestMeter;
use crate::settings::EmulationSettings;
use crate::store_gauges::StoreGauges;
use skep_env::local::Semaphore;
use skep_env::{Task, TcpStream};
use skep_metrics::catalog::STORAGE_RECOVERY;
use skep_rpc::{Channel, IncomingStream, Outbox, Peer, Router};
use skep_service::link_requests::Links;
use skep_service::{TargetEvent, TargetStart, quarantine};
use skep_store::identity::Directory;
use skep_types::{ClusterMap, Epoch, Error, ErrorCode, GroupId, MapVersion, Result, TargetId};
use skep_wire::frame::Header;
use skep_wire::senders::SenderEpochs;
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

/// A target that its thread serves.
struct ServedTarget {
    store: Rc<ChunkStore>,
    router: Rc<Router>,
    target: TargetId,
    /// The target's cached position in the cluster map, valid for one map version.
    position: Cell<Option<MapPosition>>,
    loss: Loss,
    /// The newest epochs of the groups whose primaries have sent requests.
    senders: RefCell<SenderEpochs>,
    /// One permit per request in progress, over all connections of the target.
    permits: Rc<FairPermits>,
    /// The emulated device. `None` means that the target emulates no device.
    device: Option<Rc<Device>>,
    benchmark: Rc<Benchmark>,
    links: Rc<Links>,
    meter: RequestMeter,
}

/// Serves a target on one of `loops` until [`TargetEvent::Stop`]. Keeps at most `open_files` chunk
/// files open, in addition to the chunk files in use.
///
/// # Errors
/// The error that prevents the target's start or its clean shutdown. After an unclean shutdown, the
/// next start checks the regions that were written last.
pub(crate) fn serve(
    start: TargetStart,
    open_files: usize,
    emulation: &EmulationSettings,
    loops: &EventLoops,
) -> Result<()> {
    let device = Device::of(emulation, start.target);
    // Do everything that may block for a long time before the target gets its event loop, because
    // other targets of the device may share this loop. The following calls sync records and remove
    // large files, and they hang if the device hangs.
    let number = device_number(start.directory.path())?;
    Benchmark::remove_leftovers(start.directory.path())?;
    let (directory, cluster) = (start.directory.path(), start.identity.cluster);
    let began = skep_env::now();
    let store = PreparedStore::new(directory, cluster, start.target)?;
    let labels = vec![("target", start.target.raw().to_string()), ("recovery", "start".into())];
    let opened = start.metrics.histogram(&STORAGE_RECOVERY, &labels);
    opened.record(skep_env::now().saturating_sub(began));
    let loss = Loss::open(directory, start.target)?;
    let path = directory.to_owned();
    let serving = move || own(start, (store, loss), open_files, device);
    let ended = loops.run((number, path), serving)?;
    let recorded = ended.clean.and_then(CleanEnd::record);
    // Release the lock of the directory only after the end of the target, because another process
    // may open the directory as soon as the lock is free.
    drop(ended.directory);
    ended.result.and(recorded)
}

/// A target that its event loop has stopped serving.
struct Ended {
    directory: Directory,
    /// `Ok` after an ordinary stop, or the error that ended the target.
    result: Result<()>,
    clean: Result<CleanEnd>,
}

/// Returns the device number of the file system that contains a target's directory.
fn device_number(path: &Path) -> Result<u64> {
    let found = std::fs::metadata(path);
    let found = found.map_err(|error| Error::from(error).within(path.display()))?;
    Ok(found.dev())
}

async fn own(
    start: TargetStart,
    (store, loss): (PreparedStore, Loss),
    open_files: usize,
    device: Option<Device>,
) -> Ended {
    skep_env::set_spin(SPIN);
    let TargetStart { directory, target, identity, map, events, ready, metrics, .. } = start;
    let store = ChunkStore::start(store);
    store.limit_open_files(open_files);
    store.show_caches(&metrics);
    let device = device.map(Rc::new);
    let benchmark = Benchmark::new(target, directory.path(), device.clone());
    let links = Links::new(identity.clone(), Arc::clone(&map));
    let router = Router::of_target(identity, map, target);
    let served = Rc::new(ServedTarget {
        store: Rc::clone(&store),
        router: Rc::clone(&router),
        target,
        position: Cell::new(None),
        loss,
        senders: RefCell::default(),
        permits: FairPermits::new(MAX_REQUESTS_PER_TARGET, MAX_REQUESTS_PER_CLIENT),
        device,
        benchmark,
        links,
        meter: RequestMeter::new(&metrics, target),
    });
    served.loss.note(&served.router.map());
    ready.report();
    let cleaner = Rc::clone(&store);
    let cleaning = skep_env::spawn(async move { cleaner.clean_forever().await });
    // The chunk files of a lost target stay as they are, so that an administrator can copy them.
    let mut clean_up = (!served.loss.is_lost()).then(|| {
        let progress = CleanUpProgress::new(&metrics, target);
        let gauges = StoreGauges::new(&metrics, target);
        skep_env::spawn(clean_up_forever(Rc::clone(&store), router, (progress, gauges)))
    });
    let mut connections: Vec<(Peer, Task<()>)> = Vec::new();
    // The loop of the thread continues after the end of this target. So the target also completes
    // its requests after an error, since no write of this target may be in progress during the next
    // start.
    let result = loop {
        let event = match events.receive().await {
            Ok(event) => event,
            Err(error) => break Err(Error::from(error)),
        };
        match event {
            TargetEvent::Connection { socket, peer } => {
                connections.retain(|(old, task)| !task.is_finished() && !follows(&peer, old));
                let served = Rc::clone(&served);
                connections.push((peer, skep_env::spawn(take_requests(served, socket, peer))));
            }
            // The router loads the newest map for each request. But a lost target must mark its
            // directory even if no request arrives.
            TargetEvent::MapChanged => {
                served.loss.note(&served.router.map());
                if served.loss.is_lost() {
                    clean_up = None;
                }
            }
            TargetEvent::Probe(probe) => {
                let (probed, lost) = (Rc::clone(&store), served.loss.health());
                let answering = async move {
                    let health = probed.health().await;
                    probe.answer(lost.unwrap_or(health));
                };
                skep_env::spawn(answering).detach();
            }
            TargetEvent::Stop => break Ok(()),
        }
    };
    served.benchmark.end().await;
    // After this line, the target accepts no new requests. Requests in progress run to completion,
    // since a write that is dropped in the middle would be torn.
    drop((connections, clean_up));
    served.permits.all_released().await;
    store.end_cleaning();
    cleaning.await;
    Ended { directory, result, clean: store.end().await }
}

/// Whether a new connection replaces an older connection. Requests of the older connection that are
/// in progress run to completion, before conflicting requests of the new connection. The thread
/// drops all other requests of the older connection.
fn follows(new: &Peer, old: &Peer) -> bool {
    new.channel != Channel::NONE && (new.node, new.channel) == (old.node, old.channel)
}

/// Serves a connection until the peer ends it.
async fn take_requests(served: Rc<ServedTarget>, socket: OwnedFd, peer: Peer) {
    let (mut requests, outbox) = IncomingStream::new(TcpStream::from_fd(socket), peer.kind);
    let _closed = CloseAtEnd(Rc::clone(&outbox), Rc::clone(&served));
    served.meter.connections(1);
    let (client, meter_of) = (peer.node, Rc::clone(&served));
    outbox.on_data_sent(move |time| meter_of.meter.sent(client, time));
    let own_permits = Semaphore::new(MAX_REQUESTS_PER_CONNECTION);
    loop {
        let own_permit = own_permits.acquire().await;
        let mut incoming = match requests.next().await {
            Ok(Some(incoming)) => incoming,
            Ok(None) => break,
            Err(error) => {
                tracing::debug!("ended the connection of node {}: {error:#}", peer.node);
                break;
            }
        };
        let arrival = served.meter.arrived(&incoming, peer.node);
        let checked = served.check(&incoming.header, &peer);
        let checked =
            checked.and_then(|()| quarantine::check(incoming.header.message, &incoming.body));
        if let Err(error) = checked {
            served.meter.refused(&arrival);
            outbox.refuse(&incoming.header, &error);
            continue;
        }
        // The task acquires the permit only after the arrival of a request, so that an idle
        // connection holds no permit.
        let open = served.meter.open(&arrival);
        let queued = served.meter.queued();
        let permit = served.permits.acquire(peer.node, || fair_permits::cost(&incoming)).await;
        drop(queued);
        // The map may have changed during the wait, so repeat the check of the request. If
        // management has removed the sender in the meantime, the target may have acknowledged a
        // write of another client to the same range.
        if let Err(error) = served.check(&incoming.header, &peer) {
            served.meter.refused(&arrival);
            outbox.refuse(&incoming.header, &error);
            continue;
        }
        served.meter.begun();
        // The reply repeats `lowest_map` of the request's header. Raise `lowest_map` to the version
        // that this process requires, because the client then requires this version in all its
        // later requests. So after an administrator has marked a target as lost, a client with an
        // older map gets the newer map. A lost target that still has the older map then refuses the
        // requests of this client, because these requests require a newer map.
        let lowest_map = &mut incoming.header.lowest_map;
        *lowest_map = (*lowest_map).max(served.router.needed());
        let (served, outbox) = (Rc::clone(&served), Rc::clone(&outbox));
        skep_env::spawn(async move {
            let check = |header: &Header| match outbox.is_closed() {
                false => served.check(header, &peer),
                true => Err(Error::new(
                    ErrorCode::Disconnected,
                    "cannot complete the request: the connection of the request has ended",
                )),
            };
            let requester = Requester {
                sender: client,
                outbox: &outbox,
                device: served.device.as_deref(),
                benchmark: &served.benchmark,
                links: &served.links,
                meter: &served.meter,
                arrival,
                check: &check,
            };
            // `dispatch` consumes the request, so compute the fingerprint of the request before the
            // call.
            let mark = quarantine::Mark::of(incoming.header.message, &incoming.body);
            // The future of `dispatch` has several KiB. Pin this future at once, so that no
            // surrounding future has to move it.
            let handling = pin!(handlers::dispatch(&served.store, incoming, &requester));
            quarantine::watch(mark, handling).await;
            if served.store.take_space_refusal() {
                served.router.request_heartbeat();
            }
            served.meter.ended();
            drop((permit, own_permit, open));
        })
        .detach();
    }
}

/// Closes a connection when its task ends, or when the task is dropped because the target ends. If
/// the connection stayed open, the peer would wait for replies that no task sends.
struct CloseAtEnd(Rc<Outbox>, Rc<ServedTarget>);

impl Drop for CloseAtEnd {
    fn drop(&mut self) {
        self.0.close();
        self.1.meter.connections(-1);
    }
}

/// A target's position in one version of the cluster map.
#[derive(Debug, Clone, Copy)]
struct MapPosition {
    version: MapVersion,
    /// The group that the target leads as primary, and the group's epoch. `None` means that the
    /// target is not a primary.
    group: Option<(GroupId, Epoch)>,
}

impl ServedTarget {
    /// Returns the target's position in `map`.
    fn position(&self, map: &ClusterMap) -> MapPosition {
        if let Some(position) =
            self.position.get().filter(|position| position.version == map.version)
        {
            return position;
        }
        self.loss.note(map);
        let group = map.group_led_by(self.target).map(|group| (group.id, group.epoch));
        let position = MapPosition { version: map.version, group };
        self.position.set(Some(position));
        position
    }

    /// Checks that the target's map is new enough for a request, and that the sender has not been
    /// removed from the cluster. A sender that is a target must still be the primary of its group.
    /// A request that is not about the target itself must address the group that this target leads
    /// as primary, in the group's epoch in the map.
    fn check(&self, header: &Header, peer: &Peer) -> Result<()> {
        let map = self.router.map();
        if map.has_removed(peer.node) {
            let context = format!(
                "cannot execute the request: client {} was removed from the cluster map",
                peer.node
            );
            return Err(Error::new(ErrorCode::Evicted, context));
        }
        let MapPosition { version, group } = self.position(&map);
        self.loss.check()?;
        let stale = |problem: String| Err(Error::new(ErrorCode::StaleMap, problem));
        if header.lowest_map > version {
            return stale(format!(
                "cannot execute the request: target {} has cluster map {version}, and the request \
                 needs map {}",
                self.target, header.lowest_map
            ));
        }
        self.senders.borrow_mut().check(header, &map)?;
        if header.group.raw() == 0 && handlers::is_about_target(header.message) {
            return Ok(());
        }
        let Some((group, epoch)) = group else {
            return stale(format!(
                "cannot execute the request: target {} is not the primary of a group",
                self.target
            ));
        };
        if header.group != group {
            return stale(format!(
                "cannot execute the request: target {} is in group {group}, not in group {}",
                self.target, header.group
            ));
        }
        if header.epoch != epoch {
            return stale(format!(
                "cannot execute the request: group {group} has epoch {epoch}, and the request has \
                 epoch {}",
                header.epoch
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
