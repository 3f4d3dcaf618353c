//! Tests of commands at the authority: when a command is stored, and when its effect is published.

use super::*;

#[test]
fn total_capacity_is_unknown_until_a_new_target_has_reported() {
    let (_directory, settings, _) = cluster();
    block_on(async move {
        let running = RunningManagement::start(&settings).await.unwrap();
        let authority = &running.authority;
        authority.tick().await;
        assert_eq!(authority.total_capacity(), Some(Capacity::default()));
        let RegisterServer { server, capacities, .. } = server(NodeKind::Storage, 10);
        let outcome = authority.propose(&Command::RegisterServer(server).into()).await.unwrap();
        assert_eq!(
            authority.total_capacity(),
            None,
            "the target has not reported its capacity yet"
        );
        authority.note_alive(outcome.node, &[(outcome.targets[0], capacities[0])]);
        assert_eq!(authority.total_capacity(), Some(capacities[0]));
    });
}

/// Regression test: management logged and synced each command, even if the command changed nothing.
#[test]
fn command_that_changes_nothing_is_not_stored() {
    let (_directory, settings, _) = cluster();
    block_on(async move {
        let running = RunningManagement::start(&settings).await.unwrap();
        let authority = &running.authority;
        let policy = Policy { metadata_copies: 2, ..Policy::default() };
        let command = Command::SetPolicy(policy);
        assert!(authority.propose(&command.clone().into()).await.unwrap().changed);
        let stored = authority.member().status().last;
        for _ in 0..3 {
            assert!(!authority.propose(&command.clone().into()).await.unwrap().changed);
            authority.propose(&Command::Format.into()).await.unwrap_err();
        }
        assert_eq!(authority.member().status().last, stored);
    });
}
