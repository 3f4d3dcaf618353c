//! A node that serves targets, each on a thread of its own: what metadata and storage services have
//! in common.
//!
//! The main thread listens, authenticates peers, keeps the membership, and hands each connection to
//! the thread that owns the target which the peer wants. With management down it starts those
//! targets that the map of before knows ([`crate::cached_map`]). Owns no request: what a target does
//! is the service's own ([`Host::run`] gets it as a function).

use crate::cached_map;
use crate::directory::NodeDirectory;
use crate::link_requests::{self, Links};
use crate::listen::{IfTaken, advertised, listen};
use crate::node::NodeSettings;
use crate::{PROGRAM_VERSION, node_requests, notify};
use skep_env::local::Notify;
use skep_env::{Mailbox, MailboxSender, TcpListener, TcpStream};
use skep_format::identity::{DirectoryKind, Identity as DirectoryIdentity};
use skep_rpc::membership::{Change, Membership};
use skep_rpc::server::{Peer, authenticate};
use skep_rpc::{Identity, IncomingStream, JoinToken, MapCell};
use skep_store::identity::{Directory, is_initialised};
use skep_types::map::Capacity;
use skep_types::registration::{ServerRegistration, TargetClaim};
use skep_types::{
    ClusterMap, Error, ErrorCode, NodeId, NodeKind, Result, Target, TargetId, TargetKind,
};
use skep_wire::management::{RegisterReply, RegisterServer};
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// What may wait in a target's mailbox: connections and map changes that it hasn't looked at.
const MAILBOX_ITEMS: usize = 10_000;
/// How long targets may take to stop when the service ends: they sync what they have, and service
/// managers lose patience after 90 seconds.
const STOP_PATIENCE: Duration = Duration::from_secs(80);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Something for a target's thread.
#[derive(Debug)]
pub enum TargetEvent {
    /// An authenticated connection.
    Connection {
        /// The socket.
        socket: OwnedFd,
        /// Who is on the other side.
        peer: Peer,
    },
    /// There is a newer map in the cell.
    MapChanged,
    /// The service ends: stop cleanly and return.
    Stop,
}

/// What a target's thread starts from.
#[derive(Debug)]
pub struct TargetStart {
    /// The target's directory, locked for this process.
    pub directory: Directory,
    /// Its id.
    pub target: TargetId,
    /// How to reach management.
    pub token: JoinToken,
    /// Who this node is, to its peers.
    pub identity: Identity,
    /// The newest map.
    pub map: Arc<MapCell>,
    /// What happens.
    pub events: Mailbox<TargetEvent>,
    /// To be called once the target serves.
    pub ready: Ready,
}

/// Tells the main thread that a target serves.
pub struct Ready(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ready")
    }
}

impl Ready {
    /// From what is to be done then.
    pub fn new(tell: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(tell))
    }

    /// The target serves now.
    pub fn tell(self) {
        (self.0)();
    }
}

#[derive(Debug)]
enum Report {
    Serves,
    Ended(TargetId, Result<()>),
    /// The service can't go on.
    Failed(Error),
}

/// A node that serves targets.
#[derive(Debug)]
pub struct Host {
    /// What it serves.
    pub kind: NodeKind,
    /// Settings that every node has.
    pub settings: NodeSettings,
    /// Directories of its targets.
    pub targets: Vec<PathBuf>,
    /// How many bytes of a target's file system are not for Skep, from how many it has.
    pub reserve: fn(u64) -> u64,
}

impl Host {
    fn kinds(&self) -> (DirectoryKind, DirectoryKind, TargetKind) {
        match self.kind {
            NodeKind::Metadata => {
                (DirectoryKind::MetadataNode, DirectoryKind::MetadataTarget, TargetKind::Metadata)
            }
            _ => (DirectoryKind::StorageNode, DirectoryKind::StorageTarget, TargetKind::Storage),
        }
    }

    /// Makes blank directories those of a new node of the token's cluster and of its targets; of a
    /// node that there is already, the targets that were added to the settings. What was
    /// interrupted goes on where it was.
    ///
    /// # Errors
    /// `Configuration` if there is nothing to make, a directory isn't blank, or belongs to another
    /// cluster or node; the context says what to do.
    pub fn initialise(&self, token: JoinToken) -> Result<()> {
        let (node_kind, target_kind, _) = self.kinds();
        let path = &self.settings.directory;
        let cluster = token.cluster;
        let is_new = !is_initialised(path);
        let node = match is_new {
            true => NodeDirectory::initialise(path, node_kind, token)?,
            false => NodeDirectory::open(path, node_kind)?,
        };
        if node.token.cluster != cluster {
            let own = node.token.cluster;
            let what = format!("belongs to cluster {own}, but the token is of cluster {cluster}");
            return Err(refused(path, &what));
        }
        let mut made = is_new;
        for target in &self.targets {
            if is_initialised(target) {
                drop(self.open_target(target, &node)?);
                continue;
            }
            let identity = DirectoryIdentity {
                kind: target_kind,
                node: NodeId::default(),
                target_uuid: skep_env::random_u128(),
                target: TargetId::default(),
                ..*node.directory.identity()
            };
            drop(Directory::initialise(target, identity)?);
            made = true;
        }
        match made {
            true => Ok(()),
            false => {
                let what = "is initialised already, and so are all its targets; start without \
                            --init";
                Err(refused(path, what))
            }
        }
    }

    /// Serves until the process is asked to end. `serve` runs on a thread of its own for each
    /// target, outside of any event loop; it returns after [`TargetEvent::Stop`], or with an error,
    /// which ends the whole service. Takes over the process's signals: call it before other threads
    /// are started.
    ///
    /// # Errors
    /// Whatever keeps it from starting, with what to do; a target's error.
    pub fn run(
        self,
        serve: impl Fn(TargetStart) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        let signals = crate::end_signals()?;
        let serve: Serve = Arc::new(serve);
        skep_env::block_on(async move { self.run_main(signals, serve).await })
            .map_err(|error| Error::new(ErrorCode::Io, format!("event loop: {error}")))?
    }

    async fn run_main(self, signals: skep_env::Signals, serve: Serve) -> Result<()> {
        let (node_kind, _, _) = self.kinds();
        let node = NodeDirectory::open(&self.settings.directory, node_kind)?;
        let open = |path: &PathBuf| self.open_target(path, &node);
        let directories = self.targets.iter().map(open).collect::<Result<Vec<_>>>()?;
        let listener =
            listen(&self.settings.listen, &self.settings.directory, IfTaken::Move).await?;
        let registration = self.registration(&node, &directories, &listener)?;
        let own_node = registration.server.node;
        let kept = cached_map::read(&node)
            .filter(|map| directories.iter().any(|it| is_known(map, own_node, it)));
        let (membership, registered) =
            until_signal(&signals, Membership::begin(&node.token, registration, kept)).await?;
        let (reports, inbox) = Mailbox::new(MAILBOX_ITEMS)?;
        let node_uuid = node.directory.identity().node_uuid;
        let served = Rc::new(Served {
            node: RefCell::new(node),
            waiting: RefCell::new(directories.into_iter().map(Some).collect()),
            running: RefCell::default(),
            links: Links::new(membership.identity(), membership.map_cell()),
            membership,
            map_changed: Rc::default(),
            serve,
            reports,
        });
        match registered {
            Some(registered) => served.start_all(&registered)?,
            None => served.start_known()?,
        }
        let keeping_map = skep_env::spawn(cached_map::keep(
            self.settings.directory.clone(),
            node_uuid,
            served.membership.map_cell(),
            Rc::clone(&served.map_changed),
        ));
        let keeping = served.keep_membership(self.reserve);
        let accepting = skep_env::spawn(accept(listener, Rc::clone(&served)));
        let result = served.watch(&signals, &inbox).await;
        drop((keeping, keeping_map, accepting));
        served.membership.leave().await;
        result
    }

    fn open_target(&self, path: &Path, node: &NodeDirectory) -> Result<Directory> {
        let (_, kind, _) = self.kinds();
        let own = node.directory.identity();
        let target = Directory::open(path, kind, Some(own.cluster))?;
        let found = target.identity();
        if found.node_uuid == own.node_uuid {
            return Ok(target);
        }
        let what = format!(
            "{kind} {} belongs to node {} ({:032x}), not to node {} ({:032x}) in {}; name it in \
             that node's settings",
            found.target,
            found.node,
            found.node_uuid,
            own.node,
            own.node_uuid,
            node.directory.path().display()
        );
        Err(refused(path, &what))
    }

    fn registration(
        &self,
        node: &NodeDirectory,
        directories: &[Directory],
        listener: &TcpListener,
    ) -> Result<RegisterServer> {
        let (_, _, kind) = self.kinds();
        let towards = node.token.addresses.first().map(String::as_str);
        let claim = |directory: &Directory| TargetClaim {
            target: directory.identity().target,
            uuid: directory.identity().target_uuid,
            kind,
            path: absolute(directory.path()),
        };
        let free_space = |directory: &Directory| capacity(directory.path(), self.reserve);
        let server = ServerRegistration {
            node: node.directory.identity().node,
            uuid: node.directory.identity().node_uuid,
            kind: self.kind,
            name: self.settings.name.clone(),
            addresses: advertised(listener, &self.settings.advertise, towards)?,
            domain: self.settings.domain(),
            version: PROGRAM_VERSION.into(),
            targets: directories.iter().map(claim).collect(),
        };
        Ok(RegisterServer { server, capacities: directories.iter().map(free_space).collect() })
    }
}

/// A node while it serves.
struct Served {
    node: RefCell<NodeDirectory>,
    /// Directories of targets that were not started yet, at their places in the registration.
    waiting: RefCell<Vec<Option<Directory>>>,
    running: RefCell<Vec<Running>>,
    links: Rc<Links>,
    membership: Rc<Membership>,
    /// There is another map in the membership's cell.
    map_changed: Rc<Notify>,
    serve: Serve,
    reports: MailboxSender<Report>,
}

/// A target that has a thread.
struct Running {
    target: TargetId,
    path: PathBuf,
    sender: MailboxSender<TargetEvent>,
}

impl Served {
    /// Starts those targets that the map of before knows; the others wait for their registration.
    fn start_known(&self) -> Result<()> {
        let node = self.membership.node();
        let map = self.membership.map_cell().load();
        tracing::warn!("management does not answer: begins with cluster map {}", map.version);
        for slot in &mut *self.waiting.borrow_mut() {
            if let Some(directory) = slot.take_if(|it| is_known(&map, node, it)) {
                self.start(directory)?;
            }
        }
        for directory in self.waiting.borrow().iter().flatten() {
            tracing::warn!("{}: waits for management", directory.path().display());
        }
        Ok(())
    }

    /// Keeps the ids that management gave, and starts the targets that don't run yet.
    fn start_all(&self, registered: &RegisterReply) -> Result<()> {
        let RegisterReply { node, targets, .. } = registered;
        self.node.borrow_mut().directory.assign(*node, TargetId::default())?;
        for (slot, target) in self.waiting.borrow_mut().iter_mut().zip(targets) {
            if let Some(mut directory) = slot.take() {
                directory.assign(*node, *target)?;
                self.start(directory)?;
            }
        }
        Ok(())
    }

    fn start(&self, directory: Directory) -> Result<()> {
        let target = directory.identity().target;
        let path = directory.path().to_owned();
        let (sender, events) = Mailbox::new(MAILBOX_ITEMS)?;
        let ready = self.reports.clone();
        let start = TargetStart {
            directory,
            target,
            token: self.membership.management().token(),
            identity: self.membership.identity(),
            map: self.membership.map_cell(),
            events,
            ready: Ready::new(move || {
                // The main thread takes what comes; if it is gone, the process ends anyway.
                let _ = ready.send(Report::Serves);
            }),
        };
        let (serve, reports) = (Arc::clone(&self.serve), self.reports.clone());
        skep_env::spawn_thread(format!("target-{target}"), None, move || {
            // A target that panicked is not served; nothing of its thread is used afterwards.
            let ended = catch_unwind(AssertUnwindSafe(|| serve(start)));
            let panicked = |_| Err(Error::new(ErrorCode::Io, "its thread panicked"));
            let _ = reports.send(Report::Ended(target, ended.unwrap_or_else(panicked)));
        })?;
        self.running.borrow_mut().push(Running { target, path, sender });
        Ok(())
    }

    fn keep_membership(self: &Rc<Self>, reserve: fn(u64) -> u64) -> skep_env::Task<()> {
        let served = Rc::clone(self);
        let capacities = move || {
            let running = served.running.borrow();
            running.iter().map(|it| (it.target, capacity(&it.path, reserve))).collect()
        };
        let served = Rc::clone(self);
        let on_change = move |change| served.take_change(change);
        skep_env::spawn(Rc::clone(&self.membership).keep(capacities, on_change))
    }

    fn take_change(&self, change: Change) {
        let failed = match change {
            Change::Joined(registered) => {
                tracing::info!("management is back: registered as node {}", registered.node);
                self.start_all(&registered).err()
            }
            Change::Refused(error) => Some(error),
            Change::Map | Change::Rejoined(_) => {
                self.map_changed.notify();
                for running in self.running.borrow().iter() {
                    // A full mailbox has a change in it already.
                    let _ = running.sender.send(TargetEvent::MapChanged);
                }
                None
            }
        };
        if let Some(error) = failed {
            // The main thread takes what comes.
            let _ = self.reports.send(Report::Failed(error));
        }
    }

    /// Waits until all targets serve, then for a signal or a target's end; stops all targets.
    async fn watch(&self, signals: &skep_env::Signals, inbox: &Mailbox<Report>) -> Result<()> {
        let (mut serving, mut ended) = (0, 0);
        let mut has_told = false;
        let result = loop {
            match until_signal(signals, async { Ok(inbox.receive().await?) }).await {
                Ok(Report::Serves) => {
                    serving += 1;
                    let running = self.running.borrow();
                    if serving == running.len() {
                        // Once: whoever starts several services counts.
                        if !std::mem::replace(&mut has_told, true) {
                            notify::ready();
                        }
                        let names: Vec<_> =
                            running.iter().map(|it| it.target.to_string()).collect();
                        tracing::info!("serves {}", names.join(", "));
                    }
                }
                Ok(Report::Ended(target, result)) => {
                    ended += 1;
                    break result.map_err(|error| error.within(format_args!("target {target}")));
                }
                Ok(Report::Failed(error)) => break Err(error),
                Err(error) if error.code() == ErrorCode::Interrupted => {
                    tracing::info!("ends: {}", error.context());
                    break Ok(());
                }
                Err(error) => break Err(error),
            }
        };
        notify::stopping();
        for running in self.running.borrow().iter() {
            let _ = running.sender.send(TargetEvent::Stop);
        }
        let ending = async {
            while ended < self.running.borrow().len() {
                if let Ok(Report::Ended(target, result)) = inbox.receive().await {
                    ended += 1;
                    if let Err(error) = result {
                        tracing::error!("target {target}: {error}");
                    }
                }
            }
        };
        if skep_env::timeout(STOP_PATIENCE, ending).await.is_none() {
            tracing::error!("a target did not stop within {STOP_PATIENCE:?}");
        }
        result
    }

    /// Authenticates a connection and hands it to its target.
    async fn hand_over(self: Rc<Self>, stream: TcpStream, incarnation: u64) {
        let identity = self.membership.identity();
        let is_served = |target: TargetId| {
            let is_running = self.running.borrow().iter().any(|it| it.target == target);
            // The node itself answers requests about the process.
            (is_running || target.raw() == 0).then_some(()).ok_or_else(|| {
                let what = format!("target {target} is not served by node {}", identity.node);
                Error::new(ErrorCode::StaleMap, what)
            })
        };
        let address = stream.peer();
        let peer = match authenticate(&stream, &identity, incarnation, is_served).await {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!("connection from {address} refused: {error}");
                return;
            }
        };
        if peer.target.raw() == 0 {
            return serve_node(stream, &self.links).await;
        }
        let Ok(socket) = stream.into_fd() else { return };
        if let Some(running) = self.running.borrow().iter().find(|it| it.target == peer.target)
            && running.sender.send(TargetEvent::Connection { socket, peer }).is_err()
        {
            tracing::warn!("target {} has too many connections waiting", peer.target);
        }
    }
}

/// Answers requests to the node itself, until the peer ends the connection.
async fn serve_node(stream: TcpStream, links: &Rc<Links>) {
    let peer = stream.peer();
    let (mut requests, outbox) = IncomingStream::new(stream);
    loop {
        match requests.next().await {
            Ok(Some(incoming)) if link_requests::is_one(incoming.header.message) => {
                link_requests::answer(Some(links), incoming, &outbox);
            }
            Ok(Some(incoming)) => node_requests::answer(&incoming, &outbox),
            Ok(None) => break,
            Err(error) => {
                tracing::debug!("connection from {peer}: {error}");
                break;
            }
        }
    }
    outbox.close();
}

/// Whether a map places a target at a node, with the id that the target's directory says.
fn is_known(map: &ClusterMap, node: NodeId, target: &Directory) -> bool {
    let is_placed = |it: &Target| it.node == node && map.group_of(it.id).is_some();
    map.node(node).is_some() && map.target(target.identity().target).is_some_and(is_placed)
}

type Serve = Arc<dyn Fn(TargetStart) -> Result<()> + Send + Sync>;

/// Runs a future until it ends or a signal arrives; the latter is `Interrupted`.
async fn until_signal<T>(
    signals: &skep_env::Signals,
    future: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut future = std::pin::pin!(future);
    let mut signal = std::pin::pin!(signals.next());
    std::future::poll_fn(|context| {
        use std::task::Poll;
        if let Poll::Ready(result) = future.as_mut().poll(context) {
            return Poll::Ready(result);
        }
        match signal.as_mut().poll(context) {
            Poll::Ready(Ok(number)) => {
                let what = format!("signal {number}");
                Poll::Ready(Err(Error::new(ErrorCode::Interrupted, what)))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

fn refused(path: &Path, what: &str) -> Error {
    Error::new(ErrorCode::Configuration, format!("{}: {what}", path.display()))
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// Room on a target's file system, without what is reserved. Nothing if it can't be told.
fn capacity(path: &Path, reserve: fn(u64) -> u64) -> Capacity {
    skep_env::space(path).map_or_else(
        |_| Capacity::default(),
        |space| Capacity {
            total_bytes: space.total_bytes,
            free_bytes: space.free_bytes.saturating_sub(reserve(space.total_bytes)),
            total_inodes: space.total_inodes,
            free_inodes: space.free_inodes,
            file_system: file_system(path).unwrap_or_default(),
        },
    )
}

/// The same for all that any service of this host sees of a file system, and for no other: devices
/// have different numbers on a running host, and boots have random ids. (Subvolumes of btrfs and
/// datasets of ZFS have numbers of their own, and count as if they shared nothing.)
fn file_system(path: &Path) -> std::io::Result<u128> {
    Ok(skep_env::boot_id()? ^ u128::from(skep_env::mount_mark(path)?.device))
}

async fn accept(listener: TcpListener, served: Rc<Served>) {
    let incarnation = skep_env::random_u64();
    loop {
        match listener.accept().await {
            Ok(stream) => {
                skep_env::spawn(Rc::clone(&served).hand_over(stream, incarnation)).detach();
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                skep_env::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::tests::token;

    fn host(dir: &Path, node: &str, targets: &[&str]) -> Host {
        let mut settings = NodeSettings::with_port(0);
        settings.directory = dir.join(node);
        let targets = targets.iter().map(|target| dir.join(target)).collect();
        Host { kind: NodeKind::Storage, settings, targets, reserve: |_| 0 }
    }

    /// What the directories of a host are refused for.
    fn problem(host: &Host) -> String {
        let node = NodeDirectory::open(&host.settings.directory, DirectoryKind::StorageNode);
        let node = node.unwrap();
        let mut opened = host.targets.iter().map(|path| host.open_target(path, &node));
        opened.find_map(Result::err).expect("one is refused").to_string()
    }

    #[test]
    fn targets_are_added_to_a_node_and_others_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let token_1 = token(1);
        let init = |node: &str, targets: &[&str], token: &JoinToken| {
            host(dir.path(), node, targets).initialise(token.clone())
        };
        init("n", &["a"], &token_1).unwrap();
        init("n", &["a", "b"], &token_1).unwrap();
        let again = init("n", &["a", "b"], &token_1).unwrap_err().to_string();
        assert!(again.contains("without --init"), "{again}");
        let foreign = init("n", &["a", "c"], &token(2)).unwrap_err().to_string();
        assert!(foreign.contains("cluster 0202"), "{foreign}");
        init("m", &["d"], &token_1).unwrap();
        let stolen = init("m", &["d", "a"], &token_1).unwrap_err().to_string();
        assert!(stolen.contains("belongs to node") && stolen.contains("/a:"), "{stolen}");
        let stolen = problem(&host(dir.path(), "m", &["d", "a"]));
        assert!(stolen.contains("belongs to node") && stolen.contains("/a:"), "{stolen}");
        let blank = problem(&host(dir.path(), "m", &["e"]));
        assert!(blank.contains("--init"), "{blank}");
    }
}
