//! The wait of a target's thread until its target is the primary of a group.
//!
//! A new target may wait for a group (setting `metadata-copies`), and a member of a group that is
//! not its primary serves no requests. Until the target is a primary, its thread opens neither log
//! nor store. Does not own the end of a term, which the loop of the service notices
//! ([`crate::target::MetadataTarget::is_primary`]).

use skep_env::Mailbox;
use skep_rpc::Router;
use skep_service::TargetEvent;
use skep_service::host::Ready;
use skep_types::map::TargetHealth;
use skep_types::{ClusterMap, Epoch, Error, ErrorCode, GroupId, Result, TargetId};
use std::sync::Arc;

/// A term of a target as the primary of its group.
#[derive(Debug)]
pub(crate) struct Term {
    pub(crate) group: GroupId,
    /// First epoch of the term.
    pub(crate) since: Epoch,
    /// The cluster map that names the target as primary.
    pub(crate) map: Arc<ClusterMap>,
}

/// Waits until the target is the primary of a group. Meanwhile the target counts as ready, answers
/// probes and closes connections. Returns `None` if the service ends.
///
/// # Errors
/// An error of the mailbox.
pub(crate) async fn await_term(
    router: &Router,
    target: TargetId,
    events: &Mailbox<TargetEvent>,
    ready: &mut Option<Ready>,
) -> Result<Option<Term>> {
    loop {
        let map = router.map();
        if let Some(group) = map.group_led_by(target) {
            let (group, since) = (group.id, group.primary_since);
            return Ok(Some(Term { group, since, map }));
        }
        if let Some(ready) = ready.take() {
            tracing::info!(
                "target {target} serves no requests yet: it is not the primary of a group"
            );
            ready.report();
        }
        match events.receive().await? {
            // The peer has an older cluster map, or a newer one. It connects again.
            TargetEvent::Connection { socket, .. } => drop(socket),
            TargetEvent::Probe(probe) => probe.answer(TargetHealth::default()),
            TargetEvent::MapChanged => {}
            TargetEvent::Stop => return Ok(None),
        }
    }
}

/// Returns the error for the end of a target's thread after another member has become the primary.
/// The node then opens the target again.
pub(crate) fn ended(group: GroupId) -> Error {
    let context = format!("another member is now the primary of group {group}");
    Error::new(ErrorCode::Deposed, context)
}
