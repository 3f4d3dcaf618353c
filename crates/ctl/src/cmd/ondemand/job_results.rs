//! The record that all nodes of a Slurm job share, with the state of the results of the job.
//!
//! The record consists of extended attributes of the top directory of the job's file system. The
//! names of these attributes begin with `trusted.`, so only root can read and change the
//! attributes. A new file system has no record, so a job that Slurm starts again never reads the
//! record of its earlier run.
//!
//! This module defines the names and texts of the attributes. `job_output` defines the order of the
//! steps.

use crate::in_time;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use skep_types::text::shorten;
use skep_types::{Error, ErrorCode, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The attribute with the state of the results.
const RESULTS: &str = "trusted.skep.results";
/// Prefix of the name of an attribute for a node that has not read the final state. The name of the
/// node follows the prefix.
const READER: &str = "trusted.skep.reader.";
/// Value of the attribute of a node whose epilog waits for the final state.
const WAITS: &[u8] = b"waits";
/// Time limit of one access to the record. The limit is longer than a fail-over of the mount's
/// connections.
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum size of the list of attributes, in bytes. The list of 1,024 nodes with long names is
/// shorter than this limit.
const MAX_LIST_BYTES: usize = 64 << 10;
/// Maximum size of the text of a state, in bytes.
const MAX_TEXT_BYTES: usize = 2000;

/// The state of a job's results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Results {
    /// The first node has not copied the results yet. The text describes the progress of the first
    /// node. Before the job, this is the progress of the copy of the input.
    Pending(String),
    /// The first node has copied all results.
    Saved,
    /// The job did not begin, so it has no results.
    NeverBegun,
    /// The first node could not copy the results. The text is the error.
    Failed(String),
}

impl Results {
    fn to_text(&self) -> String {
        let (word, text) = match self {
            Self::Pending(text) => ("pending", text.as_str()),
            Self::Saved => ("saved", ""),
            Self::NeverBegun => ("never-begun", ""),
            Self::Failed(text) => ("failed", text.as_str()),
        };
        let mut text = format!("{word} {text}");
        shorten(&mut text, MAX_TEXT_BYTES);
        text
    }

    /// Returns the state that a text describes. An unknown text counts as pending, so that no node
    /// removes its part of the data because of an unknown text.
    fn of_text(text: &str) -> Self {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        match word {
            "saved" => Self::Saved,
            "never-begun" => Self::NeverBegun,
            "failed" => Self::Failed(rest.to_owned()),
            "pending" => Self::Pending(rest.to_owned()),
            _ => Self::Pending(text.to_owned()),
        }
    }
}

impl std::fmt::Display for Results {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pending(text) | Self::Failed(text) => f.write_str(text),
            Self::Saved => f.write_str("all results are copied"),
            Self::NeverBegun => f.write_str("the job did not begin, so it has no results"),
        }
    }
}

/// The record of the job whose file system is mounted on a directory.
#[derive(Debug, Clone)]
pub(super) struct Record {
    top: PathBuf,
}

impl Record {
    pub(super) fn at(mount: &str) -> Self {
        Self { top: mount.into() }
    }

    /// Writes the state of the results.
    ///
    /// # Errors
    /// `Io` if the file system does not accept the state or does not reply.
    pub(super) fn write(&self, results: &Results) -> Result<()> {
        let value = results.to_text().into_bytes();
        self.access(move |top| set(top, RESULTS, &value))
    }

    /// Returns the state of the results. `None` if no node has written a state.
    ///
    /// # Errors
    /// `Io` if the file system does not reply, or if it is not mounted.
    pub(super) fn read(&self) -> Result<Option<Results>> {
        let value = self.access(|top| {
            let mut bytes = vec![0; MAX_TEXT_BYTES];
            match rustix::fs::lgetxattr(top, RESULTS, &mut bytes) {
                Ok(len) => {
                    bytes.truncate(len);
                    Ok(Some(bytes))
                }
                Err(Errno::NODATA) => Ok(None),
                Err(error) => Err(error),
            }
        })?;
        Ok(value.map(|it| Results::of_text(&String::from_utf8_lossy(&it))))
    }

    /// Records that a node will read the final state before the node removes its part of the data.
    ///
    /// # Errors
    /// The errors of [`Self::write`].
    pub(super) fn add_reader(&self, host: &str) -> Result<()> {
        self.set_reader(host, b"")
    }

    /// Records that the epilog of a node has begun to wait for the final state.
    ///
    /// # Errors
    /// The errors of [`Self::write`].
    pub(super) fn begin_wait(&self, host: &str) -> Result<()> {
        self.set_reader(host, WAITS)
    }

    fn set_reader(&self, host: &str, value: &'static [u8]) -> Result<()> {
        let name = format!("{READER}{host}");
        self.access(move |top| set(top, &name, value))
    }

    /// Records that a node has read the final state.
    ///
    /// # Errors
    /// The errors of [`Self::write`].
    pub(super) fn remove_reader(&self, host: &str) -> Result<()> {
        let name = format!("{READER}{host}");
        self.access(move |top| match rustix::fs::lremovexattr(top, name.as_str()) {
            Err(Errno::NODATA) => Ok(()),
            result => result,
        })
    }

    /// Returns the nodes that have not read the final state.
    ///
    /// # Errors
    /// The errors of [`Self::read`].
    pub(super) fn readers(&self) -> Result<Vec<String>> {
        let names = self.access(|top| {
            let mut bytes = vec![0; MAX_LIST_BYTES];
            let len = rustix::fs::llistxattr(top, &mut bytes)?;
            bytes.truncate(len);
            Ok(bytes)
        })?;
        let names = names.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        Ok(names.filter_map(|it| it.strip_prefix(READER).map(str::to_owned)).collect())
    }

    fn access<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> rustix::io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let top = self.top.clone();
        let result = in_time::within(PATIENCE, move || work(&top));
        let what = match result {
            Some(Ok(value)) => return Ok(value),
            Some(Err(error)) => error.to_string(),
            None => format!("no reply within {} s", PATIENCE.as_secs()),
        };
        let place =
            format!("cannot access the record of the job's results on {}", self.top.display());
        Err(Error::new(ErrorCode::Io, what).within(place))
    }
}

fn set(top: &Path, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    rustix::fs::lsetxattr(top, name, value, XattrFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_results_in_an_unknown_state_are_shown_as_pending() {
        for results in [
            Results::Pending("copies a, 1 of 2 files".into()),
            Results::Saved,
            Results::NeverBegun,
            Results::Failed("cannot stage out /mnt/ondemand/out: full".into()),
        ] {
            assert_eq!(Results::of_text(&results.to_text()), results);
        }
        for text in ["", "saved!", "Saved", "staged out"] {
            assert_eq!(Results::of_text(text), Results::Pending(text.to_owned()));
        }
    }
}
