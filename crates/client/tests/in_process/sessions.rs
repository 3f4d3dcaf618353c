//! Tests sessions: exactly-once execution, lost replies, lost sessions, interrupted callers and
//! parallel operations.

use crate::fakes::LEASE_MS;
use crate::{
    FakeCluster, NEW, bytes, create, create_request, create_with, options, read, until,
    with_client, write,
};
use skep_client::{
    Client, Closes, InodeAttributes, Mount, Names, OpenMode, Opens, Patterns, Reads,
};
use skep_types::{ErrorCode, InodeId};
use skep_wire::Request;
use skep_wire::metadata::{
    Close, CloseMany, Create, Exchange, KeepAlive, MakeDirectory, OpenSession, SetPattern, SyncAll,
    Unlink,
};
use std::sync::Arc;
use std::time::Duration;

/// Without this close, metadata would count the open until the end of the session.
#[test]
fn an_open_with_an_unusable_reply_is_closed_at_metadata() {
    with_client(|fake, client| async move {
        let (inode, handle) = create(&client, "a").await;
        client.close(handle).await.unwrap();
        let opens = || fake.with_metadata(1, |it| it.open_count());
        until(|| opens() == 0).await;
        // A pattern with one inline byte is invalid, so the client cannot use the reply.
        fake.with_metadata(1, |it| it.behaviour.inline_bytes = 1);
        assert!(client.open(inode, OpenMode::Write, false).await.is_err());
        assert_eq!(opens(), 1, "metadata has opened the file");
        until(|| opens() == 0).await;
    });
}

/// docs/semantics.md 4.3.
#[test]
fn repeated_request_gets_the_lost_reply_and_runs_only_once() {
    with_client(|fake, client| async move {
        for (number, message) in [Create::ID, MakeDirectory::ID, Unlink::ID].iter().enumerate() {
            fake.state.borrow_mut().lose_reply_of = Some(*message);
            let (file, directory) = (format!("f{number}"), format!("d{number}"));
            create(&client, &file).await;
            client.make_directory(InodeId::ROOT, directory.as_bytes(), NEW).await.unwrap();
            client.unlink(InodeId::ROOT, file.as_bytes()).await.unwrap();
            assert!(fake.state.borrow().lose_reply_of.is_none());
        }
        assert_eq!(fake.with_metadata(1, |it| it.executed.len()), 9);
    });
}

#[test]
fn more_parallel_operations_than_slots_all_complete() {
    with_client(|fake, client| async move {
        let tasks: Vec<_> = (0..500)
            .map(|number| {
                let client = client.clone();
                skep_env::spawn(async move {
                    let (_, handle) = create(&client, &format!("f{number}")).await;
                    client.close(handle).await.unwrap();
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        until(|| fake.with_metadata(1, |it| it.open_count()) == 0).await;
        assert_eq!(fake.count::<Create>(), 500);
    });
}

/// docs/semantics.md 4.6.
#[test]
fn new_session_reopens_files_but_removed_files_are_stale() {
    with_client(|fake, client| async move {
        let (_, reopened) = create_with(&client, "kept", b"data").await;
        let (_, removed) = create_with(&client, "removed", b"data").await;
        client.unlink(InodeId::ROOT, b"removed").await.unwrap();
        fake.with_metadata(1, |it| {
            it.forget_sessions();
            it.inodes.retain(|_, inode| {
                inode.attributes.inode == InodeId::ROOT
                    || it.entries.values().any(|id| *id == inode.attributes.inode)
            });
        });
        client.lookup(InodeId::ROOT, b"kept").await.unwrap();
        assert_eq!(fake.with_metadata(1, |it| it.open_count()), 1);
        assert_eq!(read(&client, reopened, 0, 10).await, b"data");
        write(&client, reopened, 4, b"!").await;
        client.close(reopened).await.unwrap();
        assert_eq!(client.lookup(InodeId::ROOT, b"kept").await.unwrap().size, 5);
        let error = client.read(removed, 0, skep_env::Buf::new(10)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Stale);
        assert!(error.context().contains("was removed"), "{error}");
        client.close(removed).await.unwrap();
        until(|| fake.with_metadata(1, |it| it.open_count()) == 0).await;
    });
}

/// An open for writing may wait until sessions have acknowledged that the file becomes shared. If
/// metadata already had an open of the same session for reading, the open for writing would wait
/// for its own mount.
#[test]
fn session_renewal_reopens_files_open_for_writing_first() {
    with_client(|fake, client| async move {
        let (inode, _) = create(&client, "a").await;
        for _ in 0..20 {
            let _ = client.open(inode, OpenMode::Read, false).await.unwrap();
        }
        let _ = client.open(inode, OpenMode::Write, false).await.unwrap();
        fake.with_metadata(1, |it| {
            it.forget_sessions();
            it.opened.clear();
        });
        client.lookup(InodeId::ROOT, b"a").await.unwrap();
        let opened = fake.with_metadata(1, |it| it.opened.clone());
        assert_eq!((opened.len(), &opened[..2]), (22, &[OpenMode::Write; 2][..]));
    });
}

/// Metadata closes the file when the session is lost, so another client may set the stripe pattern
/// of the empty file.
#[test]
fn pattern_change_during_a_lost_session_makes_file_stale() {
    with_client(|fake, client| async move {
        let (inode, handle) = create(&client, "file").await;
        fake.with_metadata(1, |it| {
            it.forget_sessions();
            it.generation = 2;
        });
        client.lookup(InodeId::ROOT, b"file").await.unwrap();
        let error = client.read(handle, 0, skep_env::Buf::new(10)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Stale);
        client.close(handle).await.unwrap();
        let again = client.open(inode, OpenMode::Write, false).await.unwrap().handle;
        write(&client, again, 0, b"data").await;
        assert_eq!(read(&client, again, 0, 10).await, b"data");
        client.close(again).await.unwrap();
        until(|| fake.with_metadata(1, |it| it.open_count()) == 0).await;
    });
}

#[test]
fn file_is_closed_at_metadata_even_if_its_session_was_lost() {
    with_client(|fake, client| async move {
        let (_, handle) = create(&client, "a").await;
        fake.forget_sessions(1);
        client.close(handle).await.unwrap();
        until(|| fake.count::<CloseMany>() == 2).await;
        until(|| fake.with_metadata(1, |it| it.open_count()) == 0).await;
        let (_, handle) = create_with(&client, "b", b"x").await;
        fake.forget_sessions(1);
        client.close(handle).await.unwrap();
        assert_eq!(fake.count::<Close>(), 2);
        assert_eq!(fake.with_metadata(1, |it| it.open_count()), 0);
    });
}

#[test]
fn closes_without_size_reports_are_sent_in_batches() {
    with_client(|fake, client| async move {
        for number in 0..50 {
            let (_, handle) = create(&client, &format!("f{number}")).await;
            client.close(handle).await.unwrap();
            let error = client.read(handle, 0, skep_env::Buf::new(1)).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::Stale);
        }
        until(|| fake.with_metadata(1, |it| it.open_count()) == 0).await;
        assert_eq!(fake.count::<Close>(), 0);
        assert!(fake.count::<CloseMany>() < 50);
    });
}

/// The kernel sends the release of a file after `close(2)` has returned to the program.
#[test]
fn set_pattern_waits_for_a_close_of_the_same_mount() {
    with_client(|fake, client| async move {
        let (inode, handle) = create(&client, "a").await;
        let error = client.set_pattern(inode, None, 0).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InUse, "the file stays open");
        let setting = {
            let client = client.clone();
            skep_env::spawn(async move { client.set_pattern(inode, None, 0).await })
        };
        // Let the new task run until it waits for the open file.
        skep_env::yield_now().await;
        client.close(handle).await.unwrap();
        setting.await.unwrap();
        assert_eq!(fake.count::<SetPattern>(), 2, "each call sends one request");
    });
}

#[test]
fn idle_mount_replaces_a_lost_session() {
    with_client(|fake, client| async move {
        let _ = create(&client, "a").await;
        fake.forget_sessions(1);
        until(|| fake.with_metadata(1, |it| it.open_count()) == 1).await;
        assert_eq!(fake.count::<OpenSession>(), 2);
    });
}

#[test]
fn idle_mount_renews_its_session_in_the_background() {
    with_client(|fake, client| async move {
        let _ = create(&client, "a").await;
        until(|| fake.count::<KeepAlive>() >= 2).await;
    });
}

#[test]
fn unexecuted_request_is_repeated_in_the_new_session() {
    with_client(|fake, client| async move {
        let _ = create(&client, "a").await;
        fake.forget_sessions(1);
        let error = client.make_directory(InodeId::ROOT, b"a", NEW).await.unwrap_err();
        assert_eq!(
            error.code(),
            ErrorCode::Exists,
            "the reply to the repeated request is the outcome"
        );
        fake.forget_sessions(1);
        client.make_directory(InodeId::ROOT, b"b", NEW).await.unwrap();
    });
}

/// Makes metadata execute the next request with the message id `message`, and lose the reply and
/// the session.
async fn lose_reply_and_session(fake: &FakeCluster, message: u16) {
    let before = fake.with_metadata(1, |it| it.executed.len());
    fake.state.borrow_mut().lose_reply_of = Some(message);
    until(|| fake.with_metadata(1, |it| it.executed.len()) > before).await;
    fake.forget_sessions(1);
}

/// docs/semantics.md 4.3. If the client repeated the unlink in its next session, the unlink would
/// remove the file that another client has created meanwhile.
#[test]
fn unlink_with_a_lost_reply_keeps_a_newer_file_of_the_same_name() {
    with_client(|fake, client| async move {
        let root = InodeId::ROOT;
        let (old, _) = create(&client, "lock").await;
        let unlinking = client.clone();
        let task = skep_env::spawn(async move { unlinking.unlink(root, b"lock").await });
        lose_reply_and_session(&fake, Unlink::ID).await;
        // Another client creates the lock file again.
        let new = fake.with_metadata(1, |it| it.make_file(b"lock"));
        task.await.unwrap();
        let found = client.lookup(root, b"lock").await.unwrap().inode;
        assert!(found == new && found != old, "{found} {new} {old}");
        assert_eq!(fake.count::<Unlink>(), 2, "the second attempt was refused with the session");
    });
}

/// docs/semantics.md 4.3.
#[test]
fn create_with_a_lost_reply_opens_the_file_that_it_created() {
    with_client(|fake, client| async move {
        for (name, exclusive) in [("one", true), ("two", false)] {
            let _ = create(&client, &format!("{name} before")).await;
            let creating = client.clone();
            let task =
                skep_env::spawn(
                    async move { creating.create(create_request(name, exclusive)).await },
                );
            lose_reply_and_session(&fake, Create::ID).await;
            let created = task.await.unwrap();
            assert!(created.created);
            write(&client, created.handle.unwrap(), 0, b"data").await;
            let found = client.lookup(InodeId::ROOT, name.as_bytes()).await.unwrap();
            assert_eq!(found.inode, created.attributes.inode);
        }
        // After the renewal, the client has the files of the lost sessions open again, and also
        // both new files.
        until(|| fake.with_metadata(1, |it| it.open_count()) == 4).await;
    });
}

/// docs/semantics.md 4.3: metadata has also deleted the record of the lost session.
#[test]
fn operation_with_an_unknown_outcome_returns_an_error() {
    with_client(|fake, client| async move {
        let root = InodeId::ROOT;
        create(&client, "a").await;
        fake.with_metadata(1, |it| it.behaviour.has_forgotten_ends = true);
        let unlinking = client.clone();
        let task = skep_env::spawn(async move { unlinking.unlink(root, b"a").await });
        lose_reply_and_session(&fake, Unlink::ID).await;
        let new = fake.with_metadata(1, |it| it.make_file(b"a"));
        let error = task.await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Io);
        assert!(error.context().contains("whether Unlink was executed"), "{error}");
        assert_eq!(client.lookup(root, b"a").await.unwrap().inode, new);
    });
}

/// docs/semantics.md 4.3: a service still has its sessions after it was killed and has started
/// again.
#[test]
fn repeated_request_in_the_same_session_gets_the_same_reply() {
    with_client(|fake, client| async move {
        let root = InodeId::ROOT;
        create(&client, "a").await;
        fake.state.borrow_mut().lose_reply_of = Some(Unlink::ID);
        let missing = client.unlink(root, b"missing").await.unwrap_err();
        assert_eq!(missing.code(), ErrorCode::NotFound, "{missing}");
        fake.state.borrow_mut().lose_reply_of = Some(Unlink::ID);
        client.unlink(root, b"a").await.unwrap();
    });
}

/// docs/semantics.md 4.3.
#[test]
fn rename_exchange_with_a_lost_session_is_executed_once() {
    with_client(|fake, client| async move {
        let (a, _) = create(&client, "a").await;
        let (b, _) = create(&client, "b").await;
        let root = InodeId::ROOT;
        client.exchange(root, b"a", root, b"b").await.unwrap();
        assert_eq!(client.lookup(root, b"a").await.unwrap().inode, b);
        let exchanging = client.clone();
        let task =
            skep_env::spawn(async move { exchanging.exchange(root, b"a", root, b"b").await });
        lose_reply_and_session(&fake, Exchange::ID).await;
        task.await.unwrap();
        assert_eq!(
            client.lookup(root, b"a").await.unwrap().inode,
            a,
            "metadata executed the exchange once"
        );
        // Metadata refuses this request before it executes the request, so the client repeats it.
        fake.forget_sessions(1);
        client.exchange(root, b"a", root, b"b").await.unwrap();
    });
}

#[test]
fn dropped_create_leaves_no_open_file() {
    with_client(|fake, client| async move {
        let _ = create(&client, "before").await;
        fake.state.borrow_mut().hold = Some(Create::ID);
        let dropped = client.create(create_request("a", true));
        assert!(skep_env::timeout(Duration::from_millis(5), dropped).await.is_none());
        fake.state.borrow_mut().hold = None;
        until(|| fake.count::<CloseMany>() == 1).await;
        until(|| fake.with_metadata(1, |it| it.open_count()) == 1).await;
        // The slot of the dropped request can be used again.
        let (_, handle) = create(&client, "b").await;
        client.close(handle).await.unwrap();
    });
}

#[test]
fn missing_bytes_are_an_error_if_the_lease_may_have_expired() {
    with_client(|fake, _| async move {
        // This mount has no background work, so no task renews the session.
        let unrenewed = Client::new(Mount::new(options(&fake)).await.unwrap(), 0).unwrap();
        let (inode, handle) = create_with(&unrenewed, "a", &bytes(100)).await;
        fake.with_metadata(1, |it| {
            it.forget_sessions();
            it.entries.clear();
            it.inodes.remove(&inode);
        });
        fake.each_storage(|storage| storage.files.clear());
        let end = skep_env::now() + Duration::from_millis(u64::from(LEASE_MS));
        until(|| skep_env::now() > end).await;
        let error = unrenewed.read(handle, 0, skep_env::Buf::new(100)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Stale, "the read returns no zeros");
    });
}

#[test]
fn workers_share_handles_but_have_their_own_slots() {
    with_client(|fake, first| async move {
        let second = Client::new(Arc::clone(first.mount()), 1).unwrap();
        assert!(Client::new(Arc::clone(first.mount()), 1).is_err());
        assert!(Client::new(Arc::clone(first.mount()), 3).is_err());
        let (inode, handle) = create_with(&first, "a", b"from the first").await;
        assert_eq!(read(&second, handle, 0, 100).await, b"from the first");
        second.close(handle).await.unwrap();
        let opened = second.open(inode, OpenMode::Read, false).await.unwrap();
        first.close(opened.handle).await.unwrap();
        assert_eq!(fake.with_metadata(1, |it| it.session_count()), 1);
        fake.forget_sessions(1);
        let (a, b) = (first.clone(), second.clone());
        let tasks = [
            skep_env::spawn(async move { create(&a, "x").await }),
            skep_env::spawn(async move { create(&b, "y").await }),
        ];
        for task in tasks {
            task.await;
        }
        assert_eq!(fake.with_metadata(1, |it| it.session_count()), 1);
    });
}

#[test]
fn requests_of_two_threads_of_one_mount_run_in_parallel() {
    // The fake cluster and each of the two workers run on their own threads.
    let (tokens, token) = std::sync::mpsc::channel();
    let (stop, stopped) = skep_env::Mailbox::new(1).unwrap();
    let servers = std::thread::spawn(move || {
        skep_env::block_on(async move {
            let fake = FakeCluster::start();
            tokens.send(fake.token.clone()).unwrap();
            stopped.receive().await.unwrap();
            fake.with_metadata(1, |it| (it.entries.len(), it.open_count()))
        })
    });
    let token = token.recv().unwrap();
    let mount = skep_env::block_on(async move {
        Mount::new(skep_client::MountOptions {
            cluster: token.into(),
            mount_point: "/mnt".into(),
            host: "here".into(),
            version: "0".into(),
            workers: 2,
            patience: Some(Duration::from_secs(5)),
            attribute_timeout: Duration::from_secs(1),
            log: skep_client::LogControl::default(),
            map_observer: skep_client::MapObserver::default(),
            metrics: skep_metrics::Registry::new(),
        })
        .await
    });
    let mount = mount.unwrap().unwrap();
    let workers: Vec<_> = (0..2)
        .map(|index| {
            let mount = Arc::clone(&mount);
            std::thread::spawn(move || {
                skep_env::block_on(async move {
                    let client = Client::new(mount, index).unwrap();
                    for number in 0..200 {
                        let (_, handle) = create(&client, &format!("{index}-{number}")).await;
                        write(&client, handle, 0, b"x").await;
                        client.close(handle).await.unwrap();
                    }
                })
            })
        })
        .collect();
    for worker in workers {
        worker.join().unwrap().unwrap();
    }
    stop.send(()).unwrap();
    assert_eq!(servers.join().unwrap().unwrap(), (400, 0));
}

#[test]
fn shutdown_reports_writes_and_ends_sessions_and_registration() {
    with_client(|fake, other| async move {
        let ending = Mount::new(options(&fake)).await.unwrap();
        let background = skep_env::spawn(Arc::clone(&ending).run_background());
        let client = Client::new(ending, 0).unwrap();
        let (inode, _) = create_with(&client, "a", b"abc").await;
        client.shutdown().await.unwrap();
        assert!(fake.count::<SyncAll>() > 0, "no client will repeat the changes (hole H52)");
        assert_eq!(fake.with_metadata(1, |it| it.session_count()), 0);
        assert_eq!(other.attributes(inode).await.unwrap().size, 3);
        background.await;
        assert_eq!(fake.state.borrow().clients.len(), 1, "no heartbeat registers the client again");
    });
}
