//! Asks the primaries of metadata groups for the progress of the other members, which the web page
//! shows as background work.

use crate::background::Groups;
use crate::limits::SERVICE_PATIENCE;
use crate::live::MonitorState;
use skep_rpc::{CallOptions, Channel, Identity, MapCell, Router};
use skep_types::{ClusterMap, Group, GroupId, NodeId, TargetKind};
use skep_wire::log_shipping::AskGroup;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Interval at which the monitor asks the primaries.
const EVERY: Duration = Duration::from_secs(2);

/// Asks the primaries until this future is dropped.
pub(crate) async fn follow(identity: Identity, state: Rc<RefCell<MonitorState>>) {
    let mut asker: Option<(Arc<MapCell>, Rc<Router>)> = None;
    // Retry: the monitor asks every two seconds, without limit. The progress of a group whose
    // primary does not reply is missing until the next reply.
    loop {
        skep_env::sleep(EVERY).await;
        let newest = state.borrow().collected.map.as_ref().filter(|it| has_copies(it)).cloned();
        let Some(map) = newest else {
            state.borrow_mut().groups.clear();
            continue;
        };
        let groups: Vec<GroupId> =
            map.groups.iter().filter(|group| is_copied(group)).map(|group| group.id).collect();
        let (cell, router) = asker.get_or_insert_with(|| {
            let cell = MapCell::new(map.clone(), NodeId::default());
            let router = Router::new(identity.clone(), Channel::random(), Arc::clone(&cell));
            (cell, router)
        });
        cell.update(map);
        let found = ask(router, groups).await;
        state.borrow_mut().groups = found;
    }
}

/// Asks the primaries of the groups at the same time. Leaves out primaries that do not reply.
async fn ask(router: &Rc<Router>, groups: Vec<GroupId>) -> Groups {
    let asked = groups.into_iter().map(|group| {
        let router = Rc::clone(router);
        skep_env::spawn(async move {
            let options =
                CallOptions { time_left: Some(SERVICE_PATIENCE), ..CallOptions::default() };
            let reply = router.call(group, &AskGroup {}, options).await;
            reply.ok().map(|(progress, _)| (group, progress))
        })
    });
    let asked: Vec<_> = asked.collect();
    let mut found = Vec::new();
    for answer in asked {
        found.extend(answer.await);
    }
    found
}

/// Whether a group has several members, so that its primary ships the log to the other members.
fn is_copied(group: &Group) -> bool {
    group.kind == TargetKind::Metadata && group.members.len() > 1
}

fn has_copies(map: &ClusterMap) -> bool {
    map.groups.iter().any(is_copied)
}
