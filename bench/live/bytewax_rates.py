"""The running count in Bytewax, in processes of its own virtual environment: see bench/bytewax_count.

Its shapes: one worker; two threads; two processes, which find each other over TCP on loopback. With
two workers the words come from one partition of its source, as in live, and from two. Bytewax has
no order between keys and takes no snapshots here, and its sinks keep nothing.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from live.session import BUILD

FLOW = Path(__file__).parent.parent / "bytewax_count"
PYTHON = BUILD / "bench-bytewax" / "bin" / "python"
_SECONDS_MAX = 120.0


@contextmanager
def prepared(words: list[str]) -> Iterator[dict[str, Callable[[], float]]]:
    """The shapes, each as a function that runs it once and returns its rate; none if not installed."""
    if not PYTHON.exists():
        print(f"  (no Bytewax: {PYTHON} is not there; scripts/ensure-bytewax makes it)")
        yield {}
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "words.txt")
        path.write_text("\n".join(words))
        run = partial(_rate, path, len(words))
        yield {
            "1 worker": partial(run, parts=1),
            "2 threads, 1 source": partial(run, parts=1, threads=2),
            "2 threads, 2 sources": partial(run, parts=2, threads=2),
            "2 processes, 1 source": partial(run, parts=1, processes=2),
            "2 processes, 2 sources": partial(run, parts=2, processes=2),
        }


def _rate(words: Path, count: int, *, parts: int, threads: int = 1, processes: int = 1) -> float:
    with tempfile.TemporaryDirectory() as seen:
        environment = dict(
            os.environ,
            EMBERFLOW_BENCH_WORDS=str(words),
            EMBERFLOW_BENCH_PARTS=str(parts),
            EMBERFLOW_BENCH_SEEN=seen,
        )
        environment.pop("PYTHONPATH", None)  # it is for our modules, not Bytewax's
        command = [str(PYTHON), "-m", "bytewax.run", "flow:flow", "-w", str(threads)]
        if processes > 1:
            command += ["-a", ";".join(_free_addresses(processes))]
        path = BUILD / "bench-bytewax.log"
        with open(path, "w") as log:
            started = [
                subprocess.Popen(
                    command + (["-i", str(number)] if processes > 1 else []),
                    cwd=FLOW,
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
                for number in range(processes)
            ]
            try:
                codes = [process.wait(_SECONDS_MAX) for process in started]
            except subprocess.TimeoutExpired:
                codes = [process.poll() for process in started]
            finally:
                for process in started:
                    process.kill()
                    process.wait()
        # not our failure: no figure, but the other benchmarks go on
        if any(code != 0 for code in codes):
            print(f"  (Bytewax ended with {codes}; None is too late: {path.read_text()[-500:]})")
            return 0.0
        return _rate_of(Path(seen), count)


def _rate_of(seen: Path, count: int) -> float:
    """As for live: from the first output of all to the last, not counting the first."""
    sinks = [json.loads(path.read_text()) for path in seen.iterdir()]
    stored = sum(sink["count"] for sink in sinks)
    assert stored == count, f"Bytewax's sinks have {stored:,} of {count:,}"
    first = min(sinks, key=lambda sink: sink["first_at"])
    last_at = max(sink["last_at"] for sink in sinks)
    return (count - first["first_count"]) / (last_at - first["first_at"])


def _free_addresses(count: int) -> list[str]:
    """Ports that were free just now. All are held until all are found, so that they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in held]
    for server in held:
        server.close()
    return addresses
