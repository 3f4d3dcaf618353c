//! The process that does one part of a copy by several hosts (`skep_copy::hosts` has the protocol).

use skep_copy::context::Options;
use skep_copy::hosts::{LEASE, Message};
use skep_copy::plan::pairs;
use skep_copy::run::copy;
use skep_types::{Error, ErrorCode, Result};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;

/// Ends this process when its coordinator has ended or cannot be reached: then another host may get
/// the same part.
pub(super) fn watch() {
    let (sender, receiver) = sync_channel(1);
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        // The end of the input drops the sender.
        while std::io::stdin().read(&mut bytes).is_ok_and(|count| count > 0) {
            if sender.send(()).is_err() {
                return;
            }
        }
    });
    std::thread::spawn(move || {
        while receiver.recv_timeout(LEASE).is_ok() {}
        // As after a kill: the copies of this moment stay incomplete.
        std::process::exit(1);
    });
}

/// Does a part, and prints its messages.
pub(super) fn run(sources: &[PathBuf], destination: &Path, options: &Options) -> Result<()> {
    let report = |message: &Message| -> Result<()> {
        let line = serde_json::to_string(message);
        let line = line.map_err(|error| Error::new(ErrorCode::Io, error.to_string()))?;
        Ok(writeln!(std::io::stdout().lock(), "{line}")?)
    };
    let result = pairs(sources, destination, |path| path.is_dir()).and_then(|pairs| {
        copy(&pairs, options, &|progress| {
            if report(&Message::Progress(progress.clone())).is_err() {
                // Nothing reads the result.
                std::process::exit(1);
            }
        })
    });
    report(&match result {
        Ok(outcome) => Message::Ended(outcome),
        Err(error) => {
            Message::Failed { code: error.code() as u16, context: error.context().to_owned() }
        }
    })
}
