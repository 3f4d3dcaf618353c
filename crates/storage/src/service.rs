//! The storage service. The service runs storage targets with `skep_service::host`, which all
//! services share.

use crate::chunk_store::reserve;
use crate::event_loops::EventLoops;
use crate::limits::{CONNECTIONS_SHARE, MIN_OPEN_FILES};
use crate::settings::StorageSettings;
use crate::target_thread;
use skep_rpc::JoinToken;
use skep_service::{Host, Initialised};
use skep_types::{NodeKind, Result};

fn host(settings: &StorageSettings) -> Host {
    Host {
        kind: NodeKind::Storage,
        settings: settings.node.clone(),
        targets: settings.targets.clone(),
        reserve,
    }
}

/// Initialises the directories of a new storage service and its targets. For an initialised
/// service, initialises only the targets that were added to its settings, and replaces its token.
///
/// # Errors
/// - `Exists` if the service and all its targets are initialised already, with this token.
/// - `Configuration` if a directory is not blank, or belongs to another cluster or node.
///
/// The context of the error has a hint on how to fix the problem.
pub fn initialise(settings: &StorageSettings, token: Option<JoinToken>) -> Result<Initialised> {
    host(settings).initialise(token)
}

/// Serves until `SIGTERM` or `SIGINT` arrives. This function handles the signals of the process, so
/// call it before the process starts other threads.
///
/// # Errors
/// The error that prevents the start or ends the service, with a hint on how to fix the problem.
/// Examples are a blank directory, a directory of another node, an address in use, and a
/// registration that management refuses.
pub fn run(settings: &StorageSettings) -> Result<()> {
    let descriptors = skep_env::raise_file_limit() / CONNECTIONS_SHARE;
    // An administrator may add targets to the running service, and each of them gets the same share
    // of descriptors. So this code leaves half of the descriptors for added targets.
    let share = descriptors as usize / (2 * settings.targets.len().max(1));
    let open_files = share.max(MIN_OPEN_FILES);
    let emulation = settings.emulation.clone();
    let loops = EventLoops::new();
    host(settings).run(move |start| target_thread::serve(start, open_files, &emulation, &loops))
}
