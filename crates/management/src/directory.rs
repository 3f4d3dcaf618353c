//! Management's directory: identity, join token, command log and snapshot.

use crate::command_log::{CommandLog, LOG_FILE, SNAPSHOT_FILE};
use crate::settings::ManagementSettings;
use skep_cluster::ClusterState;
use skep_format::identity::DirectoryKind;
use skep_rpc::{JoinToken, Secret};
use skep_service::NodeDirectory;
use skep_service::directory::{TOKEN_FILE, write_token};
use skep_service::listen::{ADDRESS_FILE, IfTaken, advertised, listen};
use skep_store::identity::IDENTITY_FILE;
use skep_types::{ClusterId, Result};

/// Makes a blank directory that of a new cluster. Gives the token with which nodes join.
///
/// # Errors
/// `Configuration` if the directory isn't blank, `Io` if the address can't be listened on; the
/// context says what to do.
pub async fn initialise(settings: &ManagementSettings) -> Result<JoinToken> {
    let path = &settings.node.directory;
    let mut token = JoinToken {
        cluster: ClusterId::new(skep_env::random_bytes()),
        secret: Secret::generate(),
        addresses: vec!["unknown:0".into()],
    };
    let directory = NodeDirectory::initialise(path, DirectoryKind::Management, token.clone())?;
    let filled = fill(settings, &mut token).await;
    if filled.is_err() {
        // A directory that is half made would be refused at the next attempt. What can't be removed
        // is named then.
        let files = [IDENTITY_FILE, TOKEN_FILE, LOG_FILE, SNAPSHOT_FILE, ADDRESS_FILE];
        for file in files {
            let _ = std::fs::remove_file(path.join(file));
        }
    }
    drop(directory);
    filled.map(|()| token)
}

async fn fill(settings: &ManagementSettings, token: &mut JoinToken) -> Result<()> {
    let path = &settings.node.directory;
    CommandLog::create(path, &ClusterState::new(token.cluster))?;
    // Listens for a moment: the address is part of the token, and stays the same from now on.
    let listener = listen(&settings.node.listen, path, IfTaken::Fail).await?;
    token.addresses = advertised(&listener, &settings.node.advertise, None)?;
    write_token(path, token)
}
