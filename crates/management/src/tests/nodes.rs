//! Tests of management on several nodes, in one process: elections, versions of maps, and changes
//! of the members.

use super::*;
use crate::directory::join;
use skep_wire::consensus::{AddMember, ListMembers, RemoveMember};
use skep_wire::management::SetPolicy;
use std::collections::BTreeMap;

/// The management nodes of one cluster.
struct Nodes {
    directory: tempfile::TempDir,
    token: JoinToken,
    settings: BTreeMap<u32, ManagementSettings>,
    running: BTreeMap<u32, RunningManagement>,
}

impl Nodes {
    async fn of_one(
        (directory, settings, token): (tempfile::TempDir, ManagementSettings, JoinToken),
    ) -> Self {
        let running = RunningManagement::start(&settings).await.unwrap();
        let id = running.authority.own().raw();
        let (settings, running) =
            (BTreeMap::from([(id, settings)]), BTreeMap::from([(id, running)]));
        Self { directory, token, settings, running }
    }

    async fn of_three(made: (tempfile::TempDir, ManagementSettings, JoinToken)) -> Self {
        let mut nodes = Self::of_one(made).await;
        nodes.add().await;
        nodes.add().await;
        nodes
    }

    fn admin(&self) -> Rc<Management> {
        self.client_of(self.settings.keys())
    }

    /// Returns a client that has the addresses of these nodes.
    fn client_of<'a>(&self, ids: impl Iterator<Item = &'a u32>) -> Rc<Management> {
        let own = |id: &u32| {
            let file = self.settings[id].node.directory.join("join-token");
            skep_service::directory::read_token(&file).unwrap().addresses[0].clone()
        };
        let addresses = ids.map(own).collect();
        Management::new(&JoinToken { addresses, ..self.token.clone() }, NodeKind::Client)
    }

    /// Initialises, starts and adds a further node. Returns its id.
    async fn add(&mut self) -> u32 {
        let mut settings = ManagementSettings::default();
        let name = format!("further-{}", self.settings.len());
        settings.node.directory = self.directory.path().join(name);
        settings.node.listen = "127.0.0.1:0".into();
        let id = join(&settings, self.token.clone()).await.unwrap().raw();
        self.settings.insert(id, settings);
        self.start(id).await;
        let admin = self.admin();
        admin.call_once(&AddMember { node: NodeId::new(id) }, LONG).await.unwrap();
        id
    }

    async fn start(&mut self, id: u32) {
        let running = RunningManagement::start(&self.settings[&id]).await.unwrap();
        self.running.insert(id, running);
    }

    /// Ends a node. The connections of a killed node stay open, but the node no longer takes part
    /// in management.
    async fn kill(&mut self, id: u32) {
        let running = self.running.remove(&id).unwrap();
        let authority = Rc::clone(&running.authority);
        drop(running);
        authority.member().end().await;
        authority.end_lead();
    }

    /// Waits until a running node serves as the leader. Returns its id.
    async fn leader(&self) -> u32 {
        let deadline = skep_env::now() + Duration::from_secs(20);
        loop {
            let is_serving = |it: &RunningManagement| it.authority.check_serving().is_ok();
            if let Some((id, _)) = self.running.iter().find(|(_, it)| is_serving(it)) {
                return *id;
            }
            assert!(skep_env::now() < deadline, "a leader serves");
            skep_env::sleep(Duration::from_millis(5)).await;
        }
    }

    fn map(&self, id: u32) -> Rc<skep_types::ClusterMap> {
        self.running[&id].authority.map()
    }
}

const LONG: Duration = Duration::from_secs(20);

/// The cluster maps that subscribers have received.
#[derive(Default)]
struct ReceivedMaps {
    by_version: RefCell<BTreeMap<u64, skep_types::ClusterMap>>,
    /// The versions for which two different maps have arrived.
    ambiguous: RefCell<Vec<u64>>,
    is_over: Cell<bool>,
}

impl ReceivedMaps {
    /// Asks management for newer maps until the test is over.
    async fn subscribe(self: Rc<Self>, client: Rc<Management>) {
        let mut known = MapVersion::new(0);
        while !self.is_over.get() {
            match client.call_once(&GetMap { known }, Duration::from_millis(200)).await {
                Ok(update) => {
                    let Some(map) = update.map else { continue };
                    known = map.version;
                    let mut by_version = self.by_version.borrow_mut();
                    let first = by_version.entry(known.raw()).or_insert_with(|| map.clone());
                    if *first != map {
                        self.ambiguous.borrow_mut().push(known.raw());
                    }
                }
                Err(_) => {
                    // The subscriber also accepts a map that is older than its own map, because a
                    // previous leader might still send such a map.
                    known = MapVersion::new(0);
                    skep_env::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }

    fn newest(&self) -> u64 {
        self.by_version.borrow().keys().next_back().copied().unwrap_or_default()
    }
}

/// After the death of the leader, no other node may be shown as unreachable.
#[test]
fn new_leader_publishes_a_newer_map_within_3_s() {
    let made = cluster();
    block_on(async move {
        let mut nodes = Nodes::of_three(made).await;
        let token = JoinToken {
            addresses: nodes.running.values().map(|it| it.listens_on.clone()).collect(),
            ..nodes.token.clone()
        };
        let (storage, registered) =
            Membership::join(&token, server(NodeKind::Storage, 10), PATIENCE).await.unwrap();
        let node = registered.node;
        let cell = storage.map_cell();
        let states = Rc::new(RefCell::new(Vec::new()));
        let (seen, followed) = (Rc::clone(&states), storage.map_cell());
        let _keeping = skep_env::spawn(Rc::clone(&storage).keep(Vec::new, move |_| {
            seen.borrow_mut().push(followed.load().node(node).unwrap().reachability);
        }));
        for _ in 0..3 {
            let leader = nodes.leader().await;
            until("all members have the map, in which they are online", || {
                let map = nodes.map(leader);
                let mut running = nodes.running.values();
                map.nodes.iter().all(|node| node.reachability == Reachability::Online)
                    && running.all(|it| it.authority.map().version == map.version)
            })
            .await;
            let before = cell.version();
            let killed_at = skep_env::now();
            nodes.kill(leader).await;
            until("a newer map arrives", || {
                skep_cluster::versions::starts_of(cell.version())
                    > skep_cluster::versions::starts_of(before)
            })
            .await;
            let pause = skep_env::now() - killed_at;
            assert!(pause < Duration::from_secs(3), "{pause:?}");
            nodes.start(leader).await;
        }
        assert!(states.borrow().iter().all(|it| *it == Reachability::Online));
    });
}

#[test]
fn follower_names_the_leader_and_ends_waiting_requests() {
    let made = cluster();
    block_on(async move {
        let mut nodes = Nodes::of_three(made).await;
        let leader = nodes.leader().await;
        let follower = *nodes.running.keys().find(|id| **id != leader).unwrap();
        let refusal = nodes.running[&follower].authority.check_serving().unwrap_err();
        assert_eq!(refusal.code(), ErrorCode::NotLeader);
        assert_eq!(
            skep_wire::consensus::leader_addresses(refusal.context()),
            [nodes.running[&leader].listens_on.clone()]
        );
        // If the leadership of the first leader ends while a request waits at this leader, the
        // sender must send the request to the next leader.
        let admin = nodes.admin();
        let known = nodes.map(leader).version;
        let waiting = skep_env::spawn({
            let admin = Rc::clone(&admin);
            async move { admin.call_once(&GetMap { known }, LONG).await }
        });
        // The reply to a second request shows that the first request has arrived.
        admin.call_once(&ListMembers {}, LONG).await.unwrap();
        nodes.kill(leader).await;
        let map = waiting.await.unwrap().map.expect("the next leader has published a map");
        assert!(map.version > known);
    });
}

/// The error code `Exists` would mean that the directory is initialised, and a script would
/// continue.
#[test]
fn directory_is_not_initialised_under_the_name_of_another_node() {
    let made = cluster();
    block_on(async move {
        let nodes = Nodes::of_one(made).await;
        let mut settings = ManagementSettings::default();
        settings.node.listen = "127.0.0.1:0".into();
        settings.node.name = "host-2".into();
        settings.node.directory = nodes.directory.path().join("first");
        join(&settings, nodes.token.clone()).await.unwrap();
        settings.node.directory = nodes.directory.path().join("second");
        let error = join(&settings, nodes.token.clone()).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Configuration, "{error}");
        assert!(error.context().contains("choose another `node.name`"), "{error}");
        assert!(!settings.node.directory.join("skep-identity").exists());
        settings.node.directory = nodes.directory.path().join("first");
        let again = join(&settings, nodes.token.clone()).await.unwrap_err();
        assert_eq!(again.code(), ErrorCode::Exists, "{again}");
    });
}

/// A leader without a majority stores nothing, and soon refuses the requests of all nodes.
#[test]
fn leader_without_a_majority_refuses_all_nodes() {
    let made = cluster();
    block_on(async move {
        let mut nodes = Nodes::of_three(made).await;
        let leader = nodes.leader().await;
        let others: Vec<_> = nodes.running.keys().copied().filter(|id| *id != leader).collect();
        let version = nodes.map(leader).version;
        for id in &others {
            nodes.kill(*id).await;
        }
        let authority = Rc::clone(&nodes.running[&leader].authority);
        let policy = Policy { heartbeat_ms: 500, ..Policy::default() };
        let proposed = authority.propose(&Command::SetPolicy(policy).into()).await.unwrap_err();
        let lost = [ErrorCode::TimedOut, ErrorCode::NotLeader];
        assert!(lost.contains(&proposed.code()), "{proposed}");
        until("it refuses all nodes", || authority.check_leader().is_err()).await;
        authority.note_alive(NodeId::new(99), &[]);
        assert_eq!(
            nodes.map(leader).version,
            version,
            "a leader without a majority publishes nothing"
        );
        for id in others {
            nodes.start(id).await;
        }
        let next = nodes.leader().await;
        assert!(nodes.map(next).version > version);
    });
}

/// A leader publishes changes of reachability without a commit, so only the versions distinguish
/// its maps from the maps of the next leader. docs/semantics.md 4.2.
#[test]
fn maps_of_two_leaders_never_have_the_same_version() {
    let made = cluster();
    block_on(async move {
        let mut nodes = Nodes::of_three(made).await;
        let received = Rc::new(ReceivedMaps::default());
        let mut running = Vec::new();
        for id in nodes.settings.keys() {
            let client = nodes.client_of(std::iter::once(id));
            running.push(skep_env::spawn(Rc::clone(&received).subscribe(client)));
        }
        let (admin, changed) = (nodes.admin(), Rc::clone(&received));
        let changing = skep_env::spawn(async move {
            let mut count = 0_u32;
            while !changed.is_over.get() {
                count += 1;
                let policy = Policy { heartbeat_ms: 500 + count % 400, ..Policy::default() };
                // Ignore a refusal, because management refuses the change while no majority runs.
                let _refused = admin.call(&SetPolicy { policy }, Some(LONG)).await;
                skep_env::sleep(Duration::from_millis(5)).await;
            }
        });
        for round in 0..20 {
            let leader = nodes.leader().await;
            let before = received.newest();
            let loses_majority = round % 2 == 1;
            let ids: Vec<_> = nodes.running.keys().copied().collect();
            let stopped = ids.into_iter().filter(|id| (*id == leader) != loses_majority);
            let stopped: Vec<_> = stopped.collect();
            for id in &stopped {
                nodes.kill(*id).await;
            }
            if loses_majority {
                let authority = Rc::clone(&nodes.running[&leader].authority);
                until("the leader has lost its majority", || authority.check_leader().is_err())
                    .await;
            } else {
                nodes.leader().await;
            }
            for id in stopped {
                nodes.start(id).await;
            }
            nodes.leader().await;
            until("a subscriber gets a newer map", || received.newest() > before).await;
        }
        received.is_over.set(true);
        for task in running {
            task.await;
        }
        changing.await;
        assert_eq!(*received.ambiguous.borrow(), Vec::<u64>::new(), "each version has one map");
    });
}

#[test]
fn members_grow_to_3_and_shrink_to_1_while_settings_change() {
    let made = cluster();
    block_on(async move {
        let mut nodes = Nodes::of_one(made).await;
        let admin = nodes.admin();
        let is_over = Rc::new(Cell::new(false));
        let changing = skep_env::spawn({
            let (admin, is_over) = (Rc::clone(&admin), Rc::clone(&is_over));
            async move {
                let mut count = 0_u32;
                while !is_over.get() {
                    count += 1;
                    let policy = Policy { heartbeat_ms: 500 + count % 400, ..Policy::default() };
                    admin.call(&SetPolicy { policy }, Some(LONG)).await.unwrap();
                }
                500 + count % 400
            }
        });
        let (second, third) = (nodes.add().await, nodes.add().await);
        let list = nodes.admin().call(&ListMembers {}, Some(LONG)).await.unwrap();
        assert_eq!(list.members.iter().filter(|member| member.is_voter).count(), 3);
        let leader = nodes.leader().await;
        let removed: Vec<_> = nodes.running.keys().copied().filter(|id| *id != leader).collect();
        assert!(removed.contains(&second) || removed.contains(&third));
        let itself = RemoveMember { node: NodeId::new(leader) };
        let refused = admin.call_once(&itself, LONG).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::InUse, "{refused}");
        for id in removed {
            let request = RemoveMember { node: NodeId::new(id) };
            admin.call_once(&request, LONG).await.unwrap();
            let ended = skep_env::timeout(LONG, nodes.running[&id].until_ended()).await;
            // If the removed node had not registered since its start, it ends with the error of the
            // leader's refusal.
            if let Err(refused) = ended.expect("a removed node ends") {
                assert!(refused.context().contains("was removed"), "{refused}");
            }
            nodes.kill(id).await;
            // If an administrator restarts the removed node, the node must end with an error that
            // names the reason.
            nodes.start(id).await;
            let ended = skep_env::timeout(LONG, nodes.running[&id].until_ended()).await;
            let refused = ended.expect("a removed node ends").unwrap_err();
            assert!(refused.context().contains("was removed"), "{refused}");
            nodes.kill(id).await;
            admin.call_once(&request, LONG).await.map(drop).unwrap_err();
        }
        is_over.set(true);
        let last = changing.await;
        let map = nodes.map(leader);
        assert_eq!(map.policy.heartbeat_ms, last, "the map has each acknowledged change");
        assert_eq!(map.nodes.len(), 1);
        let last = RemoveMember { node: NodeId::new(leader) };
        let refused = admin.call_once(&last, LONG).await.unwrap_err();
        assert!(refused.context().contains("the only management node"), "{refused}");
    });
}

#[test]
fn forced_recovery_lets_one_management_node_continue_alone() {
    let made = cluster();
    block_on(async move {
        let mut nodes = Nodes::of_three(made).await;
        let leader = nodes.leader().await;
        let before = nodes.map(leader);
        for id in nodes.running.keys().copied().collect::<Vec<_>>() {
            nodes.kill(id).await;
        }
        let left = *nodes.settings.keys().find(|id| **id != leader).unwrap();
        let path = nodes.settings[&left].node.directory.clone();
        let shown = recover(&path, false).unwrap();
        assert_eq!(shown.members.len(), 3);
        assert!(shown.term > 0, "an elected leader has a term");
        assert_eq!(recover(&path, true).unwrap(), shown);
        let running = RunningManagement::start(&nodes.settings[&left]).await.unwrap();
        let map = running.authority.map();
        assert!(map.version > before.version);
        assert!(running.authority.own().raw() > 1 << 20, "new ids are far above the former ids");
        let management = map.nodes.iter().filter(|node| node.kind == NodeKind::Management);
        assert_eq!(management.count(), 1);
        // A previous member that an administrator starts by mistake is not a member of this cluster
        // any more.
        let status = running.authority.member().status();
        assert_eq!(status.members.len(), 1);
    });
}
