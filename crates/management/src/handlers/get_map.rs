//! `GetMap`: replies as soon as there is a map newer than the sender's map, or as soon as another
//! member of management leads. Replies at the latest shortly before the request's deadline.
//!
//! Many nodes wait at the same time, and each node gets the whole map. So before it sends a map,
//! management pauses for a time that grows with the number of waiting nodes. So the map that
//! management sends after the pause also contains the changes during the pause.

use super::{answer_map, longest_wait};
use crate::authority::Authority;
use crate::limits::{LONGEST_PAUSE, MAX_WAITING, PAUSE_PER_WAITING};
use skep_rpc::{Incoming, Outbox};
use skep_types::codec::Codec;
use skep_wire::management::GetMap;
use std::cell::Cell;
use std::rc::Rc;

thread_local! {
    /// Number of waiting `GetMap` requests. A thread-local counter is enough, because management
    /// has only one thread.
    static WAITING: Cell<usize> = const { Cell::new(0) };
}

pub(super) fn handle(authority: &Rc<Authority>, incoming: Incoming, outbox: &Rc<Outbox>) {
    let request = match GetMap::from_bytes(&incoming.body) {
        Ok(request) => request,
        Err(error) => return outbox.refuse(&incoming.header, &error),
    };
    let newer = authority.newer(request.known);
    let wait = longest_wait(&incoming.header);
    let must_wait = newer.is_none() && request.known.raw() != 0;
    if !must_wait || WAITING.get() >= MAX_WAITING {
        return answer_map(outbox, &incoming.header, newer);
    }
    WAITING.set(WAITING.get() + 1);
    let (authority, outbox) = (Rc::clone(authority), Rc::clone(outbox));
    skep_env::spawn(async move {
        let newer = async {
            loop {
                let changed = authority.changed.wait();
                if authority.map().version > request.known || authority.check_serving().is_err() {
                    break;
                }
                changed.await;
                let waiting = u32::try_from(WAITING.get()).unwrap_or(u32::MAX);
                skep_env::sleep((PAUSE_PER_WAITING * waiting).min(LONGEST_PAUSE)).await;
            }
        };
        skep_env::timeout(wait, newer).await;
        WAITING.set(WAITING.get() - 1);
        // If another member leads, the sender asks that member immediately.
        if let Err(error) = authority.check_serving() {
            return outbox.refuse(&incoming.header, &error);
        }
        answer_map(&outbox, &incoming.header, authority.newer(request.known));
    })
    .detach();
}
