//! `skep target set-state`: closes a storage target to new files, or reopens a closed target.

use crate::access::{ClusterArgs, block_on};
use crate::help::{Example, examples};
use crate::output::print;
use crate::view::target_named;
use clap::ValueEnum;
use serde::Serialize;
use skep_types::Result;
use skep_wire::management::SetTargetState;

const EXAMPLES: &[Example] = &[
    ("place no new files on target 6, so that it can be emptied", "skep target set-state 6 closed"),
    ("place new files on target 6 again", "skep target set-state 6 open"),
];

/// Close a storage target to new files, or reopen a closed target
///
/// A closed target still serves reads and writes of the files that it stores. New files are placed
/// on other targets. The state lasts until the next change.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct SetStateArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Id of a storage target
    target: String,
    /// The new state
    state: TargetState,
}

/// The states that an administrator sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum TargetState {
    /// The target gets new files
    Open,
    /// The target serves its files and gets no new files
    Closed,
}

/// The JSON output: the target and its new state.
#[derive(Debug, Serialize)]
struct TargetReport {
    id: u32,
    path: String,
    state: TargetState,
}

pub(crate) fn run(args: SetStateArgs) -> Result<()> {
    let SetStateArgs { query, target, state } = args;
    let access = query.access(None)?;
    let report = block_on(async move {
        let map = access.map().await?;
        let target = target_named(&map, &target)?;
        let is_closed = state == TargetState::Closed;
        access.ask(&SetTargetState { target: target.id, is_closed }).await?;
        Ok(TargetReport { id: target.id.raw(), path: target.path.clone(), state })
    })?;
    print(&report, |report| {
        let TargetReport { id, path, state } = report;
        match state {
            TargetState::Open => format!("Target {id} ({path}) is open to new files.\n"),
            TargetState::Closed => format!(
                "Target {id} ({path}) is closed to new files. `skep target files --paths {id}` \
                 lists the files on this target.\n"
            ),
        }
    })
}
