//! The thread that owns a storage target: its connections, its chunk files, its background work.
//!
//! Knows no other target. What comes from the service's main thread comes through a mailbox.

use crate::benchmark::Benchmark;
use crate::chunk_store::ChunkStore;
use crate::emulation::Device;
use crate::handlers::{self, Requester};
use crate::limits::{MAX_REQUESTS_PER_CONNECTION, MAX_REQUESTS_PER_TARGET, SPIN};
use crate::orphans::clean_up_forever;
use crate::settings::EmulationSettings;
use skep_env::local::Semaphore;
use skep_env::{Task, TcpStream};
use skep_rpc::{Channel, IncomingStream, Outbox, Peer, Router};
use skep_service::link_requests::Links;
use skep_service::{TargetEvent, TargetStart};
use skep_types::{ClusterMap, Epoch, Error, ErrorCode, GroupId, MapVersion, Result, TargetId};
use skep_wire::frame::Header;
use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

/// A target while it is served, on its thread.
struct Served {
    store: Rc<ChunkStore>,
    router: Rc<Router>,
    target: TargetId,
    /// What `router` said about it last.
    place: Cell<Option<Place>>,
    /// Places for requests in work, over all connections.
    places: Rc<Semaphore>,
    /// The device that it pretends to be.
    device: Option<Rc<Device>>,
    benchmark: Rc<Benchmark>,
    links: Rc<Links>,
}

/// Serves a target on the calling thread until it is told to stop; keeps at most `open_files` chunk
/// files open.
///
/// # Errors
/// What keeps the target from being opened, or its end from being clean: the next start will look
/// at what was written last.
pub(crate) fn serve(
    start: TargetStart,
    open_files: usize,
    emulation: &EmulationSettings,
) -> Result<()> {
    let device = Device::of(emulation, start.target);
    skep_env::block_on(own(start, open_files, device))
        .map_err(|error| Error::new(ErrorCode::Io, format!("event loop: {error}")))?
}

async fn own(start: TargetStart, open_files: usize, device: Option<Device>) -> Result<()> {
    skep_env::set_spin(SPIN);
    let TargetStart { directory, target, identity, map, events, ready, .. } = start;
    let store = ChunkStore::open(directory.path(), identity.cluster, target)?;
    store.limit_open_files(open_files);
    let device = device.map(Rc::new);
    let benchmark = Benchmark::open(directory.path(), device.clone())?;
    let links = Links::new(identity.clone(), Arc::clone(&map));
    let router = Router::new(identity, Channel::of_target(target), map);
    let served = Rc::new(Served {
        store: Rc::clone(&store),
        router: Rc::clone(&router),
        target,
        place: Cell::new(None),
        places: Semaphore::new(MAX_REQUESTS_PER_TARGET),
        device,
        benchmark,
        links,
    });
    ready.report();
    let cleaner = Rc::clone(&store);
    let cleaning = skep_env::spawn(async move { cleaner.clean_forever().await });
    let clean_up = skep_env::spawn(clean_up_forever(Rc::clone(&store), router));
    let mut connections: Vec<(Peer, Task<()>)> = Vec::new();
    loop {
        match events.receive().await? {
            TargetEvent::Connection { socket, peer } => {
                connections.retain(|(old, task)| !task.is_finished() && !follows(&peer, old));
                let served = Rc::clone(&served);
                connections.push((peer, skep_env::spawn(take_requests(served, socket, peer))));
            }
            // The router looks by itself.
            TargetEvent::MapChanged => {}
            TargetEvent::Stop => break,
        }
    }
    served.benchmark.end();
    // No new requests; those in work run to their end, since dropping a write would tear it.
    drop((connections, clean_up));
    let mut all = Vec::with_capacity(MAX_REQUESTS_PER_TARGET);
    for _ in 0..MAX_REQUESTS_PER_TARGET {
        all.push(served.places.acquire().await);
    }
    drop(cleaning);
    store.close().await
}

/// Whether a connection takes the place of an older one. Requests of that one which are in work go
/// on, and come before those of the new one wherever they meet; the rest is never looked at.
fn follows(new: &Peer, old: &Peer) -> bool {
    new.channel != Channel::NONE && (new.node, new.channel) == (old.node, old.channel)
}

/// Takes a peer's requests until it ends the connection.
async fn take_requests(served: Rc<Served>, socket: OwnedFd, peer: Peer) {
    let (mut requests, outbox) = IncomingStream::new(TcpStream::from_fd(socket));
    let _closed = CloseAtEnd(Rc::clone(&outbox));
    let own_places = Semaphore::new(MAX_REQUESTS_PER_CONNECTION);
    loop {
        let own_place = own_places.acquire().await;
        let incoming = match requests.next().await {
            Ok(Some(incoming)) => incoming,
            Ok(None) => break,
            Err(error) => {
                tracing::debug!("connection of node {}: {error}", peer.node);
                break;
            }
        };
        if let Err(error) = served.check(&incoming.header, &peer) {
            outbox.refuse(&incoming.header, &error);
            continue;
        }
        // Not before there is a request: connections without one must not use up the places.
        let place = served.places.acquire().await;
        let (served, outbox) = (Rc::clone(&served), Rc::clone(&outbox));
        skep_env::spawn(async move {
            let requester = Requester {
                outbox: &outbox,
                device: served.device.as_deref(),
                benchmark: &served.benchmark,
                links: &served.links,
            };
            handlers::dispatch(&served.store, incoming, &requester).await;
            drop((place, own_place));
        })
        .detach();
    }
}

/// Ends a connection with the task that serves it, also when that is dropped at the target's end:
/// the peer must not wait for answers that won't come.
struct CloseAtEnd(Rc<Outbox>);

impl Drop for CloseAtEnd {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A target's place in the cluster map.
#[derive(Debug, Clone, Copy)]
struct Place {
    version: MapVersion,
    /// None: the map doesn't have the target.
    group: Option<(GroupId, Epoch)>,
}

impl Served {
    /// Where the newest map places the target.
    fn place(&self, map: &ClusterMap) -> Place {
        if let Some(place) = self.place.get().filter(|place| place.version == map.version) {
            return place;
        }
        let group = map.group_of(self.target).map(|group| (group.id, group.epoch));
        let place = Place { version: map.version, group };
        self.place.set(Some(place));
        place
    }

    /// Whether a request is for this target's group as it is now, and of somebody who may ask.
    fn check(&self, header: &Header, peer: &Peer) -> Result<()> {
        let map = self.router.map();
        if map.has_removed(peer.node) {
            let what = format!("client {} was removed from the cluster map", peer.node);
            return Err(Error::new(ErrorCode::Evicted, what));
        }
        let Place { version, group } = self.place(&map);
        let stale = |what: String| Err(Error::new(ErrorCode::StaleMap, what));
        if header.lowest_map > version {
            return stale(format!(
                "target {} has cluster map {version}, the request needs {}",
                self.target, header.lowest_map
            ));
        }
        let Some((group, epoch)) = group.filter(|_| header.group.raw() != 0) else { return Ok(()) };
        if header.group != group {
            return stale(format!(
                "target {} is in group {group}, not in {}",
                self.target, header.group
            ));
        }
        if header.epoch < epoch {
            return stale(format!(
                "group {group} has epoch {epoch}, the request is of {}",
                header.epoch
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
