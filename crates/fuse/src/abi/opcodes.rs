//! The table of the kernel's opcodes: number, length of the fixed struct, and the family of
//! `request` that parses it.

macro_rules! opcodes {
    ($($name:ident = $number:literal, $arguments:literal, $family:ident;)*) => {
        /// Operations that the kernel requests.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub(crate) enum Opcode { $($name = $number,)* }

        impl Opcode {
            /// All opcodes, in the order of their numbers.
            #[cfg(test)]
            pub(crate) const ALL: &'static [Opcode] = &[$(Opcode::$name,)*];

            /// The opcode of a number; `None` for one that only a newer kernel has.
            pub(crate) fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// Bytes of the fixed struct with which the request starts. The payload (names, data)
            /// follows it.
            pub(crate) fn argument_bytes(self) -> usize {
                match self { $(Self::$name => $arguments,)* }
            }

            /// The part of the daemon that takes the request.
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

/// The part of the daemon that takes a request.
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
    /// Acknowledged without any work.
    NoWork,
    /// The transports take it; it has no reply, or its reply is sent before the mount serves.
    Transport,
    /// The kernel does the work itself once the daemon refuses: access by permission bits.
    KernelsOwn,
}

impl Opcode {
    /// For the parser of a family that the table sends a foreign opcode to.
    ///
    /// # Panics
    /// Always: the table and the parsers disagree. A test sends each opcode through the table.
    pub(crate) fn is_of_another_family(self) -> ! {
        unreachable!("the table of opcodes sends {self:?} to the wrong family")
    }
}
