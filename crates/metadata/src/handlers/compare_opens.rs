//! `CompareOpens`: returns how many opens of each file the target has for the session. If a power
//! loss of the target's host has reverted opens, the client opens these files again.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::{Key, OpenCounts};
use skep_types::{Error, ErrorCode};
use skep_wire::limits::MAX_CLOSES;
use skep_wire::metadata::{CompareOpens, CompareOpensReply, OpenMode};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: CompareOpens,
) -> Result<CompareOpensReply, Stop> {
    if request.files.len() > MAX_CLOSES {
        let what = format!("cannot compare more than {MAX_CLOSES} opens in one request");
        return Err(Error::new(ErrorCode::LimitReached, what).into());
    }
    let session = context.session()?;
    let mut counts = Vec::with_capacity(request.files.len());
    for file in request.files {
        let key = Key::SessionOpen(session, file.inode);
        let its = context.get::<OpenCounts>(&key)?.unwrap_or_default();
        counts.push(match file.open {
            OpenMode::No => 0,
            OpenMode::Read => its.readers,
            OpenMode::Write => its.writers,
        });
    }
    Ok(CompareOpensReply { counts })
}
