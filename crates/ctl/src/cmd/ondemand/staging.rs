//! Copies files into a file system on demand after its start, and out of the file system before its
//! removal. This module defines the options and the error messages of these copies. All hosts of
//! the file system take part in each copy, as root.
//!
//! # Invariant
//! - If the user has requested a copy, `stop` removes the data only after this copy has succeeded,
//!   or with `--discard`.

use crate::cmd::copy::several::Transport;
use crate::cmd::copy::store::{StoreArgs, Stores};
use crate::cmd::copy::{failure, hosts_as_text};
use crate::output::is_for_people;
use skep_copy::context::Options;
use skep_copy::hosts::HostsOutcome;
use skep_deploy::ondemand::{HostState, OnDemand, OnDemandOutcome, StageOut, shown};
use skep_s3::location::{Location, is_location};
use skep_types::{Error, ErrorCode, Result};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Files to copy into a file system on demand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StageIn {
    /// Absolute path outside of the file system, which is valid on all hosts, or a location in an
    /// object store.
    pub(super) source: String,
    /// Path below the mount point.
    pub(super) destination: String,
}

fn invalid(what: String) -> Error {
    Error::new(ErrorCode::InvalidArgument, what)
}

/// Returns a path below the mount point `mount`. A relative path is relative to the mount point.
fn inside(mount: &str, path: &str) -> Result<String> {
    let joined = Path::new(mount).join(path);
    let is_plain = joined.components().all(|it| it != std::path::Component::ParentDir);
    match joined.to_str() {
        Some(text) if joined.starts_with(mount) && is_plain => Ok(text.to_owned()),
        _ => Err(invalid(format!("invalid path '{path}': expected a path below {mount}"))),
    }
}

/// Splits `SOURCE:DESTINATION`. Both can be locations in an object store.
fn split(text: &str) -> Option<(&str, &str)> {
    let scheme = if is_location(text) { "s3:".len() } else { 0 };
    let colon = scheme + text[scheme..].find(':')?;
    Some((&text[..colon], &text[colon + 1..]))
}

/// Parses `SOURCE[:DESTINATION]`.
pub(super) fn stage_in(mount: &str, text: &str) -> Result<StageIn> {
    let (source, destination) = match split(text) {
        Some((source, destination)) => (source, destination.to_owned()),
        None => {
            let name = Path::new(text).file_name().and_then(|name| name.to_str());
            let name = name.ok_or_else(|| {
                let what = "expected an absolute path with a name, as in /home/user/input, or \
                            s3://bucket/input";
                invalid(format!("invalid source '{text}' to stage in: {what}"))
            })?;
            (text, name.to_owned())
        }
    };
    let destination = inside(mount, &destination)?;
    Ok(StageIn { source: source.to_owned(), destination })
}

/// Parses `[SOURCE:]DESTINATION`. A missing source means the whole file system.
pub(super) fn stage_out(mount: &str, text: &str) -> Result<StageOut> {
    let (source, destination) = match is_location(text) {
        true => ("", text),
        false => text.split_once(':').unwrap_or(("", text)),
    };
    let source = inside(mount, source)?;
    let source = source.strip_suffix('/').unwrap_or(&source).to_owned();
    if Path::new(destination).starts_with(mount) {
        let what =
            format!("invalid destination '{destination}': expected a path outside of {mount}");
        return Err(invalid(what));
    }
    if is_location(destination) {
        Location::parse(destination)?;
    }
    Ok(StageOut { source, destination: destination.to_owned() })
}

/// Returns the settings and credentials for the object stores that the copies use, after a test
/// request to each location. `None` means that no copy uses an object store.
pub(super) fn stores(
    args: &StoreArgs,
    inputs: &[StageIn],
    outputs: &[StageOut],
) -> Result<Option<Stores>> {
    let sources = inputs.iter().map(|it| it.source.as_str()).filter(|it| is_location(it));
    let targets = outputs.iter().map(|it| it.destination.as_str()).filter(|it| is_location(it));
    let paths = sources.clone().chain(targets.clone()).map(Path::new);
    let stores = args.open(paths)?;
    if let Some(stores) = &stores {
        for source in sources {
            stores.check(source, true)?;
        }
        for target in targets {
            stores.check(target, false)?;
        }
    }
    Ok(stores)
}

/// Returns the sources that are paths of files and not in object stores. All hosts must see these
/// paths.
pub(super) fn paths(inputs: &[StageIn]) -> Vec<String> {
    let sources = inputs.iter().map(|it| &it.source);
    sources.filter(|it| !is_location(it)).cloned().collect()
}

/// Copies files with all hosts, and then compares all bytes of the copies. If an earlier copy was
/// interrupted, continues this copy.
fn copy(
    hosts: &[String],
    (source, destination): (&str, &str),
    sync: bool,
    stores: Option<&Stores>,
) -> Result<HostsOutcome> {
    let options = Options { resume: true, verify: true, sync, ..Options::default() };
    let transport = Transport::ssh(hosts, true);
    let sources = [PathBuf::from(source)];
    let outcome = transport.copy(&sources, Path::new(destination), &options, stores)?;
    match failure(&outcome.outcome) {
        Some(error) => Err(error),
        None => Ok(outcome),
    }
}

/// Prints the result of a copy for people. With JSON, only the command's own result is printed.
fn show(what: &str, outcome: &HostsOutcome) {
    if is_for_people() {
        // If standard error is closed, the command continues without this output.
        let _ = writeln!(std::io::stderr(), "{what}: {}", hosts_as_text(outcome));
    }
}

/// Copies files into a file system that was just started.
pub(super) fn run_in(system: &OnDemand, copies: &[StageIn], stores: Option<&Stores>) -> Result<()> {
    for it in copies {
        // Sync nothing, because the file system has no redundancy, so a power loss of a host loses
        // the data even after a sync.
        let result = copy(&system.hosts, (&it.source, &it.destination), false, stores);
        let outcome = result.map_err(|error| {
            error.within(format!(
                "cannot stage in {}: the file system {} is mounted on {}, but a part of the data \
                 is missing; copy the rest with `skep copy --resume --verify {} {}`, or stop the \
                 file system",
                it.source, system.name, system.mount, it.source, it.destination
            ))
        })?;
        show(&format!("Staged in {}", it.source), &outcome);
    }
    Ok(())
}

/// Returns the copies that must be finished before the file system is removed. The result has the
/// copies that an earlier command requested, and the copies in `new`.
pub(super) fn pending(status: &OnDemandOutcome, new: &[StageOut]) -> Vec<StageOut> {
    let noted = status.hosts.iter().flat_map(|it| &it.stage_out);
    let mut all: Vec<StageOut> = Vec::new();
    for it in noted.filter_map(|note| StageOut::parse(note)).chain(new.iter().cloned()) {
        if !all.contains(&it) {
            all.push(it);
        }
    }
    all
}

/// Describes the storage servers of a file system that do not answer. `None` means that all storage
/// servers answer, or that no host knows the file system. No process restarts these servers, so a
/// copy of data that only these servers store would not end before their hosts are released.
pub(super) fn lost_servers(states: &[HostState]) -> Option<String> {
    let lost: Vec<_> = states.iter().flat_map(|it| it.lost.iter().cloned()).collect();
    if lost.is_empty() {
        return None;
    }
    Some(format!(
        "the storage servers on these hosts do not answer, so their part of the data cannot be \
         copied: {}; if the servers have ended, copy by hand the files that can still be read",
        shown(&lost)
    ))
}

/// Returns one line for each host that still has data of other file systems on demand. This data
/// was not copied out before the last boot of the host. Each line begins with a newline. Empty if
/// no host has such data.
pub(super) fn kept_data(states: &[HostState]) -> String {
    let line = |it: &HostState| {
        format!(
            "\nHost {} still has data of other file systems that is not staged out: {} \
             (docs/operations/ondemand.md, \"After a boot\")",
            it.host,
            it.kept.join(", ")
        )
    };
    states.iter().filter(|it| !it.kept.is_empty()).map(line).collect()
}

/// Copies files out of a file system before its removal.
pub(super) fn run_out(
    system: &OnDemand,
    status: &OnDemandOutcome,
    copies: &[StageOut],
    stores: Option<&Stores>,
) -> Result<()> {
    let place = format!(
        "nothing was removed: the data is on {} of {}, and in the directory {}/skep-ondemand of \
         each host; run the same command again, or delete the data with --discard",
        system.mount,
        shown(&system.hosts),
        system.directory
    );
    // Without redundancy, the file system serves no request while a host is missing, so a copy
    // would wait for ever.
    let missing = status.hosts.iter().filter(|it| !it.is_mounted).map(|it| it.host.clone());
    let silent = status.problems.iter().map(|it| it.host.clone());
    let missing: Vec<_> = missing.chain(silent).collect();
    if !missing.is_empty() {
        let what = format!(
            "cannot stage out {}: this file system is not mounted on {}; {place}",
            system.name,
            shown(&missing)
        );
        return Err(Error::new(ErrorCode::Disconnected, what));
    }
    if let Some(lost) = lost_servers(&status.hosts) {
        let what = format!("cannot stage out {}: {lost}; {place}", system.name);
        return Err(Error::new(ErrorCode::Disconnected, what));
    }
    for it in copies {
        let result = copy(&system.hosts, (&it.source, &it.destination), true, stores);
        let outcome = result.map_err(|error| {
            let what = format!("cannot stage out {}: {}\n{place}", it.source, error.context());
            Error::new(error.code(), what)
        })?;
        show(&format!("Staged out {}", it.source), &outcome);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staged_paths_are_below_the_mount_point() {
        let read = |text: &str| stage_in("/mnt/s", text).map(|it| (it.source, it.destination));
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(read("/home/a/input").unwrap(), pair("/home/a/input", "/mnt/s/input"));
        assert_eq!(read("/home/a:x/y").unwrap(), pair("/home/a", "/mnt/s/x/y"));
        assert_eq!(read("/home/a:/mnt/s/b").unwrap(), pair("/home/a", "/mnt/s/b"));
        assert_eq!(read("s3://bucket/in").unwrap(), pair("s3://bucket/in", "/mnt/s/in"));
        assert_eq!(read("s3://bucket/in:x").unwrap(), pair("s3://bucket/in", "/mnt/s/x"));
        for wrong in ["/", "/home/a:/mnt/other", "/home/a:../b", "/home/a:/mnt/s/../b"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let out = |text: &str| stage_out("/mnt/s", text).map(|it| it.shown());
        assert_eq!(out("/home/out").unwrap(), "/mnt/s:/home/out");
        assert_eq!(out("results:/home/out").unwrap(), "/mnt/s/results:/home/out");
        assert_eq!(out("s3://bucket/out").unwrap(), "/mnt/s:s3://bucket/out");
        assert_eq!(out("results:s3://bucket/out").unwrap(), "/mnt/s/results:s3://bucket/out");
        for wrong in ["s3://x", "r:s3://", "/mnt/s/x", "/etc:/home", "../x:/home", ".:/mnt/s"] {
            assert!(out(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn equal_pending_copies_of_several_hosts_are_listed_once() {
        let state = |host: &str, notes: &[&str]| HostState {
            host: host.into(),
            running: Vec::new(),
            is_mounted: true,
            since: None,
            stage_out: notes.iter().map(|it| (*it).to_owned()).collect(),
            ..HostState::default()
        };
        let status = OnDemandOutcome {
            name: "x".into(),
            mount: "/mnt/s".into(),
            hosts: vec![state("a", &["/mnt/s:/o"]), state("b", &["/mnt/s:/o", "/mnt/s/r:/p"])],
            problems: Vec::new(),
            seconds: 0.0,
        };
        let new = [stage_out("/mnt/s", "/o").unwrap(), stage_out("/mnt/s", "/q").unwrap()];
        let all: Vec<_> = pending(&status, &new).iter().map(StageOut::shown).collect();
        assert_eq!(all, ["/mnt/s:/o", "/mnt/s/r:/p", "/mnt/s:/q"]);
    }
}
