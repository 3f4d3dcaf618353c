//! The work of a member of management that is not the leader. Like other nodes, such a member
//! registers with the leader, sends heartbeats, and receives each new cluster map. So a newly
//! elected leader has the map of the previous leader.
//!
//! The process ends if the leader refuses the member. Such a member was removed from management, so
//! this member cannot become the leader.
//!
//! [`crate::leadership`] does the work of a member that may lead.

use crate::authority::Authority;
use crate::limits::TICK;
use skep_env::local::Notify;
use skep_rpc::{Change, JoinToken, Membership};
use skep_types::registration::ServerRegistration;
use skep_types::{Error, Result};
use skep_wire::management::RegisterServer;
use std::cell::RefCell;
use std::rc::Rc;

/// The leader's refusal of this member.
#[derive(Debug, Default)]
pub(crate) struct Refusal {
    refused: RefCell<Option<Refused>>,
    noted: Notify,
}

#[derive(Debug, Clone)]
enum Refused {
    /// The leader refused the first registration of this process.
    AtTheStart(Error),
    /// The leader refused a later registration, because an administrator has removed the member.
    Later(Error),
}

impl Refusal {
    fn note(&self, refused: Refused) {
        *self.refused.borrow_mut() = Some(refused);
        self.noted.notify();
    }

    /// Waits until the leader refuses this member, and the process must end. If the leader refused
    /// the first registration, the start has failed, so returns the refusal as an error.
    pub(crate) async fn until_refused(&self) -> Result<()> {
        loop {
            let noted = self.noted.wait();
            match self.refused.borrow().clone() {
                Some(Refused::AtTheStart(error)) => {
                    return Err(
                        error.within("this management node cannot become a member of management")
                    );
                }
                Some(Refused::Later(error)) => {
                    tracing::warn!(
                        "this management node was removed, and stops: {error}. Disable the service \
                         of this node, so that the service does not restart"
                    );
                    return Ok(());
                }
                None => {}
            }
            noted.await;
        }
    }
}

/// Keeps this member registered in the cluster while another member leads, until the process ends.
pub(crate) async fn keep(
    authority: Rc<Authority>,
    token: JoinToken,
    own: ServerRegistration,
    refusal: Rc<Refusal>,
) {
    loop {
        until(|| !authority.is_leading() && !authority.member().is_only_voter()).await;
        let (authority, refusal) = (Rc::clone(&authority), Rc::clone(&refusal));
        let following =
            skep_env::spawn(follow(Rc::clone(&authority), token.clone(), own.clone(), refusal));
        until(|| authority.is_leading()).await;
        // The drop of this task ends the heartbeats to the previous leader.
        drop(following);
    }
}

async fn follow(
    authority: Rc<Authority>,
    token: JoinToken,
    own: ServerRegistration,
    refusal: Rc<Refusal>,
) {
    let host = skep_service::host_name();
    let (capacities, groups) = (Vec::new(), Vec::new());
    let request = RegisterServer { server: own, capacities, groups, host };
    let (membership, registered) = match Membership::join(&token, request, None).await {
        Ok(joined) => joined,
        Err(error) => return refusal.note(Refused::AtTheStart(error)),
    };
    authority.note_map(&registered.map);
    let cell = membership.map_cell();
    let on_change = move |change| match change {
        Change::Refused(error) | Change::RefusedAgain(error) => {
            refusal.note(Refused::Later(error));
        }
        _ => authority.note_map(&cell.load()),
    };
    membership.keep(Vec::new, on_change).await;
}

async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        skep_env::sleep(TICK).await;
    }
}
