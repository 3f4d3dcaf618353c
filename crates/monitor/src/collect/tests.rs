//! Rounds of the monitor against a simulated management and a simulated storage service.

use super::*;
use skep_env::{TcpListener, block_on, spawn};
use skep_rpc::server::{IncomingStream, authenticate};
use skep_rpc::{Incoming, Outbox, Secrets};
use skep_wire::Request;
use skep_wire::management::MapUpdate;
use skep_wire::node::Statistics;
use std::cell::Cell;

fn cluster() -> ClusterId {
    ClusterId::new([1; 16])
}

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_address().unwrap().to_string();
    (listener, address)
}

/// Called with each request, and with the connection on which the service may reply.
type Replies = Rc<dyn Fn(&Incoming, &Rc<Outbox>)>;

/// Accepts connections for ever, and calls `reply` with each request.
async fn serve(listener: TcpListener, identity: Identity, reply: Replies) {
    while let Ok(stream) = listener.accept().await {
        let (identity, reply) = (identity.clone(), Rc::clone(&reply));
        spawn(async move {
            let peer = authenticate(&stream, &identity, 1, |_| Ok(())).await.unwrap();
            let (mut requests, outbox) = IncomingStream::new(stream, peer.kind);
            while let Ok(Some(incoming)) = requests.next().await {
                reply(&incoming, &outbox);
            }
        })
        .detach();
    }
}

/// Returns a map with one storage service at `address`.
fn map(address: &str) -> ClusterMap {
    let mut map = ClusterMap::empty(cluster());
    map.version = MapVersion::new(5);
    let node = Node::online(NodeId::new(2), NodeKind::Storage, "storage-1");
    map.nodes.push(Node { addresses: vec![address.to_owned()], ..node });
    map
}

/// Starts both services. Management replies while `answers` is true. Returns a collector for the
/// cluster.
fn start(answers: &Rc<Cell<bool>>) -> Collector {
    let secrets = Secrets::generate();
    let identity = |node, kind| {
        let (secrets, node) = (secrets.clone(), NodeId::new(node));
        Identity { cluster: cluster(), secrets, node, kind }
    };
    let (of_management, management) = listener();
    let (of_storage, storage) = listener();
    let (answers, map) = (Rc::clone(answers), map(&storage));
    let with_map = move |Incoming { header, .. }: &Incoming, outbox: &Rc<Outbox>| {
        assert_eq!(header.message, GetMap::ID);
        if answers.get() {
            outbox.reply(header, &MapUpdate { map: Some(map.clone()) });
        }
    };
    let with_figures = |Incoming { header, .. }: &Incoming, outbox: &Rc<Outbox>| {
        assert_eq!(header.message, GetStatistics::ID);
        let (page, series) = (String::new(), Vec::new());
        outbox.reply(header, &Statistics { moment_ns: 1, incarnation: 2, page, series });
    };
    let (one, two) = (identity(1, NodeKind::Management), identity(2, NodeKind::Storage));
    spawn(serve(of_management, one, Rc::new(with_map))).detach();
    spawn(serve(of_storage, two, Rc::new(with_figures))).detach();
    let addresses = vec![management];
    Collector::new(&JoinToken { cluster: cluster(), secrets, addresses })
}

#[test]
fn rounds_stay_short_while_management_is_silent() {
    let rounds = async {
        let answers = Rc::new(Cell::new(true));
        let mut collector = start(&answers);
        let first = collector.collect().await;
        assert_eq!((first.round.len(), &first.map_problem), (1, &None));
        answers.set(false);
        let begin = skep_env::now();
        let mut problems = Vec::new();
        // The request for the map fails after 2 s, so one of these rounds reports the problem.
        // Each round waits for the map for less than a second.
        for _ in 0..6 {
            let begin = skep_env::now();
            let collected = collector.collect().await;
            let took = skep_env::now().saturating_sub(begin);
            assert!(took < MAP_PATIENCE, "a round lasted {took:?}");
            assert_eq!(collected.round.len(), 1, "the service replies in each round");
            assert!(collected.map.is_some(), "the monitor keeps the last map");
            problems.extend(collected.map_problem);
        }
        let took = skep_env::now().saturating_sub(begin);
        assert!(took < 6 * Duration::from_millis(1_500), "six rounds lasted {took:?}");
        let [first, .., last] = &problems[..] else { panic!("{problems:?}") };
        assert!(first.contains("; the last reply arrived at 20"), "{first}");
        assert_eq!(first, last, "the text does not change during the outage");
        answers.set(true);
        // Retry: the request that management has ignored must end before the next request. Six
        // rounds take longer than the time limit of a request.
        for _ in 0..6 {
            if collector.collect().await.map_problem.is_none() {
                return;
            }
        }
        panic!("the problem has not ended");
    };
    block_on(rounds).unwrap();
}

#[test]
fn round_without_a_map_reports_since_when_it_asks() {
    let rounds = async {
        let (of_management, address) = listener();
        // Nothing listens at the address any more.
        drop(of_management);
        let secrets = Secrets::generate();
        let addresses = vec![address];
        let token = JoinToken { cluster: cluster(), secrets, addresses };
        let mut collector = Collector::new(&token);
        let collected = collector.collect().await;
        assert!(collected.map.is_none() && collected.round.is_empty());
        let problem = collected.map_problem.unwrap();
        assert!(problem.contains("; no reply since the monitor began to ask at 20"), "{problem}");
    };
    block_on(rounds).unwrap();
}
