"""Mount a FUSE file system over a folder that hangs or fails every request with one error.

`python failing_filesystem.py FOLDER ERRNO PID` mounts it over FOLDER in the mount namespace of PID, prints
`mounted`, and unmounts it when its standard input is closed. With ERRNO 0 requests are never answered: the
processes that send them wait in the kernel, and SIGKILL does not terminate them. Needs root and /dev/fuse.
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


def serve_requests(folder: str, error: int, pid: str) -> None:
    """Mount over `folder` and serve until standard input is closed; pending requests then fail with ESTALE."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open("/dev/fuse", os.O_RDWR)
    if libc.setns(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY), NEW_MOUNTS):
        sys.exit(os.strerror(ctypes.get_errno()))
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other"
    if libc.mount(b"frozen", folder.encode(), b"fuse", 0, options.encode()):
        sys.exit(os.strerror(ctypes.get_errno()))
    pending = []
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
            pending.append(unique)
    libc.umount2(folder.encode(), DETACH)
    for unique in pending:
        with contextlib.suppress(OSError):  # the process that sent the request may have exited
            os.write(fd, HEAD.pack(16, -errno.ESTALE % (1 << 32), unique))


@contextlib.contextmanager
def mount_over(folder: Path, error: int = 0, pid: int | None = None) -> Iterator[None]:
    """Make `folder` hang or fail during the block.

    Args:
        folder: The folder to mount over.
        error: The errno of every request; 0 to never answer.
        pid: A process whose mount namespace is used; by default the caller's.
    """
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
    serve_requests(sys.argv[1], int(sys.argv[2]), sys.argv[3])
