//! Runs the client with a small fake cluster in this process, over real sockets, with injected
//! faults. The tests of `skep-testkit` run the client with real services.

#![allow(clippy::unwrap_used, reason = "a test that panics fails")]

mod data;
mod fakes;
mod first_bytes;
mod killed_appends;
mod late_opens;
mod lost_chunk_files;
mod lost_locks;
mod lost_opens;
mod lost_sessions;
mod lost_truncations;
mod management;
mod moved_inline;
mod names;
mod opened_bytes;
mod renewals;
mod reverted;
mod sessions;
mod shared;
mod sizes;
mod syncs;
mod truncations;
mod unmounts;

use fakes::FakeCluster;
use skep_client::{
    Client, CreateRequest, Created, FileLock, HandleId, LOCK_END, LockKind, LockMode, Mount,
    MountOptions, NewInode, OpenMode, Opens, Reads, SetAttributes, Writes,
};
use skep_env::{Buf, Task};
use skep_types::{FileKind, InodeId};
use skep_wire::Request;
use skep_wire::metadata::CompareOpens;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// How long a test waits for an expected event.
const DEADLINE: Duration = Duration::from_secs(20);

/// Runs a test against a new fake cluster with one client.
fn with_client<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(FakeCluster, Client) -> F + 'static,
) {
    with_fake(|fake| async move {
        let client = mount(&fake).await;
        test(fake, client).await;
    });
}

fn with_fake<F: Future<Output = ()> + 'static>(test: impl FnOnce(FakeCluster) -> F + 'static) {
    let done =
        skep_env::block_on(async { skep_env::timeout(DEADLINE, test(FakeCluster::start())).await });
    assert_eq!(done.unwrap(), Some(()), "the test did not end within {DEADLINE:?}");
}

/// Starts a mount of the cluster, with its background work.
async fn mount(fake: &FakeCluster) -> Client {
    let mount = Mount::new(options(fake)).await.unwrap();
    skep_env::spawn(Arc::clone(&mount).run_background()).detach();
    Client::new(mount, 0).unwrap()
}

fn options(fake: &FakeCluster) -> MountOptions {
    MountOptions {
        cluster: fake.token.clone().into(),
        mount_point: "/mnt".into(),
        host: "here".into(),
        version: "0".into(),
        workers: 2,
        patience: Some(Duration::from_millis(500)),
        attribute_timeout: Duration::from_secs(1),
        log: skep_client::LogControl::default(),
        map_observer: skep_client::MapObserver::default(),
        metrics: skep_metrics::Registry::new(),
    }
}

/// Waits until a condition is true.
async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        skep_env::sleep(Duration::from_millis(1)).await;
    }
}

/// Begins an operation as a task, and waits until its first request of the type `R` has arrived.
/// The fake executes the requests of this type only after the test has reset `hold`.
async fn begin_held<R: Request, T: 'static>(
    fake: &FakeCluster,
    operation: impl Future<Output = T> + 'static,
) -> Task<T> {
    let sent = fake.count::<R>();
    fake.state.borrow_mut().hold = Some(R::ID);
    let task = skep_env::spawn(operation);
    until(|| fake.count::<R>() > sent).await;
    task
}

/// Begins an operation as a task, and waits until metadata has executed its first request of the
/// type `R`. The fake holds the reply to this request until the test has reset `is_held`.
async fn begin_late<R: Request, T: 'static>(
    fake: &FakeCluster,
    operation: impl Future<Output = T> + 'static,
) -> Task<T> {
    fake.state.borrow_mut().held_reply.of = Some(R::ID);
    let task = skep_env::spawn(operation);
    until(|| fake.state.borrow().held_reply.is_held).await;
    task
}

/// Lets the other tasks run, each for several steps or until it waits.
async fn let_tasks_run() {
    for _ in 0..20 {
        skep_env::yield_now().await;
    }
}

/// Waits until the mount has compared its changes after a power loss of metadata.
async fn until_changes_are_compared(fake: &FakeCluster) {
    // The lease renewal compares opens after it has compared the changes.
    until(|| fake.count::<CompareOpens>() > 0).await;
}

const NEW: NewInode = NewInode { permissions: 0o644, umask: 0, uid: 1, gid: 1 };

fn create_request(name: &str, exclusive: bool) -> CreateRequest {
    CreateRequest {
        directory: InodeId::ROOT,
        name: name.as_bytes().into(),
        kind: FileKind::Regular,
        new: NEW,
        device: 0,
        exclusive,
        open: OpenMode::Write,
        pattern: None,
    }
}

async fn create(client: &Client, name: &str) -> (InodeId, HandleId) {
    let Created { attributes, handle, created } =
        client.create(create_request(name, true)).await.unwrap();
    assert!(created);
    (attributes.inode, handle.unwrap())
}

/// Creates a file with these bytes.
async fn create_with(client: &Client, name: &str, data: &[u8]) -> (InodeId, HandleId) {
    let (inode, handle) = create(client, name).await;
    write(client, handle, 0, data).await;
    (inode, handle)
}

async fn read(client: &Client, handle: HandleId, offset: u64, len: usize) -> Vec<u8> {
    let into = Buf::new(len);
    into.write(0, &vec![0xEE; len]);
    let read = client.read(handle, offset, into.clone()).await.unwrap();
    into.bytes()[..read].to_vec()
}

async fn write(client: &Client, handle: HandleId, offset: u64, data: &[u8]) {
    client.write(handle, offset, Buf::copy_of(data)).await.unwrap();
}

/// Returns a request for an exclusive lock of a whole file.
fn whole_lock(kind: LockKind, owner: u64) -> FileLock {
    FileLock { kind, owner, mode: Some(LockMode::Exclusive), range: 0..LOCK_END, pid: 1 }
}

fn set_size(inode: InodeId, size: u64) -> SetAttributes {
    SetAttributes {
        inode,
        permissions: None,
        cleared_permissions: 0,
        uid: None,
        gid: None,
        project: None,
        hands_down_project: None,
        size: Some(size),
        accessed: None,
        modified: None,
    }
}

/// Returns a test pattern of bytes that depend on their offset.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 + at % 251) as u8).collect()
}
