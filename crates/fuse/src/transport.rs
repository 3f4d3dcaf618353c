//! Exchanges messages with the kernel, through FUSE over io_uring or through `/dev/fuse` with
//! several threads.
//!
//! A worker has several ports of a transport. A port carries one request at a time and owns the
//! buffers for the request and its reply. `worker` does the work between a request and its reply,
//! which is the same for both transports.

pub(crate) mod control;
pub(crate) mod device;
pub(crate) mod kernel;
pub(crate) mod uring;

use std::fmt;

/// A way to exchange messages with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportKind {
    /// FUSE over io_uring: one worker pinned to each CPU.
    Uring,
    /// Reads and writes of `/dev/fuse` by several threads.
    Device,
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uring => "uring",
            Self::Device => "device",
        })
    }
}

/// The choice of a mount's transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// The fastest transport that the kernel offers.
    #[default]
    Auto,
    /// Only this transport. The mount fails if the kernel does not offer it.
    Only(TransportKind),
}

impl std::str::FromStr for TransportChoice {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "uring" => Ok(Self::Only(TransportKind::Uring)),
            "device" => Ok(Self::Only(TransportKind::Device)),
            _ => Err(format!("invalid transport '{s}': expected auto, uring or device")),
        }
    }
}

impl fmt::Display for TransportChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Only(kind) => kind.fmt(f),
        }
    }
}
