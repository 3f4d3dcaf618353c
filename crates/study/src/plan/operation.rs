//! The properties of operations: the quantity that a run measures, and the phase of the benchmark
//! that measures this quantity.

use super::Operation;
use serde::Serialize;

/// The quantity that a run measures. Results of different quantities cannot be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Bytes per second.
    Bandwidth,
    /// Transfers of data per second.
    Transfers,
    /// Operations on names per second.
    Names,
}

impl Quantity {
    /// Returns the unit in which reports show the quantity.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Bandwidth => "MiB/s",
            Self::Transfers => "IO/s",
            Self::Names => "operations/s",
        }
    }

    /// Converts a result, in bytes or operations per second, to the unit in which reports show the
    /// result.
    pub fn shown(self, value: f64) -> f64 {
        match self {
            Self::Bandwidth => value / f64::from(1 << 20),
            Self::Transfers | Self::Names => value,
        }
    }

    /// Whether the quantity is the bandwidth.
    pub fn is_bandwidth(&self) -> bool {
        *self == Self::Bandwidth
    }
}

impl Operation {
    /// Returns the quantity that a run of this operation measures.
    pub fn quantity(self) -> Quantity {
        match self {
            Self::Write | Self::Read => Quantity::Bandwidth,
            Self::RandomWrite | Self::RandomRead => Quantity::Transfers,
            Self::Create | Self::Stat | Self::Remove => Quantity::Names,
        }
    }

    /// Whether the operation works on names, and not on data.
    pub fn is_on_names(self) -> bool {
        self.quantity() == Quantity::Names
    }

    /// Whether the operation reads data.
    pub fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::RandomRead)
    }

    /// Whether the operation transfers data in random order.
    pub fn is_random(self) -> bool {
        matches!(self, Self::RandomWrite | Self::RandomRead)
    }

    /// Returns the name of the benchmark's phase in which the operation is measured.
    pub fn phase(self) -> &'static str {
        match self {
            Self::Write | Self::RandomWrite => "write",
            Self::Read | Self::RandomRead => "read",
            Self::Create => "file_creation",
            Self::Stat => "file_stat",
            Self::Remove => "file_removal",
        }
    }
}
