//! Checks whether a lab can be started on this machine. The checks run before the creation of the
//! first part of the lab.

use crate::command::{NEEDED, call};
use crate::data;
use crate::description::Description;
use crate::limits::{MEMORY_SHARE, MIN_TARGET_MEMORY};
use crate::names::state_directory;
use crate::state::{State, namespaces_of};
use skep_types::{Error, ErrorCode, Result};
use std::process::Command;

/// Shell commands that create interfaces and queues of the same kinds as a lab. The commands run in
/// a temporary network namespace, which the kernel removes when the commands have ended.
const TRY_NETWORK: &str = "ip link add name b type bridge && ip link add name v type veth peer \
                           name w && tc qdisc add dev v root tbf rate 1mbit burst 20000 limit \
                           20000";
/// Shell command that delays packets as a lab does. The command runs in a temporary network
/// namespace.
const TRY_DELAY: &str = "tc qdisc add dev lo root netem delay 1ms";

fn refused(code: ErrorCode, what: impl Into<String>) -> Error {
    Error::new(code, what)
}

/// Checks that this process has the permissions to start and remove labs.
///
/// # Errors
/// Returns `NotPermitted` if this process does not run as root.
pub(crate) fn check_root() -> Result<()> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(refused(
            ErrorCode::NotPermitted,
            "cannot start or remove a lab as this user: a lab needs network namespaces and mounts; \
             run skep as root",
        )),
    }
}

/// Checks the description of a lab, its name, and the programs and kernel features that it needs.
///
/// # Errors
/// - `Configuration`: the description has problems. The error lists all problems.
/// - `NotPermitted`: this process does not run as root.
/// - `Exists`: the name is in use, or the data directory is not empty.
/// - `NoSpace`: this machine has too little memory for targets in memory.
/// - `Unsupported`: this machine lacks a program or a kernel feature.
pub(crate) fn check(name: &str, description: &Description) -> Result<()> {
    let problems = description.problems();
    if !problems.is_empty() {
        return Err(refused(ErrorCode::Configuration, problems.join("\n")));
    }
    check_root()?;
    check_name_is_free(name, description)?;
    check_memory(description, free_memory())?;
    for (program, package) in NEEDED {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&paths).any(|path| path.join(program).exists()) {
            let what = format!(
                "cannot start a lab: program '{program}' is not installed; install the Debian \
                 package {package} or its equivalent"
            );
            return Err(refused(ErrorCode::Unsupported, what));
        }
    }
    try_kernel(TRY_NETWORK).map_err(|why| {
        let what = format!(
            "cannot emulate links: this kernel lacks network namespaces, veth, bridge or the \
             queueing discipline tbf ({why})"
        );
        refused(ErrorCode::Unsupported, what)
    })?;
    if description.delay.is_some() {
        try_kernel(TRY_DELAY).map_err(|why| {
            let what = format!(
                "cannot delay links: this kernel lacks the queueing discipline netem ({why}); \
                 remove --delay"
            );
            refused(ErrorCode::Unsupported, what)
        })?;
    }
    Ok(())
}

/// If the storage targets are in memory, checks that `free` bytes of memory are enough for these
/// targets.
fn check_memory(description: &Description, free: u64) -> Result<()> {
    let targets = u64::from(description.servers) * u64::from(description.targets);
    let needed = targets * MIN_TARGET_MEMORY;
    if description.in_memory && free < needed {
        let mebibytes = |bytes: u64| bytes >> 20;
        let what = format!(
            "cannot store {targets} targets in memory: these targets need at least {} MiB, and {} \
             MiB are available; use --on-disk, or fewer targets",
            mebibytes(needed),
            mebibytes(free)
        );
        return Err(refused(ErrorCode::NoSpace, what));
    }
    Ok(())
}

fn try_kernel(line: &str) -> std::result::Result<(), String> {
    let tried = call(Command::new("unshare").args(["--net", "sh", "-c", line]));
    tried.map(drop).map_err(|error| {
        let context = error.context();
        context.rsplit_once("`: ").map_or(context, |(_, output)| output).replace('\n', " ")
    })
}

fn check_name_is_free(name: &str, description: &Description) -> Result<()> {
    let run = state_directory(name);
    if run.exists() {
        let what = match State::load(name) {
            Ok(state) if state.phase == crate::state::Phase::Up => "is up".to_owned(),
            _ => "is being started, or was left incomplete".to_owned(),
        };
        return Err(refused(
            ErrorCode::Exists,
            format!(
                "cannot start lab '{name}': a lab with this name {what}; remove that lab with \
                 `skep lab down --name {name}`, or choose another --name"
            ),
        ));
    }
    if let Some(namespace) = namespaces_of(name).first() {
        let what = format!(
            "cannot start lab '{name}': the network namespace {namespace} of an earlier lab still \
             exists; remove that lab with `skep lab down --name {name}`"
        );
        return Err(refused(ErrorCode::Exists, what));
    }
    let plan = State::plan(name, description);
    match data::objection(&plan.directory) {
        Some(objection) => Err(refused(ErrorCode::Exists, objection)),
        None => Ok(()),
    }
}

/// Returns the number of bytes of memory that the storage targets in memory may use.
pub(crate) fn free_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024 / MEMORY_SHARE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lab_with_targets_in_memory_needs_enough_free_memory() {
        let mut lab =
            Description { servers: 2, targets: 4, in_memory: true, ..Description::default() };
        assert!(check_memory(&lab, 512 << 20).is_ok());
        let refused = check_memory(&lab, 511 << 20).unwrap_err();
        assert!(refused.context().contains("need at least 512 MiB"), "{refused}");
        lab.in_memory = false;
        assert!(check_memory(&lab, 0).is_ok());
        assert!(free_memory() > 0);
    }
}
