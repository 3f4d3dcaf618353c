//! Predicts the speed and the cost of a system before its purchase (`skep plan`).
//!
//! The crate owns the catalogue of servers, disks and prices, and the model that predicts rates.
//! The crate also contains the calibration of the model by measurements, the search for systems
//! that meet given needs, and the sizes of disks, memory and processors. All code of the crate is
//! pure. The callers read and write the files. `docs/design/0013-planning-model.md` explains the
//! model.
//!
//! `skep-bench` and `skep-study` make the measurements, and `skep-ctl` prints the results.
//!
//! Units: rates in MB/s (1,000,000 bytes) or operations per second, capacities in TB.

pub mod bench;
pub mod calibration;
pub mod catalogue;
pub mod cost;
pub mod model;
pub mod page;
mod parameter;
pub mod propose;
pub mod sizing;
pub mod system;
pub mod table;
pub mod validation;

pub use calibration::Calibration;
pub use catalogue::Catalogue;
pub use parameter::{PARAMETERS, Parameter, Parameters};

use skep_types::{Error, ErrorCode};

/// Creates the error for input that is invalid.
fn invalid(context: impl Into<String>) -> Error {
    Error::new(ErrorCode::InvalidArgument, context)
}
