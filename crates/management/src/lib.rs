//! Management: the authority over the cluster map. Nodes register here and send heartbeats, and
//! management pushes each new map to all nodes.
//!
//! Owns the order, durability and publication of commands. The pure state machine in `skep-cluster`
//! decides the effect of a command. Management is never on the I/O path: I/O continues while
//! management is down.
//!
//! One thread runs everything. `docs/format/management.md` describes the files.

mod authority;
mod closed_token;
mod command_log;
mod copies;
mod directory;
mod handlers;
mod limits;
mod log_level_changes;
pub mod members;
mod meter;
mod reported_waits;
mod settings;

pub use copies::{DirectoryCopy, copy_directory};
pub use directory::initialise;
pub use settings::{DEFAULT_PORT, ManagementSettings};

use authority::Authority;
use command_log::CommandLog;
use meter::Meter;
use skep_cluster::Command;
use skep_env::{TcpListener, TcpStream, UntilSignal};
use skep_exporter::message;
use skep_format::identity::DirectoryKind;
use skep_rpc::server::authenticate;
use skep_rpc::{Admission, Identity, IncomingStream, RefusalLog, Ticket};
use skep_service::listen::{IfTaken, listen};
use skep_service::{NodeDirectory, PROGRAM_VERSION, advertise, metrics_page, notify, tokens};
use skep_store::restored::{self, RESTORED_MARK};
use skep_types::registration::ServerRegistration;
use skep_types::{Error, ErrorCode, MapVersion, NodeKind, Result, TargetId};
use std::rc::Rc;

/// Serves until `SIGTERM` or `SIGINT` arrives. This function handles the signals of the process:
/// call it before the process starts other threads.
///
/// # Errors
/// The error that prevents the start, with a hint how to fix it. Examples are a blank directory, a
/// directory of another kind, a damaged log, and an address in use.
pub fn run(settings: &ManagementSettings) -> Result<()> {
    skep_env::restrict_new_files();
    let signals = skep_service::end_signals()?;
    let settings = settings.clone();
    skep_env::block_on(async move {
        let running = RunningManagement::start(&settings).await?;
        notify::ready();
        let RunningManagement { identity, listens_on, .. } = &running;
        tracing::info!("management serves cluster {} at {listens_on}", identity.cluster);
        let ended = signals.until_signal(running.authority.failed.wait()).await?;
        notify::stopping();
        match ended {
            UntilSignal::Signal(number) => {
                tracing::info!("management ends (signal {number})");
                Ok(())
            }
            UntilSignal::Ready(()) => Err(Error::new(
                ErrorCode::DeviceFailed,
                "management ends, since its disk has failed; a new start reads the disk again",
            )),
        }
    })
    .map_err(|error| Error::new(ErrorCode::Io, format!("cannot run the event loop: {error}")))?
}

/// A running management service.
struct RunningManagement {
    identity: Identity,
    listens_on: String,
    authority: Rc<Authority>,
    _accepting: skep_env::Task<()>,
    _page: Option<skep_env::Task<()>>,
    _ticking: skep_env::Task<()>,
    _following: skep_env::Task<()>,
    _directory: NodeDirectory,
}

impl RunningManagement {
    async fn start(settings: &ManagementSettings) -> Result<Self> {
        let path = &settings.node.directory;
        skep_env::sleep(skep_service::quarantine::start(path)).await;
        let mut directory = NodeDirectory::open(path, DirectoryKind::Management)?;
        let cluster = directory.token.cluster;
        let (command_log, state) = CommandLog::open(path, cluster)?;
        let listener = listen(&settings.node.listen, path, IfTaken::Fail).await?;
        let listens_on = listener.local_address()?.to_string();
        let addresses = addresses(&listener, settings, &directory.token.addresses)?;
        if directory.token.addresses != addresses {
            directory.token.addresses.clone_from(&addresses);
            skep_service::directory::write_token(path, &directory.token)?;
        }
        let authority = Authority::start(state, command_log)?;
        if restored::has(path, RESTORED_MARK)? {
            authority.propose(&Command::ContinueAbove { version: MapVersion::default() }.into())?;
            restored::unmark(path, RESTORED_MARK)?;
            tracing::warn!(
                "{} was put back from a copy: new ids and map versions continue above all that \
                 were assigned after the copy was made",
                path.display()
            );
        }
        let own = *directory.directory.identity();
        let registration = ServerRegistration {
            node: own.node,
            uuid: own.node_uuid,
            kind: NodeKind::Management,
            name: settings.node.name.clone(),
            addresses,
            domain: settings.node.domain(),
            version: PROGRAM_VERSION.into(),
            targets: Vec::new(),
        };
        let node = authority.propose(&Command::RegisterServer(registration).into())?.node;
        directory.directory.assign(node, TargetId::default())?;
        authority.note_alive(node, &[]);
        let identity = Identity {
            cluster,
            secrets: directory.token.secrets.clone(),
            node,
            kind: NodeKind::Management,
        };
        let ticking = {
            let authority = Rc::clone(&authority);
            skep_env::spawn(async move {
                loop {
                    skep_env::sleep(limits::TICK).await;
                    authority.note_alive(node, &[]);
                    authority.tick();
                }
            })
        };
        let meter = Meter::new(&settings.node.name);
        let page = metrics_page::start(&settings.node, &listener, &meter.figures).await;
        let service = Rc::new(Service {
            identity: identity.clone(),
            authority: Rc::clone(&authority),
            meter,
        });
        let accepting = skep_env::spawn(accept(listener, service));
        let following = skep_env::spawn(tokens::follow_directory(
            path.clone(),
            cluster,
            identity.secrets.clone(),
        ));
        Ok(Self {
            identity,
            listens_on,
            authority,
            _accepting: accepting,
            _page: page,
            _ticking: ticking,
            _following: following,
            _directory: directory,
        })
    }
}

/// Returns the addresses of management: `former`, the addresses in the token, unless the settings
/// or the addresses of this host have changed.
fn addresses(
    listener: &TcpListener,
    settings: &ManagementSettings,
    former: &[String],
) -> Result<Vec<String>> {
    let chosen = advertise::of_management(listener, &settings.node.advertise, former);
    let addresses = match chosen {
        Ok(chosen) => chosen.addresses,
        // At boot, the network may come up later than management.
        Err(error) if error.code() == ErrorCode::Configuration => {
            let shown = former.join(", ");
            tracing::warn!(
                "management continues to use the addresses in its token, {shown}: {error}"
            );
            former.to_owned()
        }
        Err(error) => return Err(error),
    };
    if addresses != former {
        tracing::warn!(
            "the addresses of management change from {} to {}: a service or mount that uses the \
             former ones needs the new token, which `skep cluster token --cluster DIRECTORY` \
             prints; `skep token install` gives it to a service, which uses the new addresses from \
             its next start",
            former.join(", "),
            addresses.join(", ")
        );
    }
    Ok(addresses)
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
    // Retry: accept after an error, such as no free file descriptor. Every `limits::TICK`, without
    // limit.
    loop {
        match listener.accept().await {
            Ok(stream) => {
                let Some(ticket) = admission.admit(&stream) else { continue };
                let accepted = Accepted { stream, ticket, refusals: Rc::clone(&refusals) };
                skep_env::spawn(serve(accepted, incarnation, Rc::clone(&service))).detach();
            }
            Err(error) => {
                // Most likely the process is out of file descriptors. Connections that end will
                // free some.
                refusals.note("any host", error);
                skep_env::sleep(limits::TICK).await;
            }
        }
    }
}

/// An accepted connection, with the permission to run its handshake.
struct Accepted {
    stream: TcpStream,
    ticket: Ticket,
    refusals: Rc<RefusalLog>,
}

async fn serve(accepted: Accepted, incarnation: u64, service: Rc<Service>) {
    let Accepted { stream, ticket, refusals } = accepted;
    let Service { identity, authority, meter } = &*service;
    let no_targets = |target: TargetId| match target.raw() {
        0 => Ok(()),
        _ => Err(Error::new(ErrorCode::StaleMap, format!("management serves no target {target}"))),
    };
    let peer = stream.peer();
    let node = match authenticate(&stream, identity, incarnation, no_targets).await {
        Ok(node) => node,
        Err(error) => return refusals.note(peer, error),
    };
    drop(ticket);
    let (mut requests, outbox) = IncomingStream::new(stream, node.kind);
    meter.connections(1);
    loop {
        match requests.next().await {
            Ok(Some(incoming)) if message::is_statistics_request(incoming.header.message) => {
                message::answer(&meter.figures, &incoming, &outbox);
            }
            Ok(Some(incoming))
                if closed_token::must_prove_again(&identity.secrets, node, &incoming) =>
            {
                break;
            }
            Ok(Some(incoming)) => meter.count(incoming, &outbox, |incoming| {
                match closed_token::check(authority, node, &incoming) {
                    Ok(()) => handlers::dispatch(authority, incoming, &outbox),
                    Err(error) => {
                        refusals.note(&peer, &error);
                        outbox.refuse(&incoming.header, &error);
                    }
                }
            }),
            Ok(None) => break,
            Err(error) => {
                tracing::debug!("management ended the connection from {peer}: {error}");
                break;
            }
        }
    }
    meter.connections(-1);
    outbox.close();
}

#[cfg(test)]
mod tests;
