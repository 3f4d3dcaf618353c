//! Requests to management on several members, over real sockets. A member that is not the leader
//! refuses such a request, and the sender finds the leader.

#![allow(clippy::unwrap_used, reason = "a test fails at an unexpected result")]

use skep_env::{TcpListener, block_on, spawn};
use skep_rpc::server::{IncomingStream, authenticate};
use skep_rpc::{Identity, JoinToken, Management, Secrets};
use skep_types::{ClusterId, Error, ErrorCode, MapVersion, NodeId, NodeKind};
use skep_wire::consensus::leader_text;
use skep_wire::management::{GetMap, MapUpdate};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// How a fake member reacts to requests.
#[derive(Clone)]
enum Role {
    Leader,
    /// Refuses requests, and names these addresses of the leader.
    Follower(Vec<String>),
    /// Never replies, as if the process were stopped: only the kernel accepts its connections.
    Stopped,
}

struct FakeMember {
    address: String,
    role: Rc<RefCell<Role>>,
    /// Ids (`sequence`) of the requests that have arrived.
    received: Rc<RefCell<Vec<u64>>>,
    /// Number of requests that a member collects before the member replies to all these requests.
    batch: Rc<Cell<usize>>,
}

fn member(secrets: &Secrets, role: Role) -> FakeMember {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_address().unwrap().to_string();
    let (role, received) = (Rc::new(RefCell::new(role)), Rc::new(RefCell::new(Vec::new())));
    let batch = Rc::new(Cell::new(1));
    let (acts_as, numbers, together) = (Rc::clone(&role), Rc::clone(&received), Rc::clone(&batch));
    let identity = Identity {
        cluster: ClusterId::new([1; 16]),
        secrets: secrets.clone(),
        node: NodeId::new(1),
        kind: NodeKind::Management,
    };
    spawn(async move {
        let mut silent = Vec::new();
        while let Ok(stream) = listener.accept().await {
            if matches!(*acts_as.borrow(), Role::Stopped) {
                silent.push(stream);
                continue;
            }
            let (role, numbers) = (Rc::clone(&acts_as), Rc::clone(&numbers));
            let (identity, batch) = (identity.clone(), Rc::clone(&together));
            spawn(async move {
                let authenticated = authenticate(&stream, &identity, 1, |_| Ok(())).await;
                let Ok(peer) = authenticated else { return };
                let (mut requests, outbox) = IncomingStream::new(stream, peer.kind);
                let mut waiting = Vec::new();
                while let Ok(Some(incoming)) = requests.next().await {
                    numbers.borrow_mut().push(incoming.header.sequence);
                    waiting.push(incoming.header);
                    if waiting.len() < batch.get() {
                        continue;
                    }
                    for header in waiting.drain(..) {
                        // Because of the pause, the member sends each reply in a separate packet,
                        // as a busy member does.
                        skep_env::sleep(Duration::from_millis(2)).await;
                        match &*role.borrow() {
                            Role::Leader => outbox.reply(&header, &MapUpdate { map: None }),
                            Role::Follower(leader) => {
                                let text = leader_text(leader);
                                outbox.refuse(&header, &Error::new(ErrorCode::NotLeader, text));
                            }
                            Role::Stopped => {}
                        }
                    }
                }
            })
            .detach();
        }
    })
    .detach();
    FakeMember { address, role, received, batch }
}

fn management(secrets: &Secrets, members: &[&FakeMember]) -> Rc<Management> {
    let token = JoinToken {
        cluster: ClusterId::new([1; 16]),
        secrets: secrets.clone(),
        addresses: members.iter().map(|it| it.address.clone()).collect(),
    };
    Management::new(&token, NodeKind::Client)
}

async fn ask(management: &Management, limit_ms: u64) -> skep_types::Result<MapUpdate> {
    let request = GetMap { known: MapVersion::new(1) };
    management.call_once(&request, Duration::from_millis(limit_ms)).await
}

fn counts(members: &[&FakeMember]) -> Vec<usize> {
    members.iter().map(|it| it.received.borrow().len()).collect()
}

#[test]
fn request_to_a_follower_goes_to_the_leader_that_it_reports() {
    block_on(async {
        let secrets = Secrets::generate();
        let leader = member(&secrets, Role::Leader);
        let follower = member(&secrets, Role::Follower(vec![leader.address.clone()]));
        let others = member(&secrets, Role::Follower(Vec::new()));
        let members = [&follower, &others, &leader];
        // The token does not have the leader's address.
        let management = management(&secrets, &members[..2]);
        ask(&management, 5000).await.unwrap();
        assert_eq!(counts(&members), [1, 0, 1]);
        assert_eq!(
            *follower.received.borrow(),
            *leader.received.borrow(),
            "both attempts have the same request number"
        );
        ask(&management, 5000).await.unwrap();
        assert_eq!(counts(&members), [1, 0, 2], "the leader is asked first from now on");
        assert_eq!(management.first_answer(), Some(follower.address.as_str()));
    })
    .unwrap();
}

#[test]
fn first_answer_is_the_address_after_a_dead_one() {
    block_on(async {
        let secrets = Secrets::generate();
        let leader = member(&secrets, Role::Leader);
        let mut dead = member(&secrets, Role::Leader);
        // Nothing listens on port 0, so the kernel refuses the connection.
        dead.address = "127.0.0.1:0".into();
        let management = management(&secrets, &[&dead, &leader]);
        assert_eq!(management.first_answer(), None);
        ask(&management, 5000).await.unwrap();
        assert_eq!(management.first_answer(), Some(leader.address.as_str()));
    })
    .unwrap();
}

#[test]
fn members_are_asked_in_turn_until_the_leader_replies() {
    block_on(async {
        let secrets = Secrets::generate();
        let followers = [(); 2].map(|()| member(&secrets, Role::Follower(Vec::new())));
        let leader = member(&secrets, Role::Leader);
        let members = [&followers[0], &followers[1], &leader];
        ask(&management(&secrets, &members), 5000).await.unwrap();
        assert_eq!(counts(&members), [1, 1, 1]);
    })
    .unwrap();
}

#[test]
fn request_goes_to_another_member_if_the_leader_is_stopped() {
    block_on(async {
        let secrets = Secrets::generate();
        let stopped = member(&secrets, Role::Stopped);
        let next = member(&secrets, Role::Leader);
        let follower = member(&secrets, Role::Follower(vec![stopped.address.clone()]));
        let members = [&follower, &stopped, &next];
        let begin = skep_env::now();
        ask(&management(&secrets, &members), 5000).await.unwrap();
        let pause = skep_env::now() - begin;
        assert!(pause < Duration::from_secs(2), "{pause:?}");
        assert_eq!(counts(&members), [1, 0, 1]);
    })
    .unwrap();
}

#[test]
fn requests_in_flight_go_to_a_newly_elected_leader() {
    block_on(async {
        let secrets = Secrets::generate();
        let (former, next) = (member(&secrets, Role::Leader), member(&secrets, Role::Leader));
        let management = management(&secrets, &[&former, &next]);
        ask(&management, 5000).await.unwrap();
        *former.role.borrow_mut() = Role::Follower(vec![next.address.clone()]);
        former.batch.set(3);
        let calls: Vec<_> = (0..3)
            .map(|_| {
                let management = Rc::clone(&management);
                spawn(async move { ask(&management, 5000).await })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
        assert_eq!(counts(&[&former, &next]), [4, 3]);
    })
    .unwrap();
}

/// If an administrator has replaced the token on only one management node, the error must name the
/// refusal of the token as the reason. A follower's reply that it is not the leader is not enough.
#[test]
fn error_names_the_refusal_of_the_token_by_the_leader() {
    block_on(async {
        let secrets = Secrets::generate();
        let leader = member(&Secrets::generate(), Role::Leader);
        let follower = member(&secrets, Role::Follower(vec![leader.address.clone()]));
        let management = management(&secrets, &[&follower, &leader]);
        let error = ask(&management, 1500).await.unwrap_err();
        let words = format!("leader of management at {} refuses the token", leader.address);
        assert!(error.context().contains(&words), "{error}");
        assert!(error.context().contains("skep token install"), "{error}");
        assert_eq!(counts(&[&leader]), [0]);
    })
    .unwrap();
}

#[test]
fn request_without_any_leader_fails_at_its_deadline() {
    block_on(async {
        let secrets = Secrets::generate();
        let members = [(); 2].map(|()| member(&secrets, Role::Follower(Vec::new())));
        // Two members may name each other for a moment.
        let named = |at: usize| Role::Follower(vec![members[at].address.clone()]);
        (*members[0].role.borrow_mut(), *members[1].role.borrow_mut()) = (named(1), named(0));
        let begin = skep_env::now();
        let management = management(&secrets, &[&members[0], &members[1]]);
        let error = ask(&management, 700).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotLeader, "{error}");
        assert!(
            error.context().contains("is not the leader; this node reports 127.0.0.1"),
            "{error}"
        );
        let took = skep_env::now() - begin;
        assert!(took >= Duration::from_millis(500) && took < Duration::from_secs(3), "{took:?}");
        let asked: usize = counts(&[&members[0], &members[1]]).iter().sum();
        assert!((3..=9).contains(&asked), "{asked} requests");
    })
    .unwrap();
}

/// Most of the time passes while no member has a leader. The last attempt then has too little time
/// to connect, and its failure must not hide the missing leader as the reason.
#[test]
fn error_names_a_missing_leader_if_the_last_attempt_is_late() {
    block_on(async {
        let secrets = Secrets::generate();
        let stopped = member(&secrets, Role::Stopped);
        let follower = member(&secrets, Role::Follower(Vec::new()));
        let management = management(&secrets, &[&follower, &stopped]);
        let error = ask(&management, 350).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotLeader, "{error}");
        assert!(error.context().contains("management has no leader"), "{error}");
        // If no member has refused the request, the error names the whole time limit of the
        // request.
        let silent = self::management(&secrets, &[&stopped]);
        let error = ask(&silent, 300).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::TimedOut, "{error}");
        assert!(error.context().contains("within 0.3 s"), "{error}");
    })
    .unwrap();
}
