"""Cuts real TCP connections of another process, from outside, with what is on them lost.

`pidfd_getfd` gives us the process's own socket. To connect it to nowhere (``AF_UNSPEC``) resets the
connection: what was on its way is gone, and the process finds a broken connection.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.faults.toll import toll

_PIDFD_GETFD = 438
_libc = ctypes.CDLL(None, use_errno=True)


def sockets_of(pid: int) -> Iterator[socket.socket]:
    """The TCP sockets of a process. Close them; the process keeps its own."""
    process = os.pidfd_open(pid)
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if not os.readlink(entry).startswith("socket:"):
                    continue
                descriptor = _libc.syscall(_PIDFD_GETFD, process, int(entry.name), 0)
                if descriptor < 0:
                    number = ctypes.get_errno()
                    if number == 1:  # EPERM
                        raise PermissionError("this system does not let us cut connections")
                    continue
                found = socket.socket(fileno=descriptor)
                if found.family == socket.AF_INET and found.type == socket.SOCK_STREAM:
                    yield found
                else:
                    found.close()
    finally:
        os.close(process)


def listening_ports(pid: int) -> set[int]:
    ports = set()
    for found in sockets_of(pid):
        with found:
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                ports.add(found.getsockname()[1])
    return ports


def cut_one(pids: list[int], coordinator: int, dice: Random) -> bool:
    """Cut a connection between these workers, or between one and the port of the coordinator."""
    try:
        ports = {coordinator}.union(*map(listening_ports, pids))
    except ProcessLookupError:
        return False  # the life is over
    found: list[socket.socket] = []
    try:
        with suppress(ProcessLookupError):
            found += sockets_of(dice.choice(pids))
        between = [one for one in found if _port_of(one) in ports]
        if not between:
            return False
        chosen = dice.choice(sorted(between, key=_port_of))
        nowhere = struct.pack("H14s", socket.AF_UNSPEC, b"")
        is_cut = _libc.connect(chosen.fileno(), nowhere, len(nowhere)) == 0
        if is_cut:
            toll("connection")
        return is_cut
    finally:
        for one in found:
            one.close()


def _port_of(one: socket.socket) -> int:
    """The peer's port, or 0 where there is no connection."""
    try:
        return int(one.getpeername()[1])
    except OSError:
        return 0
