//! The file system that the FUSE layer calls. `skep_client::Client` is one implementation.

pub use skep_client::FileSystem;
