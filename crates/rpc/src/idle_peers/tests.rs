//! Tests of idle connections of one thread to itself, over real sockets. Each test runs on its own
//! thread, so each test has its own list of connections.

use super::*;
use crate::server::{IncomingStream, Outbox};
use skep_env::{Buf, MessagePart, Task, TcpListener, TcpStream, block_on, spawn};
use skep_types::{NodeKind, Result};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::management::EmptyReply;
use skep_wire::metadata::SyncAll;

const PATIENCE: Duration = Duration::from_secs(20);

/// A served connection, and its other end.
struct Served {
    requests: IncomingStream,
    outbox: Rc<Outbox>,
    client: TcpStream,
}

async fn connect(listener: &TcpListener, kind: NodeKind) -> Served {
    let address = listener.local_address().unwrap().to_string();
    let client = TcpStream::connect(&address).await.unwrap();
    let stream = listener.accept().await.unwrap();
    let (requests, outbox) = IncomingStream::new(stream, kind);
    Served { requests, outbox, client }
}

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// Spawns a task that receives a request, and waits until the connection counts as idle. The task
/// returns whether a request has arrived.
async fn receive(mut requests: IncomingStream, outbox: &Outbox) -> Task<Result<bool>> {
    let task = spawn(async move { Ok(requests.next().await?.is_some()) });
    let idle = async {
        while outbox.peer_use().idle_since().is_none() {
            skep_env::yield_now().await;
        }
    };
    skep_env::timeout(PATIENCE, idle).await.expect("the connection becomes idle within PATIENCE");
    task
}

async fn send_request(client: &TcpStream) {
    let header = Header { message: SyncAll::ID, tag: 1, ..Header::default() };
    client.send(vec![MessagePart::Bytes(header.frame(&SyncAll {}, 0))]).await.unwrap();
}

fn end_oldest(now: Duration) -> usize {
    SERVED.with_borrow_mut(|served| served.end_oldest(now))
}

/// Returns a time at which connections that are idle now may end.
fn late() -> Duration {
    skep_env::now() + IDLE_PEER_AGE
}

#[test]
fn oldest_idle_connections_of_clients_end_first() {
    block_on(async {
        let listener = listen();
        let mut all = Vec::new();
        for _ in 0..3 * IDLE_PEER_SHARE {
            let Served { requests, outbox, client } = connect(&listener, NodeKind::Client).await;
            let task = receive(requests, &outbox).await;
            all.push((outbox, client, task));
        }
        let service = connect(&listener, NodeKind::Metadata).await;
        let _receiving = receive(service.requests, &service.outbox).await;
        assert_eq!(end_oldest(skep_env::now()), 0, "no connection is old enough");
        assert_eq!(end_oldest(late()), 3);
        for (index, (outbox, ..)) in all.iter().enumerate() {
            assert_eq!(outbox.peer_use().idle_since().is_none(), index < 3, "connection {index}");
        }
        for (_, client, task) in all.drain(..3) {
            assert_eq!(skep_env::timeout(PATIENCE, task).await, Some(Ok(false)));
            let got = skep_env::timeout(PATIENCE, client.receive(Buf::new(1))).await;
            assert_eq!(got.unwrap().unwrap(), 0, "the client gets the end of the stream");
        }
        assert!(service.outbox.peer_use().idle_since().is_some());
        assert_eq!(end_oldest(late()), 3);
    })
    .unwrap();
}

/// A request without a reply may wait for a lock of another client, so its connection must stay.
#[test]
fn connection_with_an_unanswered_request_does_not_end() {
    block_on(async {
        let mut served = connect(&listen(), NodeKind::Client).await;
        send_request(&served.client).await;
        let received = skep_env::timeout(PATIENCE, served.requests.next()).await;
        let incoming = received.unwrap().unwrap().unwrap();
        assert_eq!(end_oldest(late()), 0);
        served.outbox.reply(&incoming.header, &EmptyReply {});
        assert_eq!(end_oldest(late()), 0, "the target does not wait for a request yet");
        let next = receive(served.requests, &served.outbox).await;
        assert_eq!(end_oldest(late()), 1);
        assert_eq!(skep_env::timeout(PATIENCE, next).await, Some(Ok(false)));
    })
    .unwrap();
}

/// The service may drop the request, because the client sends it again on another connection.
#[test]
fn request_in_flight_when_its_connection_ends_is_dropped() {
    block_on(async {
        let mut served = connect(&listen(), NodeKind::Client).await;
        send_request(&served.client).await;
        // The request is in the buffer of the socket, and the kernel still returns the bytes of
        // this buffer.
        served.outbox.peer_use().end();
        let received = skep_env::timeout(PATIENCE, served.requests.next()).await.unwrap();
        assert!(received.is_ok_and(|incoming| incoming.is_none()));
    })
    .unwrap();
}

#[test]
fn list_of_connections_does_not_grow_with_ended_connections() {
    block_on(async {
        let listener = listen();
        let _kept = connect(&listener, NodeKind::Client).await;
        for _ in 0..10 * FEW {
            drop(connect(&listener, NodeKind::Client).await);
        }
        let len = SERVED.with_borrow(|served| served.all.len());
        assert!((1..=2 * FEW).contains(&len), "{len}");
    })
    .unwrap();
}

/// The thread that accepts connections does not serve them, so it must wake all serving threads.
#[test]
fn each_thread_ends_idle_connections_on_request() {
    let serve = || {
        std::thread::spawn(|| {
            block_on(async {
                let mut served = connect(&listen(), NodeKind::Client).await;
                served.outbox.peer_use().used_at.set(Duration::ZERO);
                skep_env::timeout(PATIENCE, served.requests.next()).await.is_some()
            })
        })
    };
    let before = ended();
    let threads = [serve(), serve()];
    while !threads.iter().all(std::thread::JoinHandle::is_finished) {
        need_connections();
        std::thread::yield_now();
    }
    for thread in threads {
        assert!(thread.join().unwrap().unwrap(), "the connection has ended");
    }
    assert!(ended() >= before + 2);
}
