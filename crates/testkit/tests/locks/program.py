"""Does what it is told, one line of standard input after the other, and answers each with a line.

The tests of locks start several of these on different mounts. Answers are `ok`, the name of an
error, or what was asked for.
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
# The errors that have two names.
ERRORS = dict(errno.errorcode) | {errno.EDEADLK: "EDEADLK"}
# struct flock: type, whence, start, length, process.
RECORD = "hhqqi4x"

files = {}


class Alarm(Exception):
    """A signal came."""


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
    """Locks; an alarm ends the wait."""
    signal.setitimer(signal.ITIMER_REAL, float(seconds))
    try:
        return lock(*what)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def fork_and_close(key):
    """A child closes its copy of a descriptor and ends."""
    child = os.fork()
    if child == 0:
        os.close(files[key])
        os._exit(0)
    os.waitpid(child, 0)
    return "ok"


def count(key, kind, times):
    """Increments the number in a file, each time under the lock; says how often that was done."""
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
    """Locks every other byte; says how many it has got."""
    for number in range(int(times)):
        try:
            set_range(files[key], kind, "exclusive", 2 * number, 1, False)
        except OSError as error:
            return f"{number} {ERRORS[error.errno]}"
    return f"{times} ok"


crowd = queue.Queue()


def crowd_begins(path, times):
    """So many open file descriptions wait for a lock at once, on one processor; says what the
    first one gets whose wait ends."""

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
    """What the next so many get; each answer once."""
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
