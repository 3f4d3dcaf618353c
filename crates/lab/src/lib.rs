//! Emulated clusters on one host, for the command `skep lab`.
//!
//! A lab has one host for each server and each client. A host is a network namespace with a link.
//! The link's rate can be limited in both directions, and packets can be delayed if the kernel
//! supports this. The rate of each target can also be limited. Services and mounts are processes of
//! the program `skep`. These processes keep running after `up`, and [`State`] lists them.
//!
//! [`up`](fn@up) starts a lab. [`down`](fn@down) removes a lab, or the remains of an incomplete
//! lab.
//!
//! The crate does not own measurements. Benchmarks and studies run their programs on the hosts of a
//! lab.

mod capacity;
mod check;
mod command;
mod cpu_watch;
mod data;
mod description;
mod down;
mod limits;
mod names;
mod network;
mod process;
mod rate;
mod run;
mod services;
mod shapes;
mod state;
mod status;
mod up;

pub use capacity::capacity;
pub use cpu_watch::{CpuUse, CpuWatch, IDLE_ENOUGH, SATURATED_BEARABLE};
pub use description::{DEFAULT_NAME, Delay, Description, Percent};
pub use down::{Removed, down, would_remove};
pub use names::{DATA_ROOT, NAMESPACES, PROCESS_VARIABLE, Role, STATE_ROOT};
pub use network::{Traffic, traffic};
pub use process::Process;
pub use rate::Rate;
pub use run::{HostRun, Run, Stream, run};
pub use shapes::{Shape, shape, shapes};
pub use state::{Host, Phase, State, Target, names};
pub use status::{HostStatus, ProcessStatus, Status, status};
pub use up::{plan, up};
