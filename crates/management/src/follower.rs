//! A member of management that does not lead is a node like others: it registers with the leader,
//! sends heartbeats, and follows the cluster map. So the map of the former leader is here if this
//! member is elected.
//!
//! Ends the process of a member that the leader refuses: it was removed, so it never leads again.
//!
//! Does not own the leadership ([`crate::leadership`]).

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
    /// At the first registration of this process.
    AtTheStart(Error),
    /// After this process had been registered: an administrator has removed the member.
    Later(Error),
}

impl Refusal {
    fn note(&self, refused: Refused) {
        *self.refused.borrow_mut() = Some(refused);
        self.noted.notify();
    }

    /// Waits until the leader refuses this member. Then the process ends. Returns the refusal as an
    /// error if this process was never a member: its start has failed.
    pub(crate) async fn until_refused(&self) -> Result<()> {
        loop {
            let noted = self.noted.wait();
            match self.refused.borrow().clone() {
                Some(Refused::AtTheStart(error)) => {
                    return Err(error.within("this management node cannot take part"));
                }
                Some(Refused::Later(error)) => {
                    tracing::warn!(
                        "this management node was removed, and ends: {error}. Disable its service, \
                         so that it does not start again"
                    );
                    return Ok(());
                }
                None => {}
            }
            noted.await;
        }
    }
}

/// Keeps this member in the cluster while another one leads, until the process ends.
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
        // Ends the heartbeats to the former leader.
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
    let request = RegisterServer { server: own, capacities: Vec::new(), host };
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
