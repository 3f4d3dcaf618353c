//! Management: the authority over the cluster map. Nodes register with management and send
//! heartbeats to it, and management pushes each new map to all nodes.
//!
//! This crate is responsible for the publication of maps. The pure state machine in `skep-cluster`
//! decides the effect of a command. The replicated log in `skep-consensus` orders the commands and
//! makes them durable, on one member or on several members. Management is never on the I/O path:
//! I/O continues while management is down.
//!
//! One thread runs all tasks of management. `docs/format/consensus.md` describes the files.

mod authority;
mod closed_token;
mod copies;
mod directory;
mod follower;
mod former_log;
mod handlers;
mod last_backup;
mod leader_log;
mod leadership;
mod limits;
mod log_level_changes;
mod loss_reports;
mod machine;
mod map_log;
pub mod members;
mod meter;
mod reported_waits;
mod settings;
mod token_file;

pub use copies::{DirectoryCopy, Recovery, copy_directory, recover};
pub use directory::{initialise, join};
pub use last_backup::record_backup;
pub use settings::{DEFAULT_PORT, ManagementSettings};

use authority::Authority;
use directory::{make_ready, member_settings, registration};
use follower::Refusal;
use last_backup::BackupFigures;
use machine::Machine;
use members::MemberConnections;
use meter::Meter;
use skep_cluster::ClusterState;
use skep_consensus::Member;
use skep_env::{TcpListener, TcpStream, UntilSignal};
use skep_exporter::message;
use skep_format::identity::DirectoryKind;
use skep_rpc::server::authenticate;
use skep_rpc::{Admission, Identity, Incoming, IncomingStream, Outbox, Peer, RefusalLog, Ticket};
use skep_service::listen::{IfTaken, listen};
use skep_service::{NodeDirectory, advertise, followed_token, metrics_page, notify};
use skep_types::{Error, ErrorCode, NodeKind, Result, TargetId};
use skep_wire::Request;
use skep_wire::consensus::AskMember;
use skep_wire::management::Heartbeat;
use skep_wire::traces::ReportTraces;
use std::rc::Rc;
use std::sync::Arc;
use token_file::TokenFile;

/// Serves until `SIGTERM` or `SIGINT` arrives. This function handles the signals of the process, so
/// the caller must call it before the process starts other threads.
///
/// # Errors
/// The error that prevents the start, with a hint on how to fix the problem. Examples are a blank
/// directory, a directory of another kind, a damaged log, and an address in use.
pub fn run(settings: &ManagementSettings) -> Result<()> {
    skep_env::restrict_new_files();
    let mut settings = settings.clone();
    skep_service::working_directory::leave([&mut settings.node.directory])?;
    let signals = skep_service::end_signals()?;
    skep_env::block_on(async move {
        let running = RunningManagement::start(&settings).await?;
        notify::ready();
        let RunningManagement { identity, listens_on, .. } = &running;
        tracing::info!("management serves cluster {} at {listens_on}", identity.cluster);
        let ended = signals.until_signal(running.until_ended()).await?;
        notify::stopping();
        match ended {
            UntilSignal::Signal(number) => {
                tracing::info!("management stops (signal {number})");
                Ok(())
            }
            UntilSignal::Ready(ended) => ended,
        }
    })
    .map_err(|error| Error::new(ErrorCode::Io, format!("cannot run the event loop: {error}")))?
}

/// A running management service.
struct RunningManagement {
    identity: Identity,
    listens_on: String,
    authority: Rc<Authority>,
    refusal: Rc<Refusal>,
    _tasks: Vec<skep_env::Task<()>>,
    _page: Option<skep_env::Task<()>>,
    _directory: NodeDirectory,
}

impl RunningManagement {
    /// Starts management. If this member is the only member, it serves nodes when this function
    /// returns.
    async fn start(settings: &ManagementSettings) -> Result<Self> {
        let path = &settings.node.directory;
        skep_env::sleep(skep_service::quarantine::start(path)).await;
        let mut directory = NodeDirectory::open(path, DirectoryKind::Management)?;
        let cluster = directory.token.cluster;
        let listener = listen(&settings.node.listen, path, IfTaken::Fail).await?;
        let listens_on = listener.local_address()?.to_string();
        let addresses = addresses(&listener, settings, &directory)?;
        let node = make_ready(&mut directory.directory, settings, &addresses)?;
        let identity = Identity {
            cluster,
            secrets: directory.token.secrets.clone(),
            node,
            kind: NodeKind::Management,
        };
        let machine = Machine::new(ClusterState::new(cluster));
        let connections = MemberConnections::new(identity.clone());
        let member = member_settings(path, cluster, node);
        let member = Member::open(&member, machine, connections).await?;
        let authority = Authority::new(Rc::new(member), node);
        let uuid = directory.directory.identity().node_uuid;
        let own = registration(settings, (node, uuid), &addresses);
        let token_file = TokenFile::new(path.clone(), &authority, addresses);
        token_file.write(&mut directory)?;
        let meter = Meter::new(&settings.node.name);
        let backups = BackupFigures { directory: path.clone() };
        meter.figures.registry().add(Arc::new(backups));
        let page = metrics_page::start(&settings.node, &listener, &meter.figures).await;
        let metrics = meter.leadership.clone();
        let service = Rc::new(Service {
            identity: identity.clone(),
            authority: Rc::clone(&authority),
            meter,
        });
        let token = directory.token.clone();
        let refusal = Rc::<Refusal>::default();
        let tasks = vec![
            skep_env::spawn(accept(listener, service)),
            skep_env::spawn(leadership::keep(Rc::clone(&authority), own.clone(), metrics)),
            skep_env::spawn(follower::keep(Rc::clone(&authority), token, own, Rc::clone(&refusal))),
            skep_env::spawn(tick(Rc::clone(&authority))),
            skep_env::spawn(skep_exporter::log_pauses()),
            skep_env::spawn(token_file.follow(Rc::clone(&authority), directory.token.clone())),
            skep_env::spawn(followed_token::follow_directory_of_management(
                path.clone(),
                cluster,
                identity.secrets.clone(),
            )),
        ];
        let running = Self {
            identity,
            listens_on,
            authority,
            refusal,
            _tasks: tasks,
            _page: page,
            _directory: directory,
        };
        running.until_served().await?;
        Ok(running)
    }

    /// Waits until this member fails, or until this member was removed from management. Returns the
    /// error of a failure.
    async fn until_ended(&self) -> Result<()> {
        let failed = async { Err(self.authority.member().failure().await) };
        let ended = futures_lite::future::or(failed, self.refusal.until_refused()).await;
        ended.map_err(|error| error.within("management stops"))
    }

    /// Waits until this member serves nodes, if this member is the only member. Several members can
    /// elect a leader only after a majority of them has started, so the function does not wait if
    /// there are several members.
    async fn until_served(&self) -> Result<()> {
        let Self { authority, .. } = self;
        let served = async {
            while authority.member().is_only_voter() && authority.check_serving().is_err() {
                let changed = authority.changed.wait();
                skep_env::timeout(limits::TICK, changed).await;
            }
            Ok(())
        };
        let failed = async { Err(authority.member().failure().await) };
        futures_lite::future::or(served, failed).await
    }
}

impl Drop for RunningManagement {
    fn drop(&mut self) {
        // The tasks of the log continue without an owner, so end the member explicitly. This step
        // also matters in tests, where the event loop continues.
        let member = Rc::clone(self.authority.member());
        skep_env::spawn(async move { member.end().await }).detach();
    }
}

/// Calls [`Authority::tick`] at intervals, until the process ends.
async fn tick(authority: Rc<Authority>) {
    loop {
        skep_env::sleep(limits::TICK).await;
        authority.tick().await;
    }
}

/// Returns the addresses of this management node. These addresses are the addresses in the token,
/// unless the settings or the addresses of this host have changed. The token may also contain
/// addresses of other members.
fn addresses(
    listener: &TcpListener,
    settings: &ManagementSettings,
    directory: &NodeDirectory,
) -> Result<Vec<String>> {
    let former = &directory.token.addresses;
    let chosen = advertise::of_management(listener, &settings.node.advertise, former);
    match chosen {
        Ok(chosen) => Ok(chosen.addresses),
        // While a host boots, management may start before the network of the host is up. Management
        // then continues to use its previous addresses.
        Err(error) if error.code() == ErrorCode::Configuration => {
            let former = directory::registered_addresses(&directory.directory);
            let former = former.unwrap_or_else(|| directory.token.addresses.clone());
            tracing::warn!(
                "management cannot use its new addresses, and continues to use its previous \
                 addresses, {}: {error}",
                former.join(", ")
            );
            Ok(former)
        }
        Err(error) => Err(error),
    }
}

/// The state that all connections use.
struct Service {
    identity: Identity,
    authority: Rc<Authority>,
    meter: Rc<Meter>,
}

async fn accept(listener: TcpListener, service: Rc<Service>) {
    let incarnation = skep_env::random_u64();
    let refusals = RefusalLog::new("management");
    let admission = Admission::new(Rc::clone(&refusals));
    // Retry: after a failed accept, for example because no file descriptor is free, the thread
    // accepts again after `limits::TICK`, without limit.
    loop {
        match listener.accept().await {
            Ok(stream) => {
                let Some(ticket) = admission.admit(&stream) else { continue };
                let accepted = Accepted { stream, ticket, refusals: Rc::clone(&refusals) };
                skep_env::spawn(serve(accepted, incarnation, Rc::clone(&service))).detach();
            }
            Err(error) => {
                // The most probable reason is that the process has no free file descriptor. The end
                // of each connection frees a file descriptor, so accept again after a pause.
                refusals.note("an unknown address", error);
                skep_env::sleep(limits::TICK).await;
            }
        }
    }
}

/// An accepted connection, with the permission to begin its handshake.
struct Accepted {
    stream: TcpStream,
    ticket: Ticket,
    refusals: Rc<RefusalLog>,
}

async fn serve(accepted: Accepted, incarnation: u64, service: Rc<Service>) {
    let Accepted { stream, ticket, refusals } = accepted;
    let Service { identity, authority, meter } = &*service;
    let no_targets = |target: TargetId| match target.raw() {
        0 => ticket.check_connections(),
        _ => Err(Error::new(
            ErrorCode::StaleMap,
            format!("cannot connect to target {target} at management: management has no targets"),
        )),
    };
    let peer = stream.peer();
    let node = match authenticate(&stream, identity, incarnation, no_targets).await {
        Ok(node) => node,
        Err(error) => return refusals.note_handshake(peer, &error),
    };
    drop(ticket);
    let (mut requests, outbox) = IncomingStream::new(stream, node.kind);
    meter.connections(1);
    loop {
        match requests.next().await {
            // End the connection. The peer opens a new connection after the restart of this member.
            Ok(Some(_)) if authority.member().has_ended() => break,
            Ok(Some(incoming)) if message::is_figures_request(incoming.header.message) => {
                message::answer(&meter.figures, &incoming, &outbox);
            }
            Ok(Some(incoming))
                if closed_token::must_prove_again(&identity.secrets, node, &incoming) =>
            {
                break;
            }
            Ok(Some(incoming)) if incoming.header.message == ReportTraces::ID => {
                message::answer_report(&meter.figures, node.node, &incoming, &outbox);
            }
            Ok(Some(incoming)) => {
                let handled = meter.count(incoming, &outbox, async |incoming| {
                    if let Err(error) = check(authority, node, &incoming) {
                        if error.code() == ErrorCode::AuthenticationFailed {
                            refusals.note(&peer, &error);
                        }
                        return outbox.refuse(&incoming.header, &error);
                    }
                    handle(authority, incoming, &outbox).await;
                });
                handled.await;
            }
            Ok(None) => break,
            Err(error) => {
                tracing::debug!("management ended the connection from {peer}: {error:#}");
                break;
            }
        }
    }
    meter.connections(-1);
    outbox.close();
}

/// Checks that this member may execute a request of a node: the member is the leader, or every
/// member handles the request.
fn check(authority: &Authority, peer: Peer, incoming: &Incoming) -> Result<()> {
    match incoming.header.message {
        AskMember::ID if authority.has_removed(peer.node) => {
            let what = format!(
                "cannot execute the request: node {} was removed from management",
                peer.node
            );
            return Err(Error::new(ErrorCode::NotPermitted, what));
        }
        message if handlers::is_for_each_member(message) => return Ok(()),
        Heartbeat::ID => authority.check_leader()?,
        _ => authority.check_serving()?,
    }
    closed_token::check(authority, peer, incoming)
}

async fn handle(authority: &Rc<Authority>, incoming: Incoming, outbox: &Rc<Outbox>) {
    match incoming.header.message {
        AskMember::ID => {
            members::answer(authority.member(), authority.own(), &incoming, outbox).await;
        }
        _ => handlers::dispatch(authority, incoming, outbox).await,
    }
}

#[cfg(test)]
mod tests;
