//! The thread that owns a storage target: its connections, its chunk files, its background work.
//!
//! Knows no other target. What comes from the service's main thread comes through a mailbox.

use crate::chunk_store::ChunkStore;
use crate::handlers;
use crate::limits::{MAX_REQUESTS_PER_CONNECTION, MAX_REQUESTS_PER_TARGET, SPIN};
use crate::orphans::clean_up_forever;
use skep_env::local::Semaphore;
use skep_env::{Mailbox, MailboxSender, Task, TcpStream};
use skep_rpc::{Channel, Identity, IncomingStream, MapCell, Outbox, Peer, Router};
use skep_store::identity::Directory;
use skep_types::{Epoch, Error, ErrorCode, GroupId, MapVersion, Result, TargetId};
use skep_wire::frame::Header;
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Messages to a target that wait: connections that were just made, at most.
const MAILBOX_LIMIT: usize = 4096;

/// What a target's thread is told.
pub(crate) enum Order {
    /// Serve a peer that was authenticated.
    Serve(OwnedFd, Peer),
    /// The service is a member of the cluster now.
    Joined(Identity, Arc<MapCell>),
    /// Finish what has begun, sync everything, end.
    End,
}

/// A target's thread, as the main thread holds it.
pub(crate) struct TargetThread {
    pub(crate) target: TargetId,
    orders: MailboxSender<Order>,
    handle: JoinHandle<Result<()>>,
}

impl TargetThread {
    /// Opens a target and starts its thread; returns when it can serve. It keeps at most
    /// `open_files` chunk files open.
    ///
    /// # Errors
    /// What keeps the target from being opened, with its name.
    pub(crate) async fn start(directory: Directory, open_files: usize) -> Result<Self> {
        let target = directory.identity().target;
        let (orders, mailbox) = Mailbox::new(MAILBOX_LIMIT)?;
        let (ready, is_ready) = Mailbox::new(1)?;
        let handle = skep_env::spawn_thread(format!("storage-{target}"), None, move || {
            skep_env::block_on(own(directory, open_files, mailbox, ready))?
        })?;
        is_ready.receive().await?.map_err(|error: Error| error.within(target))?;
        Ok(Self { target, orders, handle })
    }

    /// Tells the thread something.
    ///
    /// # Errors
    /// `LimitReached` if it is hopelessly behind.
    pub(crate) fn tell(&self, order: Order) -> Result<()> {
        self.orders.send(order).map_err(|_| {
            Error::new(
                ErrorCode::LimitReached,
                format!("target {} has too many new connections", self.target),
            )
        })
    }

    /// Waits for the thread, which was told to end.
    ///
    /// # Errors
    /// If the end was not clean: the next start will look at what was written last.
    pub(crate) fn join(self) -> Result<()> {
        let ended = self.handle.join();
        let panicked = |_| Error::new(ErrorCode::Io, "its thread panicked");
        ended.map_err(panicked).and_then(|result| result).map_err(|error| error.within(self.target))
    }
}

/// A target while it is served, on its thread.
struct Served {
    store: Rc<ChunkStore>,
    /// Whom the target belongs to in the cluster map; none before the service has joined.
    router: RefCell<Option<Rc<Router>>>,
    target: TargetId,
    /// What `router` said about it last.
    place: Cell<Option<Place>>,
    /// Places for requests in work, over all connections.
    places: Rc<Semaphore>,
}

async fn own(
    directory: Directory,
    open_files: usize,
    orders: Mailbox<Order>,
    ready: MailboxSender<Result<()>>,
) -> Result<()> {
    skep_env::set_spin(SPIN);
    let identity = directory.identity();
    let store = match ChunkStore::open(directory.path(), identity.cluster, identity.target) {
        Ok(store) => store,
        Err(error) => {
            let _main_waits = ready.send(Err(error.clone()));
            return Err(error);
        }
    };
    store.limit_open_files(open_files);
    let served = Rc::new(Served {
        store: Rc::clone(&store),
        router: RefCell::default(),
        target: identity.target,
        place: Cell::new(None),
        places: Semaphore::new(MAX_REQUESTS_PER_TARGET),
    });
    let _main_waits = ready.send(Ok(()));
    let cleaner = Rc::clone(&store);
    let cleaning = skep_env::spawn(async move { cleaner.clean_forever().await });
    let mut connections: Vec<(Peer, Task<()>)> = Vec::new();
    let mut clean_up = None;
    loop {
        match orders.receive().await? {
            Order::Serve(socket, peer) => {
                connections.retain(|(old, task)| !task.is_finished() && !follows(&peer, old));
                let served = Rc::clone(&served);
                connections.push((peer, skep_env::spawn(serve(served, socket, peer))));
            }
            Order::Joined(identity, cell) => {
                let router = Router::new(identity, Channel::of_target(served.target), cell);
                served.router.replace(Some(Rc::clone(&router)));
                clean_up = Some(skep_env::spawn(clean_up_forever(Rc::clone(&store), router)));
            }
            Order::End => break,
        }
    }
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
async fn serve(served: Rc<Served>, socket: OwnedFd, peer: Peer) {
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
        if let Err(error) = served.check(&incoming.header) {
            outbox.refuse(&incoming.header, &error);
            continue;
        }
        // Not before there is a request: connections without one must not use up the places.
        let place = served.places.acquire().await;
        let (served, outbox) = (Rc::clone(&served), Rc::clone(&outbox));
        skep_env::spawn(async move {
            handlers::dispatch(&served.store, incoming, &outbox).await;
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
    /// Where the newest map places the target; none before the service has joined.
    fn place(&self) -> Option<Place> {
        let router = self.router.borrow();
        let map = router.as_ref()?.map();
        if let Some(place) = self.place.get().filter(|place| place.version == map.version) {
            return Some(place);
        }
        let group = map.group_of(self.target).map(|group| (group.id, group.epoch));
        let place = Place { version: map.version, group };
        self.place.set(Some(place));
        Some(place)
    }

    /// Whether a request is for this target's group as it is now.
    fn check(&self, header: &Header) -> Result<()> {
        let Some(Place { version, group }) = self.place() else { return Ok(()) };
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
