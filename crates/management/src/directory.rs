//! Management's directory: its identity, its join token, and the files of its member of the
//! replicated log.
//!
//! This module owns the preparation of a directory before the start of its member. The module
//! creates the first member of a new cluster or an additional member, converts the files of an
//! older version of the program, and prepares a directory that was restored from a backup.
//! `skep_consensus` and `former_log` define the formats of the files.
//!
//! # A backup continues as another member
//! The votes in a backup are old, and other members may still run. So the first start of a backup
//! gives its node a new uuid and id, and makes the node the only member of a new log. The state
//! then no longer contains the nodes of the other members, and the node refuses their messages to
//! its previous id.

use crate::former_log;
use crate::machine::Machine;
use crate::settings::ManagementSettings;
use skep_cluster::{ClusterState, Command};
use skep_consensus::{Member, MemberSettings, StoredState, has_log, has_snapshot, read_state};
use skep_format::identity::DirectoryKind;
use skep_rpc::{JoinToken, Management, Secrets};
use skep_service::advertise::{self, Advertised};
use skep_service::directory::{TOKEN_FILE, write_token};
use skep_service::listen::{ADDRESS_FILE, IfTaken, listen};
use skep_service::{NodeDirectory, PROGRAM_VERSION};
use skep_store::identity::{Directory, IDENTITY_FILE};
use skep_store::restored::{self, RESTORED_MARK};
use skep_types::registration::ServerRegistration;
use skep_types::{ClusterId, Error, ErrorCode, MapVersion, NodeId, NodeKind, Result, TargetId};
use skep_wire::management::RegisterServer;
use std::path::Path;
use std::time::Duration;

/// Longest wait of a new member for the reply of the cluster that it joins.
const JOIN_PATIENCE: Duration = Duration::from_secs(30);

/// Initialises a blank directory for a new cluster. Returns the token that nodes need to join the
/// cluster, and the addresses of management.
///
/// `given` is a token that existed before the cluster. Hosts that start at the same time as
/// management can already have such a token. The cluster gets its id and its secret from `given`.
/// `None` means that both are random. In both cases the addresses in the returned token come from
/// `settings`.
///
/// # Errors
/// - `Exists` if the directory is initialised already.
/// - `Configuration` if the directory is not blank.
/// - `Configuration` if the settings must name the address of management. This is the case if this
///   host has no address for other hosts, or has several addresses and none of them is on the
///   default route.
/// - `Io` if management cannot listen on the configured address.
/// - Errors of the file system.
///
/// The context of an error contains a hint on how to fix the problem.
pub async fn initialise(
    settings: &ManagementSettings,
    given: Option<JoinToken>,
) -> Result<(JoinToken, Advertised)> {
    let token = given.unwrap_or_else(|| JoinToken {
        cluster: ClusterId::new(skep_env::random_bytes()),
        secrets: Secrets::generate(),
        addresses: vec!["unknown:0".into()],
    });
    fill(settings, token, async |directory, token, own| {
        let state = ClusterState::new(token.cluster);
        token.addresses = own.to_vec();
        write_token(directory.directory.path(), token)?;
        found(&mut directory.directory, settings, own, state).map(drop)
    })
    .await
}

/// Initialises a blank directory for an additional management node of the cluster to which `token`
/// belongs, and registers the node. The node becomes a member by `skep management add`. Returns the
/// id of the node.
///
/// # Errors
/// - The errors of [`initialise`].
/// - `Configuration` if another management node has the name of this node.
/// - The error of management if management refuses the registration for another reason or does not
///   reply.
pub async fn join(settings: &ManagementSettings, token: JoinToken) -> Result<NodeId> {
    let path = settings.node.directory.clone();
    fill(settings, token, async |directory, token, own| {
        let uuid = directory.directory.identity().node_uuid;
        let server = registration(settings, (NodeId::default(), uuid), own);
        let (capacities, groups) = (Vec::new(), Vec::new());
        let host = skep_service::host_name();
        let request = RegisterServer { server, capacities, groups, host };
        let management = Management::new(token, NodeKind::Management);
        let registered = management.call(&request, Some(JOIN_PATIENCE)).await;
        let registered = registered.map_err(refused_registration)?;
        let cluster = token.cluster;
        Member::<Machine>::create(&member_settings(&path, cluster, registered.node))?;
        let others = std::mem::take(&mut token.addresses);
        token.addresses = own.iter().cloned().chain(others).collect();
        write_token(&path, token)?;
        directory.directory.assign(registered.node, TargetId::default())
    })
    .await?;
    let identity = skep_store::identity::read_identity(&settings.node.directory)?;
    Ok(identity.map_or(NodeId::default(), |identity| identity.node))
}

/// Returns the error for a registration that management has refused. Management replies `Exists` if
/// another node has the name of this node. From an initialisation, this code would mean that the
/// directory is initialised, and scripts would continue.
fn refused_registration(error: Error) -> Error {
    match error.code() {
        ErrorCode::Exists => Error::new(ErrorCode::Configuration, error.context()),
        _ => error,
    }
}

/// Initialises a blank directory, and calls the parameter `fill` with the directory, the token and
/// the addresses of this host. If a step fails, removes the files that this function has created.
async fn fill(
    settings: &ManagementSettings,
    mut token: JoinToken,
    fill: impl AsyncFnOnce(&mut NodeDirectory, &mut JoinToken, &[String]) -> Result<()>,
) -> Result<(JoinToken, Advertised)> {
    let path = &settings.node.directory;
    let mut directory = NodeDirectory::initialise(path, DirectoryKind::Management, token.clone())?;
    let filled = async {
        // Listen for a moment to choose the address. The address becomes part of the token, so it
        // must not change after this step.
        let listener = listen(&settings.node.listen, path, IfTaken::Fail).await?;
        let advertised = advertise::of_management(&listener, &settings.node.advertise, &[])?;
        fill(&mut directory, &mut token, &advertised.addresses).await?;
        Ok(advertised)
    };
    let filled = filled.await;
    if filled.is_err() {
        // Ignores an error of a removal. The next attempt to initialise the directory then refuses
        // the half-initialised directory, and its error names the file.
        let files = [IDENTITY_FILE, TOKEN_FILE, "raft-log", "raft-snapshot", ADDRESS_FILE];
        for file in files {
            let _ = std::fs::remove_file(path.join(file));
        }
    }
    drop(directory);
    filled.map(|advertised| (token, advertised))
}

/// Returns the registration of a management node with this id and uuid.
pub(crate) fn registration(
    settings: &ManagementSettings,
    (node, uuid): (NodeId, u128),
    addresses: &[String],
) -> ServerRegistration {
    ServerRegistration {
        node,
        uuid,
        kind: NodeKind::Management,
        name: settings.node.name.clone(),
        addresses: addresses.to_vec(),
        domain: settings.node.domain(),
        version: PROGRAM_VERSION.into(),
        targets: Vec::new(),
    }
}

/// Returns the settings of the member that runs on the node `node`.
pub(crate) fn member_settings(path: &Path, cluster: ClusterId, node: NodeId) -> MemberSettings {
    MemberSettings { directory: path.to_owned(), cluster, id: u64::from(node.raw()) }
}

/// Creates the files of the only member of a new log, whose first state is `state`. Registers the
/// node of the directory in the state.
fn found(
    directory: &mut Directory,
    settings: &ManagementSettings,
    addresses: &[String],
    mut state: ClusterState,
) -> Result<NodeId> {
    let identity = *directory.identity();
    let own = registration(settings, (identity.node, identity.node_uuid), addresses);
    let node = state.apply(&Command::RegisterServer(own))?.node;
    let member = member_settings(directory.path(), identity.cluster, node);
    Member::found(&member, addresses.to_vec(), (0, &Machine::new(state)))?;
    directory.assign(node, TargetId::default())?;
    Ok(node)
}

/// Prepares the directory of management for its member: converts the files of an older version, and
/// continues a backup as another member. `addresses` are the addresses of this host. Returns the id
/// of the member.
///
/// # Errors
/// - `Corrupt` with the file if a file is damaged.
/// - `Configuration` if the directory lacks the files of its member.
/// - Errors of the file system.
pub(crate) fn make_ready(
    directory: &mut Directory,
    settings: &ManagementSettings,
    addresses: &[String],
) -> Result<NodeId> {
    let path = directory.path().to_owned();
    let cluster = directory.identity().cluster;
    if former_log::exists(&path) {
        if !has_log(&path) {
            let state = former_log::read(&path, cluster)?;
            found(directory, settings, addresses, state)?;
            tracing::info!(
                "{}: management has converted the command log of an earlier version of Skep",
                path.display()
            );
        }
        former_log::remove(&path)?;
    }
    if restored::has(&path, RESTORED_MARK)? {
        continue_copy(directory, settings, addresses)?;
        restored::unmark(&path, RESTORED_MARK)?;
        tracing::info!(
            "{} was restored from a backup, or recovered: new ids and map versions begin above all \
             ids and versions that may have been assigned since the backup, and this node is the \
             only management node",
            path.display()
        );
    }
    let node = directory.identity().node;
    if !has_log(&path) || node.raw() == 0 {
        let what = format!(
            "cannot start management: {} has lost the files of its member; empty this directory, \
             remove node {node} with `skep management remove {node}` on another management node, \
             and initialise this directory again with --init --join",
            path.display()
        );
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    Ok(node)
}

/// Makes the member of a backup the only member of a new log, under a new id. If a crash interrupts
/// this function, the next start calls it again, because the function removes the mark `restored`
/// last.
fn continue_copy(
    directory: &mut Directory,
    settings: &ManagementSettings,
    addresses: &[String],
) -> Result<()> {
    let path = directory.path().to_owned();
    let cluster = directory.identity().cluster;
    let mut state = read(&path, cluster)?.machine.state;
    state.apply(&Command::ContinueAbove { version: MapVersion::default() })?;
    let former = state.map().nodes.iter().filter(|node| node.kind == NodeKind::Management);
    for node in former.map(|node| node.id).collect::<Vec<_>>() {
        state.apply(&Command::RemoveServer { node })?;
    }
    // The new snapshot contains the complete state, so the log of the backup is not needed any
    // more.
    let identity = *directory.identity();
    let own = registration(settings, (NodeId::default(), skep_env::random_u128()), addresses);
    let uuid = own.uuid;
    let node = state.apply(&Command::RegisterServer(own))?.node;
    let member = member_settings(&path, cluster, node);
    skep_consensus::replace_member(&member, addresses.to_vec(), &Machine::new(state))?;
    tracing::info!(
        "this management node had the id {} before, and has the new id {node}",
        identity.node
    );
    directory.become_node(uuid, node)
}

/// Returns the registered addresses of the node whose directory is `directory`. `None` means that
/// the directory has no readable state.
pub(crate) fn registered_addresses(directory: &Directory) -> Option<Vec<String>> {
    let identity = directory.identity();
    let state = read(directory.path(), identity.cluster).ok()?.machine.state;
    state.map().node(identity.node).map(|node| node.addresses.clone())
}

/// Reads the state in a directory of management. The function changes nothing, so management may
/// run at the same time.
///
/// # Errors
/// - `Corrupt` with the file if a file is damaged.
/// - `Configuration` if the directory has no state.
/// - Errors of the file system.
pub(crate) fn read(path: &Path, cluster: ClusterId) -> Result<StoredState<Machine>> {
    let empty = Machine::new(ClusterState::new(cluster));
    if !has_log(path) && !has_snapshot(path) {
        let what = format!(
            "cannot read the state of management: {} has no such state; restore this directory \
             from a backup, or name the directory of another management node",
            path.display()
        );
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    read_state(path, cluster, empty)
}
