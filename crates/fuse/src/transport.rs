//! How requests come and replies go: FUSE over io_uring, or `/dev/fuse` with several threads.
//!
//! A transport gives each worker its ports; a port carries one request at a time and owns the
//! memory for it. What happens between a request and its reply is the same for both, in `worker`.

pub(crate) mod control;
pub(crate) mod device;
pub(crate) mod kernel;
pub(crate) mod uring;

use std::fmt;

/// A way between kernel and daemon.
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

/// Which transport is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// The fastest that there is.
    #[default]
    Auto,
    /// This one or none.
    Only(TransportKind),
}

impl std::str::FromStr for TransportChoice {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "uring" => Ok(Self::Only(TransportKind::Uring)),
            "device" => Ok(Self::Only(TransportKind::Device)),
            _ => Err(format!("transport '{s}' is none of auto, uring and device")),
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
