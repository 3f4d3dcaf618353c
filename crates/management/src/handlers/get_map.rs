//! `GetMap`: answered when there is a map newer than the asker's, or shortly before its deadline.

use crate::authority::Authority;
use crate::limits::{ANSWER_BEFORE_DEADLINE, LONGEST_WAIT, MAX_WAITING};
use skep_rpc::{Incoming, Outbox};
use skep_types::codec::Codec;
use skep_wire::management::{GetMap, MapUpdate};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

thread_local! {
    /// Requests that wait. Management has one thread.
    static WAITING: Cell<usize> = const { Cell::new(0) };
}

pub(super) fn handle(authority: &Rc<Authority>, incoming: Incoming, outbox: &Rc<Outbox>) {
    let request = match GetMap::from_bytes(&incoming.body) {
        Ok(request) => request,
        Err(error) => return outbox.refuse(&incoming.header, &error),
    };
    let newer = authority.newer(request.known);
    let wait = match incoming.header.time_left_ms {
        0 => LONGEST_WAIT,
        left => Duration::from_millis(u64::from(left)).min(LONGEST_WAIT),
    };
    let wait = wait.saturating_sub(ANSWER_BEFORE_DEADLINE).max(wait / 2);
    let must_wait = newer.is_none() && request.known.raw() != 0;
    if !must_wait || WAITING.get() >= MAX_WAITING {
        return outbox.reply(&incoming.header, &MapUpdate { map: newer });
    }
    WAITING.set(WAITING.get() + 1);
    let (authority, outbox) = (Rc::clone(authority), Rc::clone(outbox));
    skep_env::spawn(async move {
        // The version can only have risen between the look above and the first wait if something
        // ran in between, and nothing does: this thread is the only one.
        let newer = async {
            loop {
                let changed = authority.changed.wait();
                if let Some(map) = authority.newer(request.known) {
                    return map;
                }
                changed.await;
            }
        };
        let map = skep_env::timeout(wait, newer).await;
        WAITING.set(WAITING.get() - 1);
        outbox.reply(&incoming.header, &MapUpdate { map });
    })
    .detach();
}
