//! Operations on names that both simulations run. Each simulation chooses the names, directories
//! and files.

use crate::operation::Op;
use crate::random::Random;
use skep_types::InodeId;
use skep_types::codec::Bytes;
use skep_wire::metadata as md;

/// A random choice of names, directories and files, and of operations on the chosen entries.
pub(crate) trait Names {
    fn random(&mut self) -> &mut Random;
    fn name(&mut self) -> Bytes;
    fn any_directory(&mut self) -> InodeId;
    fn any_file(&mut self) -> InodeId;

    fn link(&mut self) -> Op {
        Op::Link(md::Link {
            inode: self.any_file(),
            directory: self.any_directory(),
            name: self.name(),
        })
    }

    fn unlink(&mut self) -> Op {
        Op::Unlink(md::Unlink { directory: self.any_directory(), name: self.name() })
    }

    fn remove_directory(&mut self) -> Op {
        Op::RemoveDirectory(md::RemoveDirectory {
            directory: self.any_directory(),
            name: self.name(),
        })
    }

    fn rename(&mut self) -> Op {
        Op::Rename(md::Rename {
            from_directory: self.any_directory(),
            from_name: self.name(),
            to_directory: self.any_directory(),
            to_name: self.name(),
            no_replace: self.random().percent(30),
            whiteout: None,
        })
    }
}
