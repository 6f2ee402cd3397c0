"""The program of a child process: a job from stdin, the results of its tasks to stdout.

`children` starts it with a PYTHONHASHSEED of its own. Whatever the user's functions print goes to
stderr: stdout is for the reply. A reply is a pair: a word that says how it went, and the results or
an error text.

With the argument ``serve`` it is a server for the `nursery`: it loads the graph once and forks for
each list of tasks, so that every list is performed by functions that were never called.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from typing import IO, Any

from emberflow.runners.verify.functions.comparison import saved
from emberflow.runners.verify.functions.sites import sites_of
from emberflow.runners.verify.processes.nursery import read_message, write_message
from emberflow.runners.verify.processes.tasks import perform


def main() -> None:
    reply = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with reply:
        if sys.argv[1:] == ["serve"]:
            _serve(reply)
        else:
            reply.write(saved(_done(sys.stdin.buffer.read())))
    _end()


def _done(job: bytes) -> tuple[str, Any]:
    try:
        data, tasks = pickle.loads(job)
        graph = pickle.loads(data)
    except BaseException as error:
        return "not loaded", f"{type(error).__qualname__}: {error}"
    try:
        sites = sites_of(graph)
        return "done", [perform(graph, sites, task) for task in tasks]
    except BaseException:
        return "failed", traceback.format_exc()


def _serve(reply: IO[bytes]) -> None:
    requests = sys.stdin.buffer
    graph = pickle.loads(read_message(requests))
    sites = sites_of(graph)
    while True:
        try:
            tasks = pickle.loads(read_message(requests))
        except EOFError:
            return
        ours, theirs = os.pipe()
        if os.fork() == 0:
            try:
                with os.fdopen(theirs, "wb") as answer:
                    answer.write(saved(("done", [perform(graph, sites, task) for task in tasks])))
            finally:
                _end()  # in any case: there must be no second server
        os.close(theirs)
        with os.fdopen(ours, "rb") as answer:
            data = answer.read()
        os.wait()
        # No data means that the fork has crashed.
        write_message(reply, data or saved(("failed", "the process crashed")))


def _end() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    # Do not wait for threads and exit handlers of the user's modules.
    os._exit(0)


if __name__ == "__main__":
    main()
