//! Removal and exchange of names at the fake metadata target.

use super::FakeMetadata;
use skep_types::Result;
use skep_wire::metadata::{Exchange, NamesReply, Unlink};

impl FakeMetadata {
    pub(super) fn unlink(&mut self, Unlink { directory, name }: Unlink) -> Result<NamesReply> {
        let inode = self.entry(directory, &name)?;
        self.entries.remove(&(directory, name));
        if self.inode(inode)?.opens.is_empty() {
            self.inodes.remove(&inode);
        }
        Ok(NamesReply { directory: None })
    }

    pub(super) fn exchange(&mut self, it: Exchange) -> Result<NamesReply> {
        let (from, to) = ((it.from_directory, it.from_name), (it.to_directory, it.to_name));
        let (first, second) = (self.entry(from.0, &from.1)?, self.entry(to.0, &to.1)?);
        self.entries.insert(from, second);
        self.entries.insert(to, first);
        Ok(NamesReply { directory: None })
    }
}
