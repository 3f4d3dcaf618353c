//! The storage service: starts a thread for each target, accepts and authenticates connections and
//! hands them to the target that they name, and keeps the node a member of the cluster.
//!
//! With management down, a service whose targets have their ids serves at once and joins when it
//! can.

use crate::chunk_store::SpaceGauge;
use crate::directories;
use crate::limits::{CONNECTIONS_SHARE, MIN_OPEN_FILES};
use crate::settings::StorageSettings;
use crate::target_thread::{Order, TargetThread};
use skep_env::local::Notify;
use skep_env::{TcpListener, TcpStream};
use skep_rpc::membership::{Change, Membership, Registration};
use skep_rpc::server::authenticate;
use skep_rpc::{Identity, Peer};
use skep_service::listen::{IfTaken, advertised, listen};
use skep_service::{NodeDirectory, PROGRAM_VERSION, notify};
use skep_store::identity::Directory;
use skep_types::{Error, ErrorCode, NodeKind, Result, TargetId, TargetKind};
use skep_wire::management::{RegisterServer, Registered, TargetRegistration};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Pause when no connection can be accepted: some will end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until the process is asked to end. Takes over its signals: call it before other threads
/// are started.
///
/// # Errors
/// Whatever keeps it from starting or serving on, with what to do: a blank or foreign directory, an
/// address in use, a registration that management refuses.
pub fn run(settings: &StorageSettings) -> Result<()> {
    let signals = skep_service::end_signals()?;
    let settings = settings.clone();
    skep_env::block_on(async move {
        let service = Service::start(&settings).await?;
        let ending = service.clone();
        let _waiting = skep_env::spawn(async move {
            let reason = match signals.next().await {
                Ok(number) => format!("signal {number}"),
                Err(error) => format!("signals can't be read: {error}"),
            };
            ending.end(Ok(reason));
        });
        service.until_end().await
    })
    .map_err(|error| Error::new(ErrorCode::Io, format!("event loop: {error}")))?
}

/// The service while it runs.
#[derive(Clone)]
struct Service(Rc<Inner>);

struct Inner {
    threads: RefCell<BTreeMap<TargetId, TargetThread>>,
    /// Who we are, as far as it is known.
    identity: RefCell<Identity>,
    membership: RefCell<Option<Rc<Membership>>>,
    node: RefCell<NodeDirectory>,
    /// Why the service is to end.
    end: RefCell<Option<Result<String>>>,
    ended: Notify,
    /// Differs after each start, for the handshake.
    incarnation: u64,
}

impl Service {
    async fn start(settings: &StorageSettings) -> Result<Self> {
        let (node, targets) = directories::open(settings)?;
        let listener = listen(&settings.node.listen, node.directory.path(), IfTaken::Move).await?;
        let towards = node.token.addresses.first().map(String::as_str);
        let addresses = advertised(&listener, &settings.node.advertise, towards)?;
        let registration = registration(settings, &node, &targets, addresses)?;
        let identity = Identity {
            cluster: node.token.cluster,
            secret: node.token.secret.clone(),
            node: node.directory.identity().node,
            kind: NodeKind::Storage,
        };
        let service = Self(Rc::new(Inner {
            threads: RefCell::default(),
            identity: RefCell::new(identity),
            membership: RefCell::default(),
            node: RefCell::new(node),
            end: RefCell::default(),
            ended: Notify::default(),
            incarnation: skep_env::random_u64(),
        }));
        let gauges =
            targets.iter().map(|it| SpaceGauge::new(it.path())).collect::<Result<Vec<_>>>()?;
        let is_known = targets.iter().all(|target| target.identity().target.raw() != 0);
        if is_known {
            service.start_threads(targets).await?;
            skep_env::spawn(service.clone().accept(listener)).detach();
            notify::ready();
            let joining = service.clone();
            skep_env::spawn(async move {
                if let Err(error) = joining.join(registration, Vec::new(), gauges).await {
                    joining.end(Err(error));
                }
            })
            .detach();
        } else {
            // The ids come from management, so it has to be there.
            service.join(registration, targets, gauges).await?;
            skep_env::spawn(service.clone().accept(listener)).detach();
            notify::ready();
        }
        Ok(service)
    }

    async fn start_threads(&self, targets: Vec<Directory>) -> Result<()> {
        let descriptors = skep_env::raise_file_limit() / CONNECTIONS_SHARE;
        let open_files = (descriptors as usize / targets.len().max(1)).max(MIN_OPEN_FILES);
        for directory in targets {
            let thread = TargetThread::start(directory, open_files).await?;
            self.0.threads.borrow_mut().insert(thread.target, thread);
        }
        Ok(())
    }

    /// Joins the cluster and stays in it; returns after the registration. `waiting` are the targets
    /// whose threads aren't started yet, since they had no ids: all or none.
    async fn join(
        &self,
        registration: RegisterServer,
        waiting: Vec<Directory>,
        gauges: Vec<SpaceGauge>,
    ) -> Result<()> {
        let known: Vec<_> = registration.targets.iter().map(|target| target.target).collect();
        let token = self.0.node.borrow().token.clone();
        let registration = Registration::Server(registration);
        let (membership, registered) = Membership::join(&token, registration, None).await?;
        let ids = registered.targets.clone();
        if ids.len() != known.len() || (waiting.is_empty() && ids != known) {
            return Err(Error::new(
                ErrorCode::Protocol,
                format!("management gave target ids {ids:?} where they are {known:?}"),
            ));
        }
        self.0.node.borrow_mut().directory.assign(registered.node, TargetId::default())?;
        self.start_threads(with_ids(waiting, &registered)?).await?;
        let identity = membership.identity();
        for thread in self.0.threads.borrow().values() {
            thread.tell(Order::Joined(identity.clone(), membership.map_cell()))?;
        }
        let names: Vec<_> = ids.iter().map(TargetId::to_string).collect();
        tracing::info!("storage node {} serves {}", identity.node, names.join(", "));
        *self.0.identity.borrow_mut() = identity;
        self.0.membership.replace(Some(Rc::clone(&membership)));
        let capacities = move || {
            let found = gauges.iter().map(SpaceGauge::capacity);
            ids.iter().copied().zip(found).collect()
        };
        let on_change = |change: Change| {
            if let Change::Rejoined(registered) = change {
                tracing::info!("registered again as node {}", registered.node);
            }
        };
        skep_env::spawn(membership.keep(capacities, on_change)).detach();
        Ok(())
    }

    async fn accept(self, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok(stream) => skep_env::spawn(self.clone().welcome(stream)).detach(),
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    skep_env::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Authenticates a connection and hands it to its target.
    async fn welcome(self, stream: TcpStream) {
        let from = stream.peer();
        let identity = self.0.identity.borrow().clone();
        let is_served = |target: TargetId| self.check_target(target);
        let handed_over =
            match authenticate(&stream, &identity, self.0.incarnation, is_served).await {
                Ok(peer) => self.hand_over(stream, peer),
                Err(error) => Err(error),
            };
        if let Err(error) = handed_over {
            tracing::warn!("connection from {from} refused: {error}");
        }
    }

    fn check_target(&self, target: TargetId) -> Result<()> {
        let threads = self.0.threads.borrow();
        if threads.contains_key(&target) {
            return Ok(());
        }
        let served: Vec<_> = threads.keys().map(TargetId::to_string).collect();
        Err(Error::new(
            ErrorCode::StaleMap,
            format!("target {target} is not served here; these are: {}", served.join(", ")),
        ))
    }

    fn hand_over(&self, stream: TcpStream, peer: Peer) -> Result<()> {
        let threads = self.0.threads.borrow();
        let Some(thread) = threads.get(&peer.target) else {
            return self.check_target(peer.target);
        };
        thread.tell(Order::Serve(stream.into_fd()?, peer))
    }

    fn end(&self, reason: Result<String>) {
        self.0.end.borrow_mut().get_or_insert(reason);
        self.0.ended.notify();
    }

    async fn until_end(&self) -> Result<()> {
        let reason = loop {
            let ended = self.0.ended.wait();
            if let Some(reason) = self.0.end.take() {
                break reason;
            }
            ended.await;
        };
        notify::stopping();
        match &reason {
            Ok(why) => tracing::info!("storage ends ({why})"),
            Err(error) => tracing::error!("storage ends: {error}"),
        }
        let membership = self.0.membership.borrow().clone();
        if let Some(membership) = membership {
            membership.leave().await;
        }
        let mut result = reason.map(|_| ());
        let threads = self.0.threads.take();
        for thread in threads.values() {
            result = result.and(thread.tell(Order::End));
        }
        for thread in threads.into_values() {
            result = result.and(thread.join());
        }
        result
    }
}

/// Keeps the ids that management gave.
fn with_ids(mut targets: Vec<Directory>, registered: &Registered) -> Result<Vec<Directory>> {
    for (target, id) in targets.iter_mut().zip(&registered.targets) {
        target.assign(registered.node, *id)?;
    }
    Ok(targets)
}

fn registration(
    settings: &StorageSettings,
    node: &NodeDirectory,
    targets: &[Directory],
    addresses: Vec<String>,
) -> Result<RegisterServer> {
    let identity = node.directory.identity();
    let targets = targets.iter().map(|target| {
        Ok(TargetRegistration {
            target: target.identity().target,
            uuid: target.identity().target_uuid,
            kind: TargetKind::Storage,
            path: target.path().display().to_string(),
            capacity: SpaceGauge::new(target.path())?.capacity(),
        })
    });
    Ok(RegisterServer {
        node: identity.node,
        uuid: identity.node_uuid,
        kind: NodeKind::Storage,
        name: settings.node.name.clone(),
        addresses,
        version: PROGRAM_VERSION.into(),
        targets: targets.collect::<Result<_>>()?,
    })
}
