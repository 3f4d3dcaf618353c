//! Breaks TCP connections between two processes without ending either process.
//! A short Python program duplicates the sockets of the first process, as a debugger can do.

use crate::program::finish;
use crate::wait::PATIENCE;
use std::process::Command;

/// The common first lines of the Python programs. These lines find the sockets of process
/// `sys.argv[1]` that are connected to a port on which process `sys.argv[2]` listens. `pending` is
/// the number of bytes in these connections that the second process has not read.
const FIND: &str = r#"
import ctypes, os, socket, sys
client, server = int(sys.argv[1]), int(sys.argv[2])
def sockets(pid):
    found = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found[target[8:-1]] = int(fd)
    return found
def table(pid):
    for name in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{name}") as lines:
            for line in list(lines)[1:]:
                fields = line.split()
                port = lambda at: int(fields[at].split(":")[1], 16)
                unread = int(fields[4].split(":")[1], 16)
                yield port(1), port(2), fields[3], unread, fields[9]
ours, theirs = sockets(client), sockets(server)
ports = {local for local, _, state, _, inode in table(server) if state == "0A" and inode in theirs}
connected = {local: ours[inode] for local, remote, _, _, inode in table(client)
             if remote in ports and inode in ours}
pending = sum(unread for _, remote, state, unread, inode in table(server)
              if remote in connected and state == "01" and inode in theirs)
"#;

const SHUT_DOWN: &str = r#"
libc = ctypes.CDLL(None, use_errno=True)
pidfd = os.pidfd_open(client)
for fd in connected.values():
    copy = libc.syscall(438, pidfd, fd, 0)
    if copy < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    with socket.socket(fileno=copy) as taken:
        taken.shutdown(socket.SHUT_RDWR)
print(len(connected))
"#;

fn run(client: u32, server: u32, program: &str) -> u64 {
    let mut command = Command::new("python3");
    command.args(["-c", &format!("{FIND}{program}")]);
    command.args([client.to_string(), server.to_string()]);
    let finished = finish(&mut command, PATIENCE);
    finished.expect_success().trim().parse().expect("the program prints a number")
}

/// Returns the number of bytes that process `client` has sent to process `server` and that `server`
/// has not read.
///
/// # Panics
/// Panics if one of the processes does not run.
pub fn unread_bytes(client: u32, server: u32) -> u64 {
    run(client, server, "print(pending)")
}

/// Shuts down all connections of process `client` to process `server`. Replies that `server` sends
/// on these connections from now on are lost. `server` still receives the bytes that `client` sent
/// before the shutdown.
///
/// # Panics
/// Panics if the processes have no connection.
pub fn break_between(client: u32, server: u32) {
    assert!(run(client, server, SHUT_DOWN) > 0, "the processes have a connection");
}
