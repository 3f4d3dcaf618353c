//! A whole cluster on one host: what `skep up` starts, supervises and stops.
//!
//! [`layout`] says what lies where in the data directory; [`children`] starts, watches and ends
//! processes; [`ownership`] says whose the root directory is; [`supervisor`] is the life of a
//! cluster from `up` to `down`; [`summary`] is what it says about itself. Everything is real:
//! separate processes of this program, sockets, directories.

pub(crate) mod children;
pub(crate) mod layout;
mod ownership;
pub(crate) mod readiness;
pub(crate) mod summary;
pub(crate) mod supervisor;
