"""Reads commands from standard input, one per line, and prints a line with the result of each.

The tests of locks start several of these processes on different mounts. A result is `ok`, the name
of an error, or the value that the command requests.
"""

import errno
import fcntl
import os
import queue
import signal
import struct
import sys
import threading

MODES = {"shared": fcntl.F_RDLCK, "exclusive": fcntl.F_WRLCK, "unlock": fcntl.F_UNLCK}
NAMES = {number: name for name, number in MODES.items()}
FLOCKS = {"shared": fcntl.LOCK_SH, "exclusive": fcntl.LOCK_EX, "unlock": fcntl.LOCK_UN}
# Error names by number. EDEADLK also has the name EDEADLOCK on Linux.
ERRORS = dict(errno.errorcode) | {errno.EDEADLK: "EDEADLK"}
# struct flock: type, whence, start, length, process.
RECORD = "hhqqi4x"

files = {}


class Alarm(Exception):
    """The alarm has interrupted a system call."""


def on_alarm(*_):
    raise Alarm


def record(mode, start, length):
    return struct.pack(RECORD, MODES[mode], os.SEEK_SET, int(start), int(length), 0)


def set_range(file, kind, mode, start, length, waits):
    calls = {
        ("posix", False): fcntl.F_SETLK,
        ("posix", True): fcntl.F_SETLKW,
        ("ofd", False): fcntl.F_OFD_SETLK,
        ("ofd", True): fcntl.F_OFD_SETLKW,
    }
    fcntl.fcntl(file, calls[kind, waits], record(mode, start, length))


def lock(key, kind, mode, start, length, waits):
    waits = waits == "wait"
    if kind == "flock":
        fcntl.flock(files[key], FLOCKS[mode] | (0 if waits else fcntl.LOCK_NB))
    else:
        set_range(files[key], kind, mode, start, length, waits)
    return "ok"


def test(key, kind, mode, start, length):
    call = {"posix": fcntl.F_GETLK, "ofd": fcntl.F_OFD_GETLK}[kind]
    answer = fcntl.fcntl(files[key], call, record(mode, start, length))
    found, _, start, length, process = struct.unpack(RECORD, answer)
    return "free" if found == fcntl.F_UNLCK else f"{NAMES[found]} {start} {length} {process}"


def open_file(key, path, mode):
    flags = {"read": os.O_RDONLY, "write": os.O_RDWR | os.O_CREAT}[mode]
    files[key] = os.open(path, flags)
    return "ok"


def close(key):
    os.close(files.pop(key))
    return "ok"


def duplicate(key, new):
    files[new] = os.dup(files[key])
    return "ok"


def read(key, length):
    return os.pread(files[key], int(length), 0).decode()


def write(key, text):
    os.pwrite(files[key], text.encode(), 0)
    return "ok"


def lock_until(seconds, *what):
    """Sets a lock. If the wait takes longer than `seconds`, an alarm ends it."""
    signal.setitimer(signal.ITIMER_REAL, float(seconds))
    try:
        return lock(*what)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def fork_and_close(key):
    """Creates a child process, which closes its copy of a descriptor and exits."""
    child = os.fork()
    if child == 0:
        os.close(files[key])
        os._exit(0)
    os.waitpid(child, 0)
    return "ok"


def count(key, kind, times):
    """Increments the number in a file `times` times, each time under a lock.

    Returns the number of increments, and `ok` or the name of the error that ended them.
    """
    file, done = files[key], 0
    try:
        for _ in range(int(times)):
            lock(key, kind, "exclusive", 0, 8, "wait")
            number = int(os.pread(file, 8, 0))
            os.pwrite(file, f"{number + 1:08}".encode(), 0)
            done += 1
            lock(key, kind, "unlock", 0, 8, "wait")
    except OSError as error:
        return f"{done} {ERRORS[error.errno]}"
    return f"{done} ok"


def every_other(key, kind, times):
    """Locks every second byte. Returns the number of locked bytes, and `ok` or the name of an error."""
    for number in range(int(times)):
        try:
            set_range(files[key], kind, "exclusive", 2 * number, 1, False)
        except OSError as error:
            return f"{number} {ERRORS[error.errno]}"
    return f"{times} ok"


crowd = queue.Queue()


def crowd_begins(path, times):
    """Starts `times` threads, all on one processor, which wait for a lock at the same time.

    Each thread has its own open file description. Returns the result of the first wait that ends.
    """

    def wait():
        file = os.open(path, os.O_RDWR)
        try:
            set_range(file, "ofd", "shared", 0, 0, True)
            crowd.put("ok")
        except OSError as error:
            crowd.put(ERRORS[error.errno])
        finally:
            os.close(file)

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    threading.stack_size(256 << 10)
    for _ in range(int(times)):
        threading.Thread(target=wait, daemon=True).start()
    return crowd.get()


def crowd_ends(times):
    """Waits for the end of `times` more waits. Returns their different results."""
    return " ".join(sorted({crowd.get() for _ in range(int(times))}))


CALLS = {
    "close": close,
    "count": count,
    "crowd_begins": crowd_begins,
    "crowd_ends": crowd_ends,
    "every_other": every_other,
    "duplicate": duplicate,
    "fork_and_close": fork_and_close,
    "lock": lock,
    "lock_until": lock_until,
    "open": open_file,
    "read": read,
    "test": test,
    "write": write,
}


def main():
    signal.signal(signal.SIGALRM, on_alarm)
    for line in iter(sys.stdin.readline, ""):
        name, *arguments = line.split()
        try:
            answer = CALLS[name](*arguments)
        except Alarm:
            answer = "EINTR"
        except OSError as error:
            answer = ERRORS[error.errno]
        print(answer, flush=True)


main()
