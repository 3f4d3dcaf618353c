//! Tests the messages between a mount and management: registration, heartbeats and map updates.

use crate::{create, options, until, with_client};
use skep_client::{Mount, MountOptions, has_given_up};
use skep_types::{ErrorCode, MapVersion};
use skep_wire::management::{Heartbeat, Leave};

#[test]
fn idle_mount_receives_a_new_cluster_map() {
    with_client(|fake, client| async move {
        fake.state.borrow_mut().map.as_mut().unwrap().version = MapVersion::new(9);
        until(|| client.map().version == MapVersion::new(9)).await;
    });
}

#[test]
fn client_registers_again_after_its_removal_by_management() {
    with_client(|fake, client| async move {
        let _ = create(&client, "a").await;
        let before = client.mount().node();
        until(|| fake.count::<Heartbeat>() > 0).await;
        fake.state.borrow_mut().clients.clear();
        until(|| client.mount().node() != before).await;
        assert!(fake.state.borrow().clients.contains(&client.mount().node()));
        let _ = create(&client, "b").await;
    });
}

#[test]
fn error_for_an_unformatted_cluster_names_the_format_command() {
    with_client(|fake, _| async move {
        fake.state.borrow_mut().map.as_mut().unwrap().formatted = false;
        let clients = fake.state.borrow().clients.len();
        let error = Mount::new(options(&fake)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotReady);
        assert!(error.context().contains("skep cluster format"), "{error}");
        assert_eq!(
            fake.state.borrow().clients.len(),
            clients,
            "the client has left the cluster again"
        );
    });
}

#[test]
fn mount_without_time_limit_waits_until_cluster_is_formatted() {
    with_client(|fake, _| async move {
        fake.state.borrow_mut().map.as_mut().unwrap().formatted = false;
        let patient = MountOptions { patience: None, ..options(&fake) };
        let mounting = skep_env::spawn(Mount::new(patient));
        until(|| fake.count::<Leave>() > 0).await;
        fake.state.borrow_mut().map.as_mut().unwrap().formatted = true;
        mounting.await.unwrap();
    });
}

#[test]
fn silent_management_and_wrong_secret_give_different_errors() {
    with_client(|fake, _| async move {
        // A wrong secret is a permanent error, so the mount does not retry.
        let mut wrong = MountOptions { patience: None, ..options(&fake) };
        wrong.cluster.token.secrets = skep_rpc::Secrets::generate();
        let error = Mount::new(wrong).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::AuthenticationFailed);
        assert!(!has_given_up(&error));
        let mut nowhere = options(&fake);
        nowhere.cluster.addresses = vec!["127.0.0.1:1".into()];
        let error = Mount::new(nowhere).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Disconnected);
        assert!(error.context().ends_with("; gave up after 0.5 s"), "{error}");
        assert!(has_given_up(&error));
    });
}
