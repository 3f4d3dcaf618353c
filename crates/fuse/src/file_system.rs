//! What the FUSE layer calls: any file system, of which `skep_client::Client` is one.

pub use skep_client::FileSystem;
