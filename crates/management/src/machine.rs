//! The state machine of the cluster, to which the replicated log applies the commands.
//!
//! This module encodes the outcomes. `skep_cluster` defines the effect of a command.

use skep_cluster::state::versions_in_snapshot;
use skep_cluster::{ClusterState, Outcome, Proposal};
use skep_consensus::{LogPosition, StateMachine};
use skep_service::PROGRAM_VERSION;
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, Result};

/// The state of the cluster after all committed commands.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) state: ClusterState,
    /// Number of changes of `state` since this process started.
    pub(crate) changes: u64,
}

/// The encoded outcome of a command. The first pair is the error code as a number (zero for
/// success) and the context of the error. The second pair is the outcome of a successful command,
/// and the number of starts in the state after the command.
type AppliedRecord = ((u16, String), (Outcome, u64));

/// The result that the proposer of a command gets when the log has applied the command.
#[derive(Debug)]
pub(crate) struct Applied {
    /// The outcome of the command, or the error of the state machine if the state machine refused
    /// the command.
    pub(crate) result: Result<Outcome>,
    /// Number of starts in the state directly after this command. The proposer must use this number
    /// and not the current number in the state, because other commands may be applied before the
    /// proposer reads the state.
    pub(crate) starts: u64,
}

impl Machine {
    pub(crate) fn new(state: ClusterState) -> Self {
        Self { state, changes: 0 }
    }
}

impl Applied {
    /// Decodes an outcome that [`Machine::apply`] has encoded.
    pub(crate) fn from_outcome(bytes: &[u8]) -> Result<Self> {
        let ((code, context), (outcome, starts)) = AppliedRecord::from_bytes(bytes)?;
        let result = match ErrorCode::from_number(code) {
            None => Ok(outcome),
            Some(code) => Err(Error::new(code, context)),
        };
        Ok(Self { result, starts })
    }
}

impl StateMachine for Machine {
    fn apply(&mut self, _: LogPosition, command: &[u8]) -> Result<Vec<u8>> {
        let proposal = Proposal::from_bytes(command).map_err(|error| {
            let what = format!(
                "cannot read a change in the log of management: {error}; a management node with a \
                 newer version of Skep wrote this change: install that version on this host"
            );
            Error::new(ErrorCode::Unsupported, what)
        })?;
        let result = self.state.execute(&proposal);
        self.changes += u64::from(result.as_ref().is_ok_and(|outcome| outcome.changed));
        let starts = self.state.starts();
        let record: AppliedRecord = match result {
            Ok(outcome) => ((0, String::new()), (outcome, starts)),
            Err(error) => {
                let context = error.context().to_owned();
                ((error.code() as u16, context), (Outcome::default(), starts))
            }
        };
        Ok(record.to_bytes())
    }

    fn snapshot(&self) -> Vec<u8> {
        self.state.snapshot()
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        self.state = decode_state(state)?;
        self.changes += 1;
        Ok(())
    }
}

/// Decodes a snapshot whose checksum the caller has verified.
///
/// # Errors
/// - `Corrupt` if the snapshot has another layout. The error names the version that wrote the
///   snapshot, if known.
/// - `VersionMismatch` if the cluster has a newer feature level than this program.
pub(crate) fn decode_state(snapshot: &[u8]) -> Result<ClusterState> {
    let state = ClusterState::from_snapshot(snapshot).map_err(|error| {
        let versions = versions_in_snapshot(snapshot);
        let writer = match &versions[..] {
            [] => "an unknown version of this program".to_owned(),
            [own] if own == PROGRAM_VERSION => format!("another build of version {own}"),
            others => format!("version {}", others.join(" or ")),
        };
        let what = format!(
            "cannot read the state of management: {writer} has written it, and this program, \
             version {PROGRAM_VERSION}, stores other fields; start management with the program \
             that wrote the state, since versions before the first release do not read the states \
             of other versions ({error})"
        );
        Error::new(error.code(), what)
    })?;
    state.map().check_feature_level()?;
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_cluster::Command;
    use skep_types::registration::ServerRegistration;
    use skep_types::{ClusterId, NEWEST_FEATURE_LEVEL, NodeId, NodeKind};

    const FIRST: LogPosition = LogPosition { term: 1, leader: 1, index: 1 };

    fn apply(machine: &mut Machine, command: Command) -> Applied {
        let outcome = machine.apply(FIRST, &Proposal::from(command).to_bytes()).unwrap();
        Applied::from_outcome(&outcome).unwrap()
    }

    #[test]
    fn command_outcome_has_the_number_of_management_starts() {
        let mut machine = Machine::new(ClusterState::new(ClusterId::new([7; 16])));
        let first = apply(&mut machine, Command::Start);
        assert!(first.result.unwrap().changed);
        let second = apply(&mut machine, Command::Start);
        assert_eq!((first.starts, second.starts, machine.changes), (1, 2, 2));
        let refused = apply(&mut machine, Command::Format).result.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::NotReady);
        assert!(refused.context().contains("no metadata target"), "{refused}");
        assert_eq!(machine.changes, 2);
    }

    /// Returns a snapshot as a build wrote it before the last four settings were added. A
    /// management node of version `version` is registered in it.
    fn snapshot_with_fewer_settings(version: &str) -> Vec<u8> {
        let mut machine = Machine::new(ClusterState::new(ClusterId::new([7; 16])));
        let registration = ServerRegistration {
            node: NodeId::default(),
            uuid: u128::MAX,
            kind: NodeKind::Management,
            name: "management-1".into(),
            addresses: vec!["10.0.0.1:7400".into()],
            domain: None,
            version: version.into(),
            targets: Vec::new(),
        };
        apply(&mut machine, Command::RegisterServer(registration)).result.unwrap();
        let mut snapshot = machine.snapshot();
        let policy = machine.state.map().policy.to_bytes();
        let begin = snapshot.windows(policy.len()).position(|it| it == policy).unwrap();
        let end = begin + policy.len();
        snapshot.drain(end - 18..end);
        snapshot
    }

    #[test]
    fn restore_error_names_the_version_that_wrote_the_state() {
        let mut machine = Machine::new(ClusterState::new(ClusterId::new([7; 16])));
        let error = machine.restore(&snapshot_with_fewer_settings("0.0.7")).unwrap_err();
        for part in ["version 0.0.7 has", PROGRAM_VERSION, "start management with the program"] {
            assert!(error.context().contains(part), "{part}: {error}");
        }
        let of_own = machine.restore(&snapshot_with_fewer_settings(PROGRAM_VERSION)).unwrap_err();
        assert!(of_own.context().contains("another build of version"), "{of_own}");
        let unknown = machine.restore(&[0; 3]).unwrap_err();
        assert!(unknown.context().contains("an unknown version of this program"), "{unknown}");
    }

    #[test]
    fn state_of_a_newer_feature_level_is_refused() {
        let mut machine = Machine::new(ClusterState::new(ClusterId::new([7; 16])));
        apply(&mut machine, Command::Start).result.unwrap();
        let mut snapshot = machine.snapshot();
        machine.restore(&snapshot).unwrap();
        // A snapshot begins with the id of the cluster, the version of the map and the level.
        let map = machine.state.map();
        let begin = map.cluster.to_bytes().len() + map.version.to_bytes().len();
        let level = &mut snapshot[begin..begin + 4];
        assert_eq!(level, map.feature_level.to_bytes());
        level.copy_from_slice(&(NEWEST_FEATURE_LEVEL + 1).to_bytes());
        let error = machine.restore(&snapshot).unwrap_err();
        assert_eq!(error.code(), ErrorCode::VersionMismatch);
        assert!(error.context().contains("this program reads records up to level"), "{error}");
    }

    #[test]
    fn unknown_command_of_a_newer_version_is_an_error() {
        let mut machine = Machine::new(ClusterState::new(ClusterId::new([7; 16])));
        let error = machine.apply(FIRST, &[0xff; 30]).unwrap_err();
        assert!(error.context().contains("install that version"), "{error}");
    }
}
