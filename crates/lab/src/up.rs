//! Starts a lab: checks the machine, then creates the network, and then starts the services and
//! mounts.

use crate::capacity;
use crate::check::{check, free_memory};
use crate::data;
use crate::description::{Description, check_name};
use crate::down::{MAKER, down};
use crate::limits::TICK;
use crate::names::{Role, STATE_ROOT, state_directory};
use crate::network::{make_bridge, make_host, make_neighbours};
use crate::process::Process;
use crate::services::Starter;
use crate::state::{Host, Phase, State};
use skep_types::{Error, Result};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Runs all checks before the start of a lab, and returns the initial state of this lab. The
/// function creates nothing. Passes the measured capacity of this machine to `report`.
///
/// # Errors
/// Returns the errors that [`up`] returns before it creates any part.
pub fn plan(
    name: &str,
    description: &Description,
    is_forced: bool,
    report: &mut dyn FnMut(&str),
) -> Result<State> {
    check_name(name)?;
    check(name, description)?;
    if let Some(wanted) = description.total_rate() {
        capacity::check(wanted, is_forced, report)?;
    }
    Ok(State::plan(name, description))
}

/// Starts a lab, and returns its state when all mounts are ready. `program` is the path of `skep`.
/// Passes the name of each step to `report`. If a step fails, removes all parts that were created.
/// If `is_forced` is set, starts the lab even if this machine is too slow for the rates of the lab.
///
/// # Errors
/// Errors before any part of the lab is created:
/// - `Configuration`: the description is invalid.
/// - `NotPermitted`: this process does not run as root.
/// - `Exists`: the name of the lab is in use, or its data directory is not empty.
/// - `NoSpace`: this machine has too little memory for targets in memory.
/// - `Unsupported`: this machine lacks a program or a kernel feature.
/// - `LimitReached`: this machine is too slow for the rates.
///
/// Errors later: the error of the step that failed. If a service or a mount did not become ready,
/// the error contains the end of its log.
pub fn up(
    name: &str,
    description: &Description,
    program: &Path,
    is_forced: bool,
    report: &mut dyn FnMut(&str),
) -> Result<State> {
    let mut state = plan(name, description, is_forced, report)?;
    claim(&mut state)?;
    let made = make(&mut state, program, report);
    if made.is_err() {
        // Return the error of `make`, which is the cause, and ignore an error of `down`. The user
        // can remove the remaining parts with another `down`.
        let _ = down(name);
    }
    made.map(|()| state)
}

/// Creates the lab's state directory, and so reserves the name of the lab. If two processes create
/// the directory at the same time, only one process succeeds.
fn claim(state: &mut State) -> Result<()> {
    let run = state_directory(&state.name);
    let named = |error: std::io::Error| Error::from(error).within(run.display());
    fs::create_dir_all(STATE_ROOT).map_err(named)?;
    match fs::create_dir(&run) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let what = format!(
                "cannot start lab '{}': another process is starting this lab; wait for the end of \
                 that start",
                state.name
            );
            return Err(Error::new(skep_types::ErrorCode::Exists, what));
        }
        result => result.map_err(named)?,
    }
    state.processes.extend(Process::of(MAKER, "", std::process::id()));
    state.save()
}

fn make(state: &mut State, program: &Path, report: &mut dyn FnMut(&str)) -> Result<()> {
    let memory = free_memory();
    data::make(state, memory)?;
    report(&format!("creating {} hosts and their links", state.hosts.len()));
    make_bridge(state)?;
    for host in &state.hosts {
        make_host(state, host)?;
    }
    make_neighbours(state)?;
    let of = |role| state.hosts_of(role).cloned().collect::<Vec<Host>>();
    let (metadata, servers, clients) = (of(Role::Metadata), of(Role::Server), of(Role::Client));
    let mut starter = Starter::new(program, state)?;
    report("starting management");
    starter.start_management()?;
    for host in &metadata {
        report(&format!("starting metadata on {}", host.name));
        starter.start_metadata(host)?;
    }
    for server in &servers {
        report(&format!("starting storage on {}", server.name));
        starter.start_storage(server)?;
    }
    starter.format(TICK)?;
    for client in &clients {
        report(&format!("mounting on {}", client.name));
        starter.start_mount(client)?;
    }
    state.phase = Phase::Up;
    state.processes.retain(|process| process.name != MAKER);
    state.save()
}
