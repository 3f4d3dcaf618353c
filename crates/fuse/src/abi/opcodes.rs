//! The table of the kernel's opcodes. For each opcode it has the number, the length of the
//! operation's fixed struct, and the family in `request` that parses it.

macro_rules! opcodes {
    ($($name:ident = $number:literal, $arguments:literal, $family:ident;)*) => {
        /// An operation that the kernel requests.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub(crate) enum Opcode { $($name = $number,)* }

        impl Opcode {
            /// All opcodes, in the order of the table.
            #[cfg(test)]
            pub(crate) const ALL: &'static [Opcode] = &[$(Opcode::$name,)*];

            /// Returns the opcode with this number. `None` means that only newer kernels have an
            /// opcode with this number.
            pub(crate) fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// Returns the length in bytes of the fixed struct at the start of the operation's
            /// request. The payload (names, data) follows the struct.
            pub(crate) fn argument_bytes(self) -> usize {
                match self { $(Self::$name => $arguments,)* }
            }

            /// Returns the part of the daemon that handles requests with this opcode.
            pub(crate) fn family(self) -> Family {
                match self { $(Self::$name => Family::$family,)* }
            }
        }
    };
}

opcodes! {
    Lookup = 1, 0, Names;
    Forget = 2, 8, Transport;
    GetAttr = 3, 16, Attributes;
    SetAttr = 4, 88, Attributes;
    ReadLink = 5, 0, Names;
    Symlink = 6, 0, Names;
    MkNod = 8, 16, Names;
    MkDir = 9, 8, Names;
    Unlink = 10, 0, Names;
    RmDir = 11, 0, Names;
    Rename = 12, 8, Names;
    Link = 13, 8, Names;
    Open = 14, 8, Files;
    Read = 15, 40, Data;
    Write = 16, 40, Data;
    StatFs = 17, 0, Attributes;
    Release = 18, 24, Files;
    Fsync = 20, 16, Files;
    SetXattr = 21, 16, Xattrs;
    GetXattr = 22, 8, Xattrs;
    ListXattr = 23, 8, Xattrs;
    RemoveXattr = 24, 0, Xattrs;
    Flush = 25, 24, Files;
    Init = 26, 64, Transport;
    OpenDir = 27, 8, Directories;
    ReadDir = 28, 40, Directories;
    ReleaseDir = 29, 24, NoWork;
    FsyncDir = 30, 16, Files;
    GetLock = 31, 48, Locks;
    SetLock = 32, 48, Locks;
    SetLockWait = 33, 48, Locks;
    Access = 34, 8, KernelsOwn;
    Create = 35, 16, Files;
    Interrupt = 36, 8, Transport;
    Bmap = 37, 16, KernelsOwn;
    Destroy = 38, 0, NoWork;
    Ioctl = 39, 32, Ioctl;
    Poll = 40, 24, KernelsOwn;
    NotifyReply = 41, 40, Transport;
    BatchForget = 42, 8, Transport;
    FAllocate = 43, 32, Data;
    ReadDirPlus = 44, 40, Directories;
    Rename2 = 45, 16, Names;
    LSeek = 46, 24, Data;
    CopyFileRange = 47, 56, Data;
    SetupMapping = 48, 40, KernelsOwn;
    RemoveMapping = 49, 4, KernelsOwn;
    SyncFs = 50, 8, Files;
    TmpFile = 51, 16, Files;
    StatX = 52, 24, Attributes;
    CopyFileRange64 = 53, 56, Data;
}

/// The part of the daemon that handles a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Names,
    Files,
    Data,
    Locks,
    Attributes,
    Directories,
    Xattrs,
    Ioctl,
    /// The daemon replies without doing any work.
    NoWork,
    /// The transports handle the request. The request has no reply, or the daemon sends the reply
    /// before the workers start.
    Transport,
    /// The kernel does the work itself after the daemon has refused the request. An example is the
    /// check of access by permission bits.
    KernelsOwn,
}

impl Opcode {
    /// Reports a bug: the table has passed an opcode of another family to a parser.
    ///
    /// # Panics
    /// Always panics, because the table and the parsers disagree about the opcode's family. A test
    /// passes each opcode through the table.
    pub(crate) fn is_of_another_family(self) -> ! {
        unreachable!("the table of opcodes sends {self:?} to the wrong family")
    }
}

/// Returns the name of an operation in metrics and logs, such as `set_attr`. `None` means that only
/// newer kernels have this opcode.
pub(crate) fn operation_name(opcode: u32) -> Option<String> {
    let name = format!("{:?}", Opcode::from_number(opcode)?);
    let mut shown = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !shown.is_empty() {
            shown.push('_');
        }
        shown.push(letter.to_ascii_lowercase());
    }
    Some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_operations_are_unique() {
        assert_eq!(operation_name(4).as_deref(), Some("set_attr"));
        assert_eq!(operation_name(60_000), None);
        let names: std::collections::BTreeSet<_> =
            Opcode::ALL.iter().map(|opcode| operation_name(*opcode as u32)).collect();
        assert_eq!(names.len(), Opcode::ALL.len());
    }
}
