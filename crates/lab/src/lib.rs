//! Emulates clusters on one machine, for the command `skep lab`.
//!
//! A lab has hosts for metadata, a host for each server and a host for each client. Each host is a
//! network namespace with one link to the other hosts. The rate of a link can be limited in each
//! direction, and packets can be delayed if the kernel supports it. The rate of each storage target
//! can also be limited. Services and mounts are processes of the program `skep`. The processes
//! continue to run after [`up`](fn@up) has returned, and [`State`] lists the processes.
//!
//! [`up`](fn@up) starts a lab. [`down`](fn@down) removes a lab, even a lab that was only partly
//! created.
//!
//! The crate measures nothing. The crates for benchmarks and studies run their programs on the
//! hosts of a lab.

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
