//! A node that serves targets, with a separate thread for each target. Metadata and storage
//! services share this code.
//!
//! The main thread opens the directories ([`init`]), registers with management, and listens. The
//! main thread passes each authenticated connection to the thread of the target that the peer names
//! ([`connections`]). The main thread also starts and watches the target threads ([`targets`]), and
//! stops these threads ([`stopping`]). If management does not reply at the start, the main thread
//! starts the targets that are in the cached cluster map ([`crate::cached_map`]). An administrator
//! can add targets while the node runs ([`target_requests`]). If a target cannot be opened, or its
//! thread ends with an error, the other targets continue. The node tries again to serve the failed
//! target ([`unserved`], [`retries`]). The main thread probes the target threads and reports their
//! health to management ([`health`]).
//!
//! This module does not handle the requests to targets. Each kind of service passes to
//! [`Host::run`] its own function that serves a target. If a target's thread panics, the process
//! aborts ([`targets`]).

mod added_targets;
mod capacity;
mod connections;
mod health;
mod init;
mod known_group;
mod retries;
mod stopping;
mod target_requests;
mod targets;
mod unserved;

use crate::advertise;
use crate::directory::NodeDirectory;
use crate::link_requests::Links;
use crate::listen::{IfTaken, listen};
use crate::node::NodeSettings;
use crate::{
    PROGRAM_VERSION, cached_map, followed_token, metrics_page, quarantine, working_directory,
};
use added_targets::AddedTargets;
pub(crate) use added_targets::{FILE as ADDED_TARGETS_FILE, parse as parse_added_targets};
pub use init::Initialised;
use skep_env::local::Notify;
use skep_env::{Mailbox, TcpListener};
use skep_exporter::message::Figures;
use skep_format::identity::DirectoryKind;
use skep_metrics::Registry;
use skep_rpc::membership::Membership;
use skep_rpc::{Identity, JoinToken, MapCell, Peer};
use skep_store::identity::Directory;
use skep_types::registration::{ServerRegistration, TargetClaim};
use skep_types::{Error, ErrorCode, NodeKind, Result, TargetId, TargetKind};
use skep_wire::management::RegisterServer;
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use targets::{MAILBOX_ITEMS, Serve, ServingNode, is_known};
use unserved::UnservedTarget;

pub use health::Probe;

/// An event that the main thread sends to a target's thread.
#[derive(Debug)]
pub enum TargetEvent {
    /// A peer has opened an authenticated connection to the target.
    Connection {
        /// The connection's socket.
        socket: OwnedFd,
        /// The authenticated peer.
        peer: Peer,
    },
    /// The main thread has stored a new cluster map in [`TargetStart::map`].
    MapChanged,
    /// The target must answer with its health, after a small read of its device.
    Probe(Probe),
    /// The service is ending. The target must stop cleanly, and the function that serves it must
    /// return.
    Stop,
}

/// The parameters of the function that serves a target.
#[derive(Debug)]
pub struct TargetStart {
    /// The target's directory, locked by this process.
    pub directory: Directory,
    /// The target's id.
    pub target: TargetId,
    /// The join token, which the thread needs to connect to management.
    pub token: JoinToken,
    /// The identity that this node presents to its peers.
    pub identity: Identity,
    /// The cell with the newest cluster map.
    pub map: Arc<MapCell>,
    /// The registry of the process's metrics.
    pub metrics: Arc<Registry>,
    /// The mailbox through which the main thread sends connections and other events.
    pub events: Mailbox<TargetEvent>,
    /// The thread must call [`Ready::report`] as soon as the target serves.
    pub ready: Ready,
}

/// Reports to the main thread that a target is ready to serve.
pub struct Ready(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ready")
    }
}

impl Ready {
    /// Creates a reporter. `report` is called when the target is ready to serve.
    pub fn new(report: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(report))
    }

    /// Reports that the target is ready to serve.
    pub fn report(self) {
        (self.0)();
    }
}

/// A node that serves targets.
#[derive(Debug)]
pub struct Host {
    /// The kind of service.
    pub kind: NodeKind,
    /// Settings that all services have in common.
    pub settings: NodeSettings,
    /// Directories of the node's targets.
    pub targets: Vec<PathBuf>,
    /// Returns how many bytes of a target's file system Skep keeps free. The parameter is the size
    /// of the file system in bytes.
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

    /// Serves until `SIGTERM` or `SIGINT` arrives. This function handles the signals of the
    /// process, so the caller must call it before the process starts other threads.
    ///
    /// For each target, a separate thread runs `serve`, outside of any event loop. `serve` must
    /// return after [`TargetEvent::Stop`]. The working directory of the process becomes `/`, so
    /// `serve` must not use relative paths. If `serve` returns an error, the node tries again to
    /// serve the target, as long as the node serves another target. When the node serves no target
    /// any more, the service ends with an error. The service manager then shows the failure, and
    /// restarts the service as a new process.
    ///
    /// # Errors
    /// - The error that prevents the start. Its context contains a hint on how to fix the problem.
    /// - The error of the last target that the node served.
    pub fn run(
        mut self,
        serve: impl Fn(TargetStart) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        skep_env::restrict_new_files();
        let directory = std::iter::once(&mut self.settings.directory);
        working_directory::leave(directory.chain(&mut self.targets))?;
        let signals = crate::end_signals()?;
        let serve: Serve = Arc::new(serve);
        skep_env::block_on(async move { self.run_main(signals, serve).await }).map_err(|error| {
            Error::new(ErrorCode::Io, format!("cannot run the event loop: {error}"))
        })?
    }

    async fn run_main(mut self, signals: skep_env::Signals, serve: Serve) -> Result<()> {
        let (node_kind, _, _) = self.kinds();
        let node = NodeDirectory::open(&self.settings.directory, node_kind)?;
        skep_env::sleep(quarantine::start(&self.settings.directory)).await;
        let added = AddedTargets::load(&self.settings.directory, &self.targets)?;
        self.targets.extend(added.paths());
        let (directories, unserved) = self.open_targets(&node)?;
        let listener =
            listen(&self.settings.listen, &self.settings.directory, IfTaken::Move).await?;
        let registration = self.registration(&node, &directories, &listener)?;
        let own_node = registration.server.node;
        let cached = cached_map::read(&node)
            .filter(|map| directories.iter().any(|it| is_known(map, own_node, it)));
        let (membership, registered) =
            until_signal(&signals, Membership::begin(&node.token, registration, cached))
                .await
                .map_err(|error| with_token_remedy(error, &self.settings.directory))?;
        let (reports, inbox) = Mailbox::new(MAILBOX_ITEMS)?;
        let node_uuid = node.directory.identity().node_uuid;
        let given = node.token.addresses.clone();
        let following = skep_env::spawn(followed_token::follow_directory(
            self.settings.directory.clone(),
            node.token.clone(),
        ));
        let watching = skep_env::spawn(skep_exporter::log_pauses());
        let figures = Figures::new(self.registry(&membership));
        let page = metrics_page::start(&self.settings, &listener, &figures).await;
        let serving = Rc::new(ServingNode {
            node: RefCell::new(node),
            waiting: RefCell::new(directories.into_iter().map(Some).collect()),
            running: RefCell::default(),
            unserved: RefCell::new(unserved),
            added: RefCell::new(added),
            target_ended: Notify::default(),
            target_figures: RefCell::default(),
            is_stopping: Cell::new(false),
            links: Links::new(membership.identity(), membership.map_cell()),
            membership,
            map_changed: Rc::default(),
            figures,
            serve,
            reports,
            host: self,
        });
        match registered {
            Some(registered) => serving.start_all(&registered)?,
            None => serving.start_known()?,
        }
        let keeping_map = skep_env::spawn(cached_map::keep(
            serving.host.settings.directory.clone(),
            node_uuid,
            given,
            serving.membership.map_cell(),
            Rc::clone(&serving.map_changed),
        ));
        let keeping = serving.keep_membership();
        let retrying = skep_env::spawn(Rc::clone(&serving).retry_unserved());
        let accepting = skep_env::spawn(connections::accept(listener, Rc::clone(&serving)));
        let result = serving.watch(&signals, &inbox).await;
        drop((keeping, keeping_map, accepting, retrying, following, watching, page));
        serving.membership.leave().await;
        result
    }

    /// Opens the directories of the targets. Returns the opened targets, and the targets that
    /// cannot be opened. Fails if no target can be opened.
    fn open_targets(&self, node: &NodeDirectory) -> Result<(Vec<Directory>, Vec<UnservedTarget>)> {
        let (mut opened, mut failed) = (Vec::new(), Vec::new());
        for path in &self.targets {
            match self.open_target(path, node) {
                Ok(directory) => opened.push(directory),
                Err(error) => failed.push((path, error)),
            }
        }
        if opened.is_empty() && !failed.is_empty() {
            return Err(failed.swap_remove(0).1);
        }
        let unserved = |(path, error): (&PathBuf, Error)| {
            UnservedTarget::new(path, &error, None, std::time::Duration::ZERO)
        };
        Ok((opened, failed.into_iter().map(unserved).collect()))
    }

    /// Returns the description of a target that the node sends to management at its registration.
    fn claim(&self, directory: &Directory) -> TargetClaim {
        let (_, _, kind) = self.kinds();
        TargetClaim {
            target: directory.identity().target,
            uuid: directory.identity().target_uuid,
            kind,
            path: absolute(directory.path()),
        }
    }

    /// Creates the registry of the process, with the metrics that describe the whole node.
    fn registry(&self, membership: &Membership) -> Arc<Registry> {
        let registry = Registry::new();
        let labels = vec![
            ("kind", format!("{:?}", self.kind).to_lowercase()),
            ("name", self.settings.name.clone()),
            ("version", PROGRAM_VERSION.to_owned()),
        ];
        registry.gauge(&skep_metrics::catalog::NODE_INFO, &labels).set(1);
        registry.add(membership.map_cell());
        registry
    }

    fn registration(
        &self,
        node: &NodeDirectory,
        directories: &[Directory],
        listener: &TcpListener,
    ) -> Result<RegisterServer> {
        let management = node.token.addresses.first().map_or("", String::as_str);
        let free_space = |directory: &Directory| capacity::capacity(directory.path(), self.reserve);
        let server = ServerRegistration {
            node: node.directory.identity().node,
            uuid: node.directory.identity().node_uuid,
            kind: self.kind,
            name: self.settings.name.clone(),
            addresses: advertise::of_server(listener, &self.settings.advertise, management)?,
            domain: self.settings.domain(),
            version: PROGRAM_VERSION.into(),
            targets: directories.iter().map(|it| self.claim(it)).collect(),
        };
        let capacities = directories.iter().map(free_space).collect();
        let groups = directories.iter().map(|it| known_group::read(it.path())).collect();
        Ok(RegisterServer { server, capacities, groups, host: crate::host_name() })
    }
}

/// Runs a future until it completes or a signal arrives. A signal results in the error
/// `Interrupted`.
async fn until_signal<T>(
    signals: &skep_env::Signals,
    future: impl Future<Output = Result<T>>,
) -> Result<T> {
    match signals.until_signal(future).await? {
        skep_env::UntilSignal::Ready(result) => result,
        skep_env::UntilSignal::Signal(number) => {
            Err(Error::new(ErrorCode::Interrupted, format!("the process received signal {number}")))
        }
    }
}

/// Adds the remedy to the error of a service whose token management refuses. A service reads only
/// the token in its directory, so a correction of another token file has no effect.
fn with_token_remedy(error: Error, directory: &Path) -> Error {
    if error.code() != ErrorCode::AuthenticationFailed {
        return error;
    }
    let directory = directory.display();
    let what = format!(
        "cannot join the cluster with the token in {directory}: {}; `skep token install \
         --token-file FILE --directory {directory}` replaces the token in this directory",
        error.context()
    );
    Error::new(error.code(), what)
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}
