//! `SetDirectoryPattern`: what new files and directories in a directory inherit.

use crate::context::Context;
use crate::engine::Engine;
use crate::namespace::directory_pattern;
use crate::operation::Stop;
use skep_wire::management::Done;
use skep_wire::metadata::SetDirectoryPattern;

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: SetDirectoryPattern,
) -> Result<Done, Stop> {
    let mut record = context.directory(request.directory)?;
    context.check_room()?;
    let policy = context.shared.map.policy.clone();
    let or = |value: u64, default: u64| if value == 0 { default } else { value };
    let effective = directory_pattern(
        or(request.chunk_bytes, policy.default_chunk_bytes),
        or(u64::from(request.width), u64::from(policy.default_width)) as u16,
    );
    if let Some(pattern) = &effective {
        pattern.check()?;
    }
    record.pattern = directory_pattern(request.chunk_bytes, request.width);
    context.touch_changed(&mut record.attributes);
    context.put_inode(&record);
    Ok(Done {})
}
