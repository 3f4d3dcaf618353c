//! Removal, exchange and listing of names at the fake metadata target.

use super::FakeMetadata;
use skep_types::codec::{Bytes, Codec};
use skep_types::{InodeId, Result};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::metadata::{
    DirectoryEntries, DirectoryEntry, Exchange, NamesReply, ReadDirectory, Unlink,
};

/// Number of bytes that each entry of a listing takes.
const ENTRY_BYTES: usize = 100;
/// The lowest cursor of an entry.
const FIRST_CURSOR: u64 = 256;

impl FakeMetadata {
    /// Executes a request about names, or a request of another kind that the caller does not
    /// execute itself.
    pub(super) fn execute_about_names(&mut self, header: &Header, body: &[u8]) -> Result<Vec<u8>> {
        Ok(match header.message {
            Unlink::ID => self.unlink(Unlink::from_bytes(body)?)?.to_bytes(),
            Exchange::ID => self.exchange(Exchange::from_bytes(body)?)?.to_bytes(),
            ReadDirectory::ID => self.read_directory(&ReadDirectory::from_bytes(body)?).to_bytes(),
            _ => self.execute_about_locks(header, body)?,
        })
    }

    /// Lists the names in ascending order. A cursor is the position of a name.
    fn read_directory(&self, request: &ReadDirectory) -> DirectoryEntries {
        let here = self.entries.iter().filter(|((it, _), _)| *it == request.directory);
        let mut all: Vec<_> = here.map(|((_, name), inode)| (name, *inode)).collect();
        all.sort();
        let first = (request.cursor + 1).saturating_sub(FIRST_CURSOR) as usize;
        let fitting = request.max_bytes as usize / ENTRY_BYTES;
        let wanted = all.iter().enumerate().skip(first).take(fitting);
        let entries = wanted.map(|(index, (name, inode))| DirectoryEntry {
            cursor: FIRST_CURSOR + index as u64,
            name: Bytes::clone(name),
            entry: self.reply_to(*inode),
        });
        let entries: Vec<_> = entries.collect();
        let end = first + entries.len() >= all.len();
        DirectoryEntries { parent: InodeId::ROOT, entries, end }
    }

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
