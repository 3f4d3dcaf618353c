"""Writes pages of a file by asynchronous direct I/O, while threads read them from the page cache.

Arguments: the file, which already has its full length, and the number of writes. After each write, the
program reads the page through the page cache, and checks that the page has the written bytes.
"""

import ctypes
import mmap
import os
import platform
import struct
import sys
import threading

PAGE = 4096
SETUP, GET_EVENTS, SUBMIT = {"x86_64": (206, 208, 209), "aarch64": (0, 4, 2)}[platform.machine()]
WRITE = 1
system = ctypes.CDLL(None, use_errno=True).syscall
system.restype = ctypes.c_long


def call(number, *arguments):
    result = system(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}")
    return result


class Direct:
    """A file that is open for asynchronous direct writes. Only one write is in progress at a time."""

    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_DIRECT)
        self.context = ctypes.c_ulong(0)
        call(SETUP, ctypes.c_long(1), ctypes.byref(self.context))
        self.memory = mmap.mmap(-1, PAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def write(self, byte, offset):
        self.memory[:] = bytes([byte]) * PAGE
        order = struct.pack(
            "=QIIHhIQQqQII",
            *(0, 0, 0, WRITE, 0, self.file, self.address, PAGE, offset, 0, 0, 0),
        )
        order = ctypes.create_string_buffer(order, len(order))
        orders = (ctypes.c_void_p * 1)(ctypes.addressof(order))
        call(SUBMIT, self.context, ctypes.c_long(1), orders)
        event = ctypes.create_string_buffer(32)
        call(GET_EVENTS, self.context, ctypes.c_long(1), ctypes.c_long(1), event, None)
        result = struct.unpack("=QQqq", event.raw)[2]
        if result != PAGE:
            raise OSError(-result, "an asynchronous write")


def main():
    path, rounds = sys.argv[1], int(sys.argv[2])
    direct, cached = Direct(path), os.open(path, os.O_RDONLY)
    pages = os.fstat(cached).st_size // PAGE
    place, is_over = [0], threading.Event()

    def read():
        while not is_over.is_set():
            os.pread(cached, PAGE, place[0])

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(rounds):
            byte, place[0] = number % 255 + 1, number % pages * PAGE
            direct.write(byte, place[0])
            found = os.pread(cached, PAGE, place[0])
            if found != bytes([byte]) * PAGE:
                raise ValueError(f"write {number}: there is {found[0]} at {place[0]}, not {byte}")
    finally:
        is_over.set()
        for reader in readers:
            reader.join()


main()
