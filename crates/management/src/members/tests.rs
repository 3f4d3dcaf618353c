//! Tests of three members of a replicated log over real sockets, in one process.

use super::*;
use skep_consensus::{LogPosition, MemberSettings};
use skep_env::{Task, TcpListener, TcpStream};
use skep_rpc::server::authenticate;
use skep_rpc::{IncomingStream, Secrets};
use skep_types::{ClusterId, NodeKind};
use skep_wire::Request;

const CLUSTER: ClusterId = ClusterId::new([9; 16]);

/// A state machine whose state is the bytes of all commands. The outcome of a command is the length
/// of this state.
#[derive(Default)]
struct Commands(Vec<u8>);

impl StateMachine for Commands {
    fn apply(&mut self, _: LogPosition, command: &[u8]) -> Result<Vec<u8>> {
        self.0.extend(command);
        Ok(vec![self.0.len() as u8])
    }

    fn snapshot(&self) -> Vec<u8> {
        self.0.clone()
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        self.0 = state.to_vec();
        Ok(())
    }
}

/// A running member with its connections.
struct Running {
    member: Rc<Member<Commands>>,
    streams: Rc<RefCell<Vec<TcpStream>>>,
    accepting: Task<()>,
}

/// The members of one replicated log.
struct Group {
    secrets: Secrets,
    directories: Vec<tempfile::TempDir>,
    addresses: RefCell<BTreeMap<u64, String>>,
    running: RefCell<BTreeMap<u64, Running>>,
}

impl Group {
    async fn of_three() -> Self {
        let group = Self {
            secrets: Secrets::generate(),
            directories: (0..3).map(|_| tempfile::tempdir().unwrap()).collect(),
            addresses: RefCell::default(),
            running: RefCell::default(),
        };
        // The files of the first member contain its address, so the test must choose the address
        // first.
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        group.addresses.borrow_mut().insert(1, address.to_string());
        let machine = (0, &Commands::default());
        Member::found(&group.settings(1), vec![group.address(1)], machine).unwrap();
        [2, 3].iter().for_each(|id| Member::<Commands>::create(&group.settings(*id)).unwrap());
        for id in 1..=3 {
            group.start(id).await;
        }
        let first = group.member(1);
        group.leader().await;
        for id in [2, 3] {
            first.add_member(id, vec![group.address(id)]).await.unwrap();
        }
        group
    }

    fn settings(&self, id: u64) -> MemberSettings {
        let directory = self.directories[id as usize - 1].path().to_owned();
        MemberSettings { directory, cluster: CLUSTER, id }
    }

    fn identity(&self, id: u64) -> Identity {
        let (node, kind) = (NodeId::new(id as u32), NodeKind::Management);
        Identity { cluster: CLUSTER, secrets: self.secrets.clone(), node, kind }
    }

    fn address(&self, id: u64) -> String {
        self.addresses.borrow()[&id].clone()
    }

    fn member(&self, id: u64) -> Rc<Member<Commands>> {
        Rc::clone(&self.running.borrow()[&id].member)
    }

    /// Starts a member, at its previous address if the member was started before.
    async fn start(&self, id: u64) {
        let former = self.addresses.borrow().get(&id).cloned();
        let listener = TcpListener::bind(former.as_deref().unwrap_or("127.0.0.1:0")).unwrap();
        let address = listener.local_address().unwrap().to_string();
        self.addresses.borrow_mut().insert(id, address);
        let connections = MemberConnections::new(self.identity(id));
        let member = Member::open(&self.settings(id), Commands::default(), connections).await;
        let member = Rc::new(member.unwrap());
        let (identity, served) = (self.identity(id), Rc::clone(&member));
        let streams = Rc::new(RefCell::new(Vec::new()));
        let opened = Rc::clone(&streams);
        let accepting = skep_env::spawn(async move {
            while let Ok(stream) = listener.accept().await {
                opened.borrow_mut().push(stream.clone());
                skep_env::spawn(serve(stream, identity.clone(), Rc::clone(&served))).detach();
            }
        });
        let running = Running { member, streams, accepting };
        self.running.borrow_mut().insert(id, running);
    }

    /// Ends a member and closes all its connections.
    async fn kill(&self, id: u64) {
        let Running { member, streams, accepting } = self.running.borrow_mut().remove(&id).unwrap();
        drop(accepting);
        streams.borrow().iter().for_each(TcpStream::shutdown);
        member.end().await;
    }

    /// Waits for a leader that a majority confirms.
    async fn leader(&self) -> u64 {
        let deadline = skep_env::now() + Duration::from_secs(20);
        loop {
            let ids: Vec<u64> = self.running.borrow().keys().copied().collect();
            for id in ids {
                let member = self.member(id);
                if member.leader() == Some(id) && member.confirm().await.is_ok() {
                    return id;
                }
            }
            assert!(skep_env::now() < deadline, "a leader is elected");
            skep_env::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until a member has applied exactly `commands`.
    async fn has(&self, id: u64, commands: &[u8]) {
        let member = self.member(id);
        let deadline = skep_env::now() + Duration::from_secs(20);
        while !member.with_state(|it| it.0 == commands) {
            assert!(skep_env::now() < deadline, "member {id} has all commands");
            skep_env::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Replies to the messages of one connection.
async fn serve(stream: TcpStream, identity: Identity, member: Rc<Member<Commands>>) {
    let Ok(peer) = authenticate(&stream, &identity, 1, |_| Ok(())).await else { return };
    let (mut requests, outbox) = IncomingStream::new(stream, peer.kind);
    while let Ok(Some(incoming)) = requests.next().await {
        assert_eq!(incoming.header.message, AskMember::ID);
        answer(&member, identity.node, &incoming, &outbox).await;
    }
}

fn run(test: impl Future<Output = ()> + 'static) {
    skep_env::block_on(test).unwrap();
}

#[test]
fn proposals_succeed_after_the_leader_was_killed() {
    run(async {
        let group = Group::of_three().await;
        let leader = group.leader().await;
        assert_eq!(group.member(leader).propose(b"a".to_vec()).await.unwrap(), [1]);
        let killed_at = skep_env::now();
        group.kill(leader).await;
        let next = group.leader().await;
        let pause = skep_env::now() - killed_at;
        assert!(pause < Duration::from_secs(3), "{pause:?}");
        assert_ne!(next, leader);
        assert_eq!(group.member(next).propose(b"b".to_vec()).await.unwrap(), [2]);
        // Restart the member. The other members must open new connections to the restarted member.
        group.start(leader).await;
        group.has(leader, b"ab").await;
        let third = (1..=3).find(|id| ![leader, next].contains(id)).unwrap();
        group.kill(third).await;
        let last = group.leader().await;
        assert_eq!(group.member(last).propose(b"c".to_vec()).await.unwrap(), [3]);
        group.has(leader, b"abc").await;
    });
}

#[test]
fn message_for_another_member_is_refused() {
    run(async {
        let group = Group::of_three().await;
        let sender = MemberConnections::new(group.identity(1));
        let call = async |to| {
            let limit = Duration::from_secs(5);
            sender.call(to, &[group.address(2)], Vec::new(), limit).await
        };
        assert!(call(2).await.is_ok(), "the member replies to its own messages");
        let refused = call(3).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::NotPermitted);
        assert!(refused.context().contains("member n2 uses this address"), "{refused}");
    });
}

#[test]
fn raft_message_from_a_client_is_refused() {
    run(async {
        let group = Group::of_three().await;
        let identity = Identity { kind: NodeKind::Client, ..group.identity(1) };
        let sender = MemberConnections::new(identity);
        let limit = Duration::from_secs(5);
        let refused = sender.call(2, &[group.address(2)], Vec::new(), limit).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::NotPermitted);
        assert!(refused.context().contains("only members of management"), "{refused}");
    });
}

#[test]
fn handshake_continues_after_the_call_has_timed_out() {
    run(async {
        let group = Group::of_three().await;
        let sender = MemberConnections::new(group.identity(1));
        let addresses = [group.address(2)];
        let late = sender.call(2, &addresses, Vec::new(), Duration::ZERO).await.unwrap_err();
        assert_eq!(late.code(), ErrorCode::TimedOut);
        let deadline = skep_env::now() + Duration::from_secs(20);
        while sender.link(2).open().is_none() {
            assert!(skep_env::now() < deadline, "the attempt to connect goes on");
            skep_env::sleep(Duration::from_millis(5)).await;
        }
        assert!(sender.call(2, &addresses, Vec::new(), Duration::from_secs(5)).await.is_ok());
    });
}

#[test]
fn members_open_a_new_connection_to_a_returning_member() {
    run(async {
        let group = Group::of_three().await;
        let sender = MemberConnections::new(group.identity(1));
        let addresses = [group.address(2)];
        let call = || sender.call(2, &addresses, Vec::new(), Duration::from_secs(5));
        call().await.unwrap();
        group.kill(2).await;
        assert_eq!(call().await.unwrap_err().code(), ErrorCode::Disconnected);
        assert_eq!(call().await.unwrap_err().code(), ErrorCode::Disconnected);
        group.start(2).await;
        call().await.unwrap();
        assert_eq!(sender.links.borrow().len(), 1);
    });
}
