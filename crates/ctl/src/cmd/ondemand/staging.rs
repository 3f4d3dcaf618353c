//! Copies into a file system on demand after its start, and out of it before its removal. Owns the
//! options and the errors. All hosts of the file system copy, as root.
//!
//! # Invariant
//! - If the user has requested a copy, `stop` removes the data only after this copy has succeeded,
//!   or with `--discard`.

use crate::cmd::copy::several::Transport;
use crate::cmd::copy::{failure, hosts_as_text};
use crate::output::is_for_people;
use skep_copy::context::Options;
use skep_copy::hosts::HostsOutcome;
use skep_deploy::ondemand::{OnDemand, OnDemandOutcome, StageOut, shown};
use skep_types::{Error, ErrorCode, Result};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A copy into a file system on demand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StageIn {
    /// Path outside, on all hosts.
    pub(super) source: String,
    /// Path below the mount point.
    destination: String,
}

fn invalid(what: String) -> Error {
    Error::new(ErrorCode::InvalidArgument, what)
}

/// Returns a path below the mount point. A relative path begins there.
fn inside(mount: &str, path: &str) -> Result<String> {
    let joined = Path::new(mount).join(path);
    let is_plain = joined.components().all(|it| it != std::path::Component::ParentDir);
    match joined.to_str() {
        Some(text) if joined.starts_with(mount) && is_plain => Ok(text.to_owned()),
        _ => Err(invalid(format!("invalid path '{path}': expected one below {mount}"))),
    }
}

/// Reads `SOURCE[:DESTINATION]`.
pub(super) fn stage_in(mount: &str, text: &str) -> Result<StageIn> {
    let (source, destination) = match text.split_once(':') {
        Some((source, destination)) => (source, destination.to_owned()),
        None => {
            let name = Path::new(text).file_name().and_then(|name| name.to_str());
            let name = name.ok_or_else(|| {
                let what = "expected an absolute path with a name, as in /home/user/input";
                invalid(format!("invalid source '{text}' to stage in: {what}"))
            })?;
            (text, name.to_owned())
        }
    };
    let destination = inside(mount, &destination)?;
    Ok(StageIn { source: source.to_owned(), destination })
}

/// Reads `[SOURCE:]DESTINATION`. Without a source, it means the whole file system.
pub(super) fn stage_out(mount: &str, text: &str) -> Result<StageOut> {
    let (source, destination) = text.split_once(':').unwrap_or(("", text));
    let source = inside(mount, source)?;
    let source = source.strip_suffix('/').unwrap_or(&source).to_owned();
    if Path::new(destination).starts_with(mount) {
        let what = format!("invalid destination '{destination}': expected one outside of {mount}");
        return Err(invalid(what));
    }
    Ok(StageOut { source, destination: destination.to_owned() })
}

/// Copies with all hosts, with a comparison of all bytes. Also continues an interrupted copy.
fn copy(hosts: &[String], source: &str, destination: &str, sync: bool) -> Result<HostsOutcome> {
    let options = Options { resume: true, verify: true, sync, ..Options::default() };
    let transport = Transport::ssh(hosts, true);
    let outcome = transport.copy(&[PathBuf::from(source)], Path::new(destination), &options)?;
    match failure(&outcome.outcome) {
        Some(error) => Err(error),
        None => Ok(outcome),
    }
}

/// Reports a copy to people. The command prints its own result.
fn show(what: &str, outcome: &HostsOutcome) {
    if is_for_people() {
        // A closed standard error must not stop the command.
        let _ = writeln!(std::io::stderr(), "{what}: {}", hosts_as_text(outcome));
    }
}

/// Copies into a file system that was just started.
pub(super) fn run_in(system: &OnDemand, copies: &[StageIn]) -> Result<()> {
    for it in copies {
        // Without redundancy, a power loss ends the file system, so nothing is synced.
        let result = copy(&system.hosts, &it.source, &it.destination, false);
        let outcome = result.map_err(|error| {
            error.within(format!(
                "cannot stage in {}: the file system {} is mounted on {}, without all of the data; \
                 continue with `skep copy --resume --verify {} {}` there, or stop it",
                it.source, system.name, system.mount, it.source, it.destination
            ))
        })?;
        show(&format!("Staged in {}", it.source), &outcome);
    }
    Ok(())
}

/// Returns the copies that must precede the removal: the copies of earlier commands, and `new`.
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

/// Copies out of a file system before its removal.
pub(super) fn run_out(
    system: &OnDemand,
    status: &OnDemandOutcome,
    copies: &[StageOut],
) -> Result<()> {
    let place = format!(
        "nothing was removed: the data are on {} of {}, and in {}/skep-ondemand of each; continue \
         with the same command, or give them up with --discard",
        system.mount,
        shown(&system.hosts),
        system.directory
    );
    // A file system without redundancy serves nothing if a host is missing: a copy would wait.
    let missing = status.hosts.iter().filter(|it| !it.is_mounted).map(|it| it.host.clone());
    let silent = status.problems.iter().map(|it| it.host.clone());
    let missing: Vec<_> = missing.chain(silent).collect();
    if !missing.is_empty() {
        let what = format!(
            "cannot stage out {}: it is not mounted on {}; {place}",
            system.name,
            shown(&missing)
        );
        return Err(Error::new(ErrorCode::Disconnected, what));
    }
    for it in copies {
        let outcome = copy(&system.hosts, &it.source, &it.destination, true).map_err(|error| {
            let code = error.code();
            let what = format!("cannot stage out {}: {}\n{place}", it.source, error.context());
            Error::new(code, what)
        })?;
        show(&format!("Staged out {}", it.source), &outcome);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_deploy::ondemand::HostState;

    #[test]
    fn staged_paths_are_below_the_mount_point() {
        let read = |text: &str| stage_in("/mnt/s", text).map(|it| (it.source, it.destination));
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(read("/home/a/input").unwrap(), pair("/home/a/input", "/mnt/s/input"));
        assert_eq!(read("/home/a:x/y").unwrap(), pair("/home/a", "/mnt/s/x/y"));
        assert_eq!(read("/home/a:/mnt/s/b").unwrap(), pair("/home/a", "/mnt/s/b"));
        for wrong in ["/", "/home/a:/mnt/other", "/home/a:../b", "/home/a:/mnt/s/../b"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let out = |text: &str| stage_out("/mnt/s", text).map(|it| it.shown());
        assert_eq!(out("/home/out").unwrap(), "/mnt/s:/home/out");
        assert_eq!(out("results:/home/out").unwrap(), "/mnt/s/results:/home/out");
        for wrong in ["/mnt/s/x", "/etc:/home", "../x:/home", ".:/mnt/s"] {
            assert!(out(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn pending_copies_of_hosts_and_commands_count_once() {
        let state = |host: &str, notes: &[&str]| HostState {
            host: host.into(),
            running: Vec::new(),
            is_mounted: true,
            since: None,
            stage_out: notes.iter().map(|it| (*it).to_owned()).collect(),
            hold: None,
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
