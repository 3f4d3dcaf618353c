//! The interface to the operating system: one event loop per thread on io_uring, sockets, files,
//! queues between threads, signals, clock and randomness.
//!
//! This crate is responsible for all system calls of Skep that need `unsafe` code, except the calls
//! of the FUSE layer, but not for messages or file formats. A thread calls [`block_on`], which runs
//! futures on the thread's loop. These futures stay on this thread (`!Send`). In each turn of the
//! loop, one system call submits the operations of the futures and waits for completions. A thread
//! passes values to another thread only through a [`Mailbox`], and wakes futures of other threads
//! by a [`SharedNotify`].
//!
//! # Hazard: buffers in flight
//! The kernel reads and writes a [`Buf`] while an operation on it is in flight. An operation owns a
//! handle to the buffer until its completion has arrived, even if its future is dropped. So a
//! buffer's memory is never freed while the kernel uses the memory. But the holder of another
//! handle must not read bytes that the kernel is filling, and must not change bytes that the kernel
//! is sending.
//!
//! The event loop needs io_uring (Linux 5.19 or later, `kernel.io_uring_disabled` = 0).

mod buffer;
mod clock;
mod event;
mod event_loop;
mod file;
mod file_system;
mod host_load;
pub mod local;
mod mailbox;
mod network;
mod number_map;
mod output_file;
mod path_mtu;
mod process;
mod shared_notify;
mod signals;
mod socket;
mod task_context;
mod threads;
mod timed;

pub use async_task::Task;
pub use buffer::{Buf, BufBytes, Fill};
pub use clock::{
    is_clock_synchronised, now, random_bytes, random_u64, random_u128, thread_time, wall_time,
};
pub use event_loop::{
    ExpectedReply, Op, ReplyTime, block_on, expect_reply, idle_time, is_running,
    limit_kernel_workers, set_spin, sleep, spawn, submit, submit_begun, timeout, yield_now,
};
pub use file::{File, StdFile, close};
pub use file_system::{
    MountMark, Space, boot_id, mount_mark, raise_file_limit, remove_file, space,
};
pub use mailbox::{Mailbox, MailboxSender};
pub use network::{HostAddress, host_addresses};
pub use number_map::{IdMap, NumberHasher, NumberMap};
pub use output_file::{OutputError, open_output};
pub use path_mtu::{PathMtu, probe_path};
pub use process::{
    outlive_parent, process_parent, process_start_time, replace_output, restrict_new_files,
    send_group_signal, send_signal, spawn_child, spawn_detached, spawn_detaching,
};
pub use shared_notify::{SharedNotify, SharedWait};
pub use signals::{Signals, UntilSignal};
pub use socket::{MessagePart, TcpListener, TcpStream, is_known_host, open_streams};
pub use task_context::{task_context, with_task_context};
pub use threads::{available_cpus, bind_to_cpus, prefer_memory_of, spawn_thread, spawn_thread_on};
pub use timed::{TimeSpent, note_blocked, note_obstructed, timed};
