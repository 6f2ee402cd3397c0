"""Fresh processes for shrinking: each of many small tries needs functions that were never called.

Starting Python for every try would take most of the time. Where the system can fork, one child
loads the flow and forks for each try; a fork has the functions as they were loaded. Forks share
addresses and the hash seed, so they show what a function remembers, not what differs between
processes. A try that takes too long ends the child, and with it the shrinking.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
from threading import Timer
from typing import IO, Any

from emberflow.runners.verify.functions.comparison import saved
from emberflow.runners.verify.processes.children import ChildError, Job, results_of, start
from emberflow.runners.verify.processes.tasks import Task

#: Each try does a small part of what this process has already run.
TRY_SECONDS_MAX = 30.0

_LENGTH = struct.Struct(">Q")


class Nursery:
    """Performs each list of tasks in another process that has just loaded the graph."""

    def __init__(self, graph: bytes) -> None:
        self._graph = graph
        self._servers: dict[int, subprocess.Popen[bytes]] = {}

    def perform(self, hash_seed: int, tasks: list[Task]) -> list[Any]:
        if not hasattr(os, "fork"):
            return results_of(self._graph, [Job(hash_seed, tasks)])[0]
        server = self._servers.get(hash_seed) or self._started(hash_seed)
        assert server.stdin is not None
        assert server.stdout is not None
        timer = Timer(TRY_SECONDS_MAX, _kill, (server,))
        timer.start()
        try:
            write_message(server.stdin, saved(tasks))
            how, results = pickle.loads(read_message(server.stdout))
        except Exception as error:
            raise ChildError(f"a try in a child process did not end well: {error}") from error
        finally:
            timer.cancel()
        if how != "done":
            raise ChildError(f"a try in a child process failed: {results}")
        found: list[Any] = results
        return found

    def _started(self, hash_seed: int) -> subprocess.Popen[bytes]:
        server = start(hash_seed, "serve", stderr=subprocess.DEVNULL, start_new_session=True)
        self._servers[hash_seed] = server
        assert server.stdin is not None
        write_message(server.stdin, self._graph)
        return server

    def close(self) -> None:
        for server in self._servers.values():
            _kill(server)
            server.communicate()
        self._servers.clear()


def _kill(server: subprocess.Popen[bytes]) -> None:
    """Kill a server and its fork, which are in a process group of their own."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)


def write_message(file: IO[bytes], data: bytes) -> None:
    file.write(_LENGTH.pack(len(data)))
    file.write(data)
    file.flush()


def read_message(file: IO[bytes]) -> bytes:
    """The next message. Raises `EOFError` at the end."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError("the other side has closed")
    (length,) = _LENGTH.unpack(head)
    return file.read(length)
