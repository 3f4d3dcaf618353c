//! Requests that list directories.
//!
//! Owns the parsing of these requests. Requests that list directories have the same argument struct
//! as reads (`data`). `ops::directories` performs the operations.

use super::RawRequest;
use super::data::ReadIn;
use crate::abi::Opcode;
use skep_types::InodeId;

/// A request that lists a directory.
#[derive(Debug)]
pub(crate) enum DirectoryRequest {
    Open { directory: InodeId },
    Read { directory: InodeId, cursor: u64, max_bytes: u32, with_attributes: bool },
}

impl DirectoryRequest {
    pub(super) fn parse(opcode: Opcode, raw: &RawRequest) -> Result<Self, i32> {
        Ok(match opcode {
            Opcode::OpenDir => Self::Open { directory: raw.node() },
            Opcode::ReadDir | Opcode::ReadDirPlus => {
                let arguments: ReadIn = raw.arguments()?;
                Self::Read {
                    directory: raw.node(),
                    cursor: arguments.offset,
                    max_bytes: arguments.size.min(raw.reply.len() as u32),
                    with_attributes: opcode == Opcode::ReadDirPlus,
                }
            }
            other => other.is_of_another_family(),
        })
    }

    /// Whether the worker may drop the operation's future when the caller is killed. Always true,
    /// since these operations make no changes.
    pub(super) fn may_be_dropped(&self) -> bool {
        true
    }
}
