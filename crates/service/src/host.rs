//! A node that serves targets, each on a thread of its own: what metadata and storage services have
//! in common.
//!
//! The main thread listens, authenticates peers, keeps the membership, and hands each connection to
//! the thread that owns the target which the peer wants. Owns no request: what a target does is the
//! service's own ([`Host::run`] gets it as a function).

use crate::directory::NodeDirectory;
use crate::listen::{IfTaken, advertised, listen};
use crate::node::NodeSettings;
use crate::{PROGRAM_VERSION, notify};
use skep_env::{Mailbox, MailboxSender, TcpListener, TcpStream};
use skep_format::identity::{DirectoryKind, Identity as DirectoryIdentity};
use skep_rpc::membership::{Membership, Registration};
use skep_rpc::server::{Peer, authenticate};
use skep_rpc::{Identity, JoinToken, MapCell};
use skep_store::identity::Directory;
use skep_types::map::Capacity;
use skep_types::{Error, ErrorCode, NodeId, NodeKind, Result, TargetId, TargetKind};
use skep_wire::management::{RegisterServer, TargetRegistration};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// What may wait in a target's mailbox: connections and map changes that it hasn't looked at.
const MAILBOX_ITEMS: usize = 10_000;
/// How long targets may take to stop when the service ends.
const STOP_PATIENCE: Duration = Duration::from_secs(30);
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
#[derive(Debug)]
pub struct Ready(MailboxSender<Report>);

impl Ready {
    /// The target serves now.
    pub fn tell(self) {
        // The main thread takes what comes; if it is gone, the process ends anyway.
        let _ = self.0.send(Report::Serves);
    }
}

#[derive(Debug)]
enum Report {
    Serves,
    Ended(TargetId, Result<()>),
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
    /// Bytes of a target's file system that are not for Skep.
    pub reserve_bytes: u64,
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

    /// Makes the blank directories of a new node of the token's cluster, and of its targets. Those
    /// of the same node that are there already are left alone, so that targets can be added.
    ///
    /// # Errors
    /// `Configuration` naming the directory that isn't blank, or is another's.
    pub fn initialise(&self, token: JoinToken) -> Result<()> {
        let (node_kind, target_kind, _) = self.kinds();
        let path = &self.settings.directory;
        let cluster = token.cluster;
        let is_new = !skep_store::identity::is_initialised(path);
        let node = match is_new {
            true => NodeDirectory::initialise(path, node_kind, token)?,
            false => NodeDirectory::open(path, node_kind)?,
        };
        if node.token.cluster != cluster {
            let what = format!(
                "{}: belongs to cluster {}, the token is of cluster {cluster}",
                path.display(),
                node.token.cluster
            );
            return Err(Error::new(ErrorCode::Configuration, what));
        }
        let node_uuid = node.directory.identity().node_uuid;
        let mut made = is_new;
        for path in &self.targets {
            let existing = skep_store::identity::read_identity(path)?;
            if existing.is_some_and(|it| it.node_uuid == node_uuid && it.kind == target_kind) {
                continue;
            }
            let identity = DirectoryIdentity {
                kind: target_kind,
                cluster,
                node_uuid,
                node: NodeId::default(),
                target_uuid: skep_env::random_u128(),
                target: TargetId::default(),
            };
            Directory::initialise(path, identity)?;
            made = true;
        }
        if made {
            return Ok(());
        }
        let what = format!("{}: is initialised already; start without --init", path.display());
        Err(Error::new(ErrorCode::Configuration, what))
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
        let (node_kind, target_kind, _) = self.kinds();
        let mut node = NodeDirectory::open(&self.settings.directory, node_kind)?;
        let cluster = node.token.cluster;
        let mut directories = Vec::new();
        for path in &self.targets {
            let directory = Directory::open(path, target_kind, Some(cluster))?;
            if directory.identity().node_uuid != node.directory.identity().node_uuid {
                let what = format!(
                    "{}: is a target of another node than {}; start it with its own \
                     settings",
                    path.display(),
                    self.settings.directory.display()
                );
                return Err(Error::new(ErrorCode::Configuration, what));
            }
            directories.push(directory);
        }
        let listener =
            listen(&self.settings.listen, &self.settings.directory, IfTaken::Move).await?;
        let registration = self.registration(&node, &directories, &listener)?;
        let (membership, registered) = until_signal(
            &signals,
            Membership::join(&node.token, Registration::Server(registration), None),
        )
        .await?;
        node.directory.assign(registered.node, TargetId::default())?;
        let (reports, inbox) = Mailbox::new(MAILBOX_ITEMS)?;
        let mut senders = Vec::new();
        for (mut directory, target) in directories.into_iter().zip(&registered.targets) {
            directory.assign(registered.node, *target)?;
            let (sender, events) = Mailbox::new(MAILBOX_ITEMS)?;
            senders.push((*target, sender));
            let start = TargetStart {
                directory,
                target: *target,
                identity: membership.identity(),
                map: membership.map_cell(),
                events,
                ready: Ready(reports.clone()),
            };
            start_thread(start, Arc::clone(&serve), reports.clone())?;
        }
        let senders = Rc::new(senders);
        let keeping = self.keep_membership(&membership, &senders);
        let accepting =
            skep_env::spawn(accept(listener, membership.identity(), Rc::clone(&senders)));
        let result = self.watch(&signals, &inbox, &senders).await;
        drop((keeping, accepting));
        membership.leave().await;
        result
    }

    fn registration(
        &self,
        node: &NodeDirectory,
        directories: &[Directory],
        listener: &TcpListener,
    ) -> Result<RegisterServer> {
        let (_, _, kind) = self.kinds();
        let towards = node.token.addresses.first().map(String::as_str);
        let targets = directories
            .iter()
            .map(|directory| TargetRegistration {
                target: directory.identity().target,
                uuid: directory.identity().target_uuid,
                kind,
                path: absolute(directory.path()),
                capacity: capacity(directory.path(), self.reserve_bytes),
            })
            .collect();
        Ok(RegisterServer {
            node: node.directory.identity().node,
            uuid: node.directory.identity().node_uuid,
            kind: self.kind,
            name: self.settings.name.clone(),
            addresses: advertised(listener, &self.settings.advertise, towards)?,
            version: PROGRAM_VERSION.into(),
            targets,
        })
    }

    fn keep_membership(
        &self,
        membership: &Rc<Membership>,
        senders: &Senders,
    ) -> skep_env::Task<()> {
        let paths: Vec<_> =
            senders.iter().map(|(target, _)| *target).zip(self.targets.clone()).collect();
        let reserve = self.reserve_bytes;
        let capacities =
            move || paths.iter().map(|(target, path)| (*target, capacity(path, reserve))).collect();
        let senders = Rc::clone(senders);
        let on_change = move |_| {
            for (_, sender) in senders.iter() {
                // A full mailbox has a change in it already.
                let _ = sender.send(TargetEvent::MapChanged);
            }
        };
        skep_env::spawn(Rc::clone(membership).keep(capacities, on_change))
    }

    /// Waits until all targets serve, then for a signal or a target's end; stops all targets.
    async fn watch(
        &self,
        signals: &skep_env::Signals,
        inbox: &Mailbox<Report>,
        senders: &Senders,
    ) -> Result<()> {
        let mut running = senders.len();
        let mut serving = 0;
        let result = loop {
            match until_signal(signals, async { Ok(inbox.receive().await?) }).await {
                Ok(Report::Serves) => {
                    serving += 1;
                    if serving == senders.len() {
                        notify::ready();
                        let names: Vec<_> = senders.iter().map(|(id, _)| id.to_string()).collect();
                        tracing::info!("serves {}", names.join(", "));
                    }
                }
                Ok(Report::Ended(target, result)) => {
                    running -= 1;
                    break result.map_err(|error| error.within(format_args!("target {target}")));
                }
                Err(error) if error.code() == ErrorCode::Interrupted => {
                    tracing::info!("ends: {}", error.context());
                    break Ok(());
                }
                Err(error) => break Err(error),
            }
        };
        notify::stopping();
        for (_, sender) in senders.iter() {
            let _ = sender.send(TargetEvent::Stop);
        }
        let ending = async {
            while running > 0 {
                if let Ok(Report::Ended(target, result)) = inbox.receive().await {
                    running -= 1;
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
}

type Serve = Arc<dyn Fn(TargetStart) -> Result<()> + Send + Sync>;
type Senders = Rc<Vec<(TargetId, MailboxSender<TargetEvent>)>>;

fn start_thread(start: TargetStart, serve: Serve, reports: MailboxSender<Report>) -> Result<()> {
    let target = start.target;
    skep_env::spawn_thread(format!("target-{target}"), None, move || {
        let result = serve(start);
        let _ = reports.send(Report::Ended(target, result));
    })?;
    Ok(())
}

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

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// Room on a target's file system, without what is reserved. Nothing if it can't be told.
fn capacity(path: &Path, reserve_bytes: u64) -> Capacity {
    skep_env::space(path).map_or_else(
        |_| Capacity::default(),
        |space| Capacity {
            total_bytes: space.total_bytes,
            free_bytes: space.free_bytes.saturating_sub(reserve_bytes),
            total_inodes: space.total_inodes,
            free_inodes: space.free_inodes,
        },
    )
}

async fn accept(listener: TcpListener, identity: Identity, senders: Senders) {
    let incarnation = skep_env::random_u64();
    loop {
        match listener.accept().await {
            Ok(stream) => {
                let (identity, senders) = (identity.clone(), Rc::clone(&senders));
                skep_env::spawn(hand_over(stream, identity, incarnation, senders)).detach();
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                skep_env::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn hand_over(stream: TcpStream, identity: Identity, incarnation: u64, senders: Senders) {
    let is_served = |target: TargetId| {
        senders.iter().find(|(id, _)| *id == target).map(drop).ok_or_else(|| {
            let what = match target.raw() {
                0 => "this node serves targets only".to_owned(),
                _ => format!("target {target} is not served by node {}", identity.node),
            };
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
    let Ok(socket) = stream.into_fd() else { return };
    if let Some((_, sender)) = senders.iter().find(|(id, _)| *id == peer.target)
        && sender.send(TargetEvent::Connection { socket, peer }).is_err()
    {
        tracing::warn!("target {} has too many connections waiting", peer.target);
    }
}
