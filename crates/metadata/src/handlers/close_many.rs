//! `CloseMany`: subtracts opens of many files from the open counts, in one transaction.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_types::{Error, ErrorCode, StripePattern};
use skep_wire::limits::MAX_CLOSES;
use skep_wire::management::EmptyReply;
use skep_wire::metadata::CloseMany;

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: CloseMany,
) -> Result<EmptyReply, Stop> {
    if request.files.len() > MAX_CLOSES {
        let text = format!(
            "cannot close {} files in one request: the limit is {MAX_CLOSES}",
            request.files.len()
        );
        return Err(Error::new(ErrorCode::InvalidArgument, text).into());
    }
    for file in request.files {
        // If the inode does not exist, the file was removed together with its opens.
        let Some(mut record) = context.find_inode(file.inode)? else { continue };
        let has_ended = record.pattern.as_ref().is_some_and(StripePattern::has_moved_inline);
        // An earlier report may already have ended the inline component, but a power loss may have
        // reverted that end. So end the component here if it still exists.
        if file.ends_inline.is_some()
            && !has_ended
            && context.end_inline_as_reported(&mut record, file.ends_inline)?
        {
            context.put_inode(&record);
        }
        let session = context.session()?;
        context.close_one(session, &record, file.open)?;
    }
    Ok(EmptyReply {})
}
