"""Child processes with different PYTHONHASHSEEDs: started, waited for, and never left behind.

A job goes to a child's stdin, and the reply comes from its stdout. One thread per child serves both
pipes. The wait is bounded: a child that takes too long is killed. When a child crashes, or cannot
load the flow, the error shows the end of its stderr.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

from emberflow.errors import EmberflowError, FlowError, InputError
from emberflow.runners.verify.functions.comparison import fresh, saved
from emberflow.runners.verify.functions.tried import Tried
from emberflow.runners.verify.processes.tasks import Task

#: One for each child. This process has another one.
HASH_SEEDS = (1, 2, 3)

#: A child may always take this long, and longer if the same took long in this process.
WAIT_SECONDS_MIN = 120.0

_STDERR_LINES_SHOWN = 15


class ChildError(EmberflowError):
    """A child process failed to try the flow. Says nothing about the flow's purity."""


class Job(NamedTuple):
    hash_seed: int
    tasks: list[Task]


@contextmanager
def children(
    graph: bytes, jobs: Sequence[Job], *, wait_seconds: float = WAIT_SECONDS_MIN
) -> Iterator[list[Future[list[Any]]]]:
    """Start a child for each job; each future returns the results of the job's tasks.

    The graph has been saved before the flow first ran, so it carries no state that functions keep
    between calls.
    """
    running: list[subprocess.Popen[bytes]] = []

    def work(job: Job, process: subprocess.Popen[bytes]) -> list[Any]:
        data = saved((graph, job.tasks))
        return _reply(job, process, data, wait_seconds)

    try:
        running += (start(job.hash_seed) for job in jobs)
        with ThreadPoolExecutor(max(1, len(jobs))) as threads:
            yield [
                threads.submit(work, job, process)
                for job, process in zip(jobs, running, strict=True)
            ]
    finally:
        for process in running:
            process.kill()
            process.wait()


def results_of(
    graph: bytes, jobs: Sequence[Job], *, wait_seconds: float = WAIT_SECONDS_MIN
) -> list[list[Any]]:
    """The results of all jobs, each performed in a child of its own."""
    with children(graph, jobs, wait_seconds=wait_seconds) as futures:
        return [future.result() for future in futures]


def start(
    hash_seed: int,
    *arguments: str,
    stderr: int = subprocess.PIPE,
    start_new_session: bool = False,
) -> subprocess.Popen[bytes]:
    """A child process that waits for its job."""
    if not sys.executable:
        raise ChildError("verify starts child processes, and this Python knows no executable.")
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return subprocess.Popen(
        [sys.executable, "-m", "emberflow.runners.verify.processes.child", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=start_new_session,
        # The child imports the same modules as this process.
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": path},
    )


def _reply(
    job: Job, process: subprocess.Popen[bytes], data: bytes, wait_seconds: float
) -> list[Any]:
    try:
        reply, errors = process.communicate(data, timeout=wait_seconds)
    except subprocess.TimeoutExpired as late:
        process.kill()
        _, errors = process.communicate()
        raise ChildError(
            f"a child process with PYTHONHASHSEED={job.hash_seed} was not done after "
            f"{wait_seconds:.0f} seconds, and was stopped. Give fewer elements, or look for a "
            f"function that waits for something.{_stderr_tail(errors)}"
        ) from late
    except BrokenPipeError:
        reply, errors = b"", process.stderr.read() if process.stderr else b""
        process.wait()
    try:
        how, results = pickle.loads(reply)
    except Exception as error:
        raise ChildError(
            f"a child process with PYTHONHASHSEED={job.hash_seed} ended with exit code "
            f"{process.returncode} in the middle of the flow. A function that ends or crashes the "
            f"process does so wherever it runs.{_stderr_tail(errors)}"
        ) from error
    if how == "not loaded":
        raise ChildError(
            f"a child process could not load the flow: {results}. Workers are processes too: what a "
            f"function needs has to be importable there, or defined beside it.{_stderr_tail(errors)}"
        )
    if how == "failed":
        raise ChildError(
            f"a child process failed to try the flow:\n{results}{_stderr_tail(errors)}"
        )
    found: list[Any] = results
    return found


def _stderr_tail(errors: bytes) -> str:
    lines = errors.decode(errors="replace").strip().splitlines()[-_STDERR_LINES_SHOWN:]
    return "".join(f"\n  stderr: {line}" for line in lines)


def saved_graph(graph: Tried) -> bytes:
    """The graph as bytes. Raises `FlowError` if it cannot be sent to another process."""
    try:
        data = saved(graph)
        fresh(data)
    except Exception as error:
        raise FlowError(
            f"flow {graph.flow!r} cannot be sent to another process: {type(error).__qualname__}: "
            f"{error}. Workers are processes of their own: let its functions hold nothing that "
            f"belongs to this one, such as a lock, a file or a connection."
        ) from error
    return data


def saved_elements(elements: Mapping[str, Iterable[Any]]) -> bytes:
    """The elements as bytes. Raises `InputError` for one that cannot be sent to another process."""
    try:
        data = saved(elements)
        fresh(data)
    except Exception as error:
        for front, payloads in elements.items():
            for number, payload in enumerate(payloads):
                try:
                    fresh(saved(payload))
                except Exception as reason:
                    raise InputError(
                        f"front {front!r}: element {number} cannot be copied to another process: "
                        f"{type(reason).__qualname__}: {reason}. Use plain values."
                    ) from reason
        raise InputError(f"the elements cannot be copied to another process: {error}") from error
    return data
