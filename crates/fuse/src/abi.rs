//! The kernel's binary interface (`include/uapi/linux/fuse.h` up to version 7.45): the headers of
//! all messages, the table of opcodes, and device numbers.
//!
//! The fixed struct of each operation is declared beside the code that reads or writes it, in
//! `request`, `reply` and `init`. Each struct is a record, which is read with bounds checks and
//! written field by field. Padding is declared as a field too, so that the record has the length of
//! the kernel's struct.

// The `record!` macro makes its structs `pub`, although this module is private to the crate.
#![allow(unreachable_pub)]

mod device_number;
mod opcodes;

pub(crate) use device_number::{pack_device, unpack_device};
pub(crate) use opcodes::{Family, Opcode, operation_name};
use skep_types::codec::record;

/// Length of [`InHeader`] in bytes.
pub(crate) const IN_HEADER_BYTES: usize = 40;
/// Length of [`OutHeader`] in bytes.
pub(crate) const OUT_HEADER_BYTES: usize = 16;

record! {
    /// `fuse_in_header`: the start of each request.
    #[derive(Copy)]
    pub struct InHeader {
        pub len: u32,
        pub opcode: u32,
        pub unique: u64,
        pub nodeid: u64,
        pub uid: u32,
        pub gid: u32,
        pub pid: u32,
        pub extension_words: u16,
        pub padding: u16,
    }
}

record! {
    /// `fuse_out_header`: the start of each reply. `error` is zero or a negated error number.
    pub struct OutHeader {
        pub len: u32,
        pub error: u32,
        pub unique: u64,
    }
}

record! {
    /// `fuse_interrupt_in`.
    pub struct InterruptIn {
        pub unique: u64,
    }
}
