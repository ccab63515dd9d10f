"""A FUSE file system over a folder that hangs, or answers every request with one error.

python frozen.py FOLDER ERRNO PID    mounts it, as PID sees FOLDER, and prints `mounted`; removes it at the
end of its stdin.

ERRNO 0: requests are taken and never answered, so who asks waits in the kernel, and SIGKILL does not end it.
Needs root and /dev/fuse.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

INIT, FORGET, BATCH_FORGET = 26, 2, 42  # linux/fuse.h
HEAD = struct.Struct("<IIQ")  # length, opcode, unique
DETACH, NEW_MOUNTS = 2, 0x20000  # MNT_DETACH, CLONE_NEWNS


def serve(folder: str, error: int, pid: str) -> None:
    """Mount over `folder` and serve until stdin ends; waiting requests then get ESTALE."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open("/dev/fuse", os.O_RDWR)
    if libc.setns(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY), NEW_MOUNTS):
        sys.exit(os.strerror(ctypes.get_errno()))
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other"
    if libc.mount(b"frozen", folder.encode(), b"fuse", 0, options.encode()):
        sys.exit(os.strerror(ctypes.get_errno()))
    waiting = []
    sys.stdout.write("mounted\n")
    sys.stdout.flush()
    while sys.stdin not in (ready := select.select([fd, sys.stdin], [], [])[0]):
        assert ready
        _, opcode, unique = HEAD.unpack_from(os.read(fd, 1 << 17))
        if opcode == INIT:
            body = struct.pack("<IIIIHHI", 7, 23, 65536, 0, 12, 10, 65536)
            os.write(fd, HEAD.pack(16 + len(body), 0, unique) + body)
        elif error and opcode not in (FORGET, BATCH_FORGET):
            os.write(fd, HEAD.pack(16, -error % (1 << 32), unique))
        else:
            waiting.append(unique)
    libc.umount2(folder.encode(), DETACH)
    for unique in waiting:
        with contextlib.suppress(OSError):  # who asked may be gone
            os.write(fd, HEAD.pack(16, -errno.ESTALE % (1 << 32), unique))


@contextlib.contextmanager
def over(folder: Path, error: int = 0, pid: int | None = None) -> Iterator[None]:
    """Inside the block `folder` hangs or fails; `pid`: as this process sees it, in its mount namespace."""
    server = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(folder), str(error), str(pid or "self")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == b"mounted\n", f"cannot mount over {folder}"
        yield
    finally:
        server.communicate(timeout=30)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
