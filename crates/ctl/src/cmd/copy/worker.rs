//! The process that copies one part of a copy by several hosts (`skep_copy::hosts` has the
//! protocol).

use super::store::{StoreArgs, Stores, is_store};
use skep_copy::context::Options;
use skep_copy::hosts::{LEASE, Message};
use skep_copy::outcome::Progress;
use skep_copy::plan::pairs;
use skep_copy::run::copy;
use skep_s3::credentials::Credentials;
use skep_types::{Error, ErrorCode, Result};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

/// Maximum length of a line from the coordinator. The longest line has credentials with a session
/// token.
const MOST_LINE: u64 = 64 << 10;

/// Ends this process when its coordinator has ended or cannot be reached, because the coordinator
/// may then assign the same part to another host. Returns a channel with the credentials that the
/// coordinator sends.
fn watch() -> Receiver<Credentials> {
    let (sender, receiver) = sync_channel(1);
    let (keys, received) = sync_channel(1);
    std::thread::spawn(move || {
        let mut input = BufReader::new(std::io::stdin());
        let mut line = Vec::new();
        // When the input ends, this thread ends and drops the sender.
        while (&mut input).take(MOST_LINE).read_until(b'\n', &mut line).is_ok_and(|it| it > 0) {
            if let Ok(credentials) = serde_json::from_slice(&line) {
                // Drop the credentials if the channel is full, because each later line has newer
                // credentials.
                let _ = keys.try_send(credentials);
            }
            line.clear();
            if sender.send(()).is_err() {
                return;
            }
        }
    });
    std::thread::spawn(move || {
        while receiver.recv_timeout(LEASE).is_ok() {}
        // Exits without cleaning up, as if the process were killed. Files that the process was
        // copying stay incomplete.
        std::process::exit(1);
    });
    received
}

/// Returns the settings for object stores, with the credentials that the coordinator has sent.
/// `None` means that neither the source nor the destination is in an object store.
fn stores(
    args: &StoreArgs,
    mut paths: impl Iterator<Item = PathBuf>,
    keys: Receiver<Credentials>,
) -> Result<Option<Arc<Stores>>> {
    if !paths.any(|it| is_store(&it)) {
        return Ok(None);
    }
    if !args.s3_keys_from_input {
        return args.given(None).map(|it| Some(Arc::new(it)));
    }
    let first = keys.recv_timeout(LEASE).map_err(|_| {
        let what = "cannot use the object store: the process that coordinates the copy has sent no \
                    credentials to this host; run the same command again with --resume";
        Error::new(ErrorCode::AuthenticationFailed, what)
    })?;
    let stores = Arc::new(args.given(Some(first))?);
    let shared = stores.clone();
    std::thread::spawn(move || keys.iter().for_each(|it| shared.set(it)));
    Ok(Some(stores))
}

/// Runs the part of the copy that the coordinator has assigned to this process, and prints the
/// messages for the coordinator.
pub(super) fn run(
    args: &StoreArgs,
    sources: &[PathBuf],
    destination: &Path,
    options: &Options,
) -> Result<()> {
    let keys = watch();
    let report = |message: &Message| -> Result<()> {
        let line = serde_json::to_string(message);
        let line = line.map_err(|error| Error::new(ErrorCode::Io, error.to_string()))?;
        Ok(writeln!(std::io::stdout().lock(), "{line}")?)
    };
    let progress = |progress: &Progress| {
        if report(&Message::Progress(progress.clone())).is_err() {
            // The coordinator no longer reads the messages, so the result of the copy would be
            // lost.
            std::process::exit(1);
        }
    };
    let paths = sources.iter().cloned().chain([destination.to_owned()]);
    let result = stores(args, paths, keys).and_then(|stores| match stores {
        Some(stores) => stores.copy(sources, destination, options, &progress),
        None => {
            let pairs = pairs(sources, destination, |path| path.is_dir())?;
            copy(&pairs, options, &progress)
        }
    });
    report(&match result {
        Ok(outcome) => Message::Ended(outcome),
        Err(error) => {
            Message::Failed { code: error.code() as u16, context: error.context().to_owned() }
        }
    })
}
