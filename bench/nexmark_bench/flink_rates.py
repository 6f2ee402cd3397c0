"""The queries in Flink's SQL, by PyFlink in a virtual environment of its own: see scripts/ensure-flink.

A local cluster of Flink with two slots reads two files of JSON Lines, takes a checkpoint each second, and its
sink forgets all rows. A job takes a while to be deployed, so each query runs on a few events and on all. The rate
is that of the events that the second run has more, in the time that it takes longer.

One process of Flink runs all queries. It waits while the others are measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from live.session import BUILD
from nexmark.generator import Event
from nexmark.rows import SIDE_INPUT

from nexmark_bench.given_events import READERS, write_dealt

PYTHON = BUILD / "bench-flink" / "bin" / "python"
LOG = BUILD / "bench-flink.log"
SECONDS_MAX = 300.0


class Flink:
    """Use it with ``with``: Flink's process ends with it."""

    def __init__(self, few: list[Event], events: list[Event]) -> None:
        self._few, self._events = few, events
        self._more = len(events) - len(few)
        self._folder = tempfile.TemporaryDirectory()
        self._job: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None

    def __enter__(self) -> Flink:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._folder.cleanup()

    def rate(self, query: str) -> float | str:
        """Events a second, or why there is no figure."""
        if not PYTHON.exists():
            return f"no Flink: scripts/ensure-flink makes {PYTHON}"
        told = self._asked(query)
        if told is None:
            self._end()
            return f"no answer: see {LOG}"
        if "error" in told:
            return _cause(told["error"])
        longer = told["all"] - told["few"]
        return self._more / longer if longer > 0 else "too few events to tell"

    def _asked(self, query: str) -> dict[str, Any] | None:
        """The script's answer; None if it ends, or takes too long."""
        job = self._job = self._job or self._started()
        assert job.stdin is not None
        assert job.stdout is not None
        late = threading.Timer(SECONDS_MAX, job.kill)
        late.start()
        try:
            job.stdin.write(f"{query}\n")
            job.stdin.flush()
            for line in job.stdout:
                if line.startswith("{"):
                    found: dict[str, Any] = json.loads(line)
                    return found
        except OSError:  # it has ended
            pass
        finally:
            late.cancel()
        return None

    def _started(self) -> subprocess.Popen[str]:
        folder = Path(self._folder.name)
        if not (folder / "all").exists():
            write_dealt(folder / "few", self._few)
            write_dealt(folder / "all", self._events)
            lines = (f"{key},{value}\n" for key, value in SIDE_INPUT.items())
            (folder / "side_input.csv").write_text("".join(lines))
        self._log = self._log or LOG.open("w")
        return subprocess.Popen(
            [str(PYTHON), str(Path(__file__).with_name("flink_job.py")), str(folder), str(READERS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            text=True,
        )

    def _end(self) -> None:
        if self._job is not None:
            assert self._job.stdin is not None
            with suppress(OSError):
                self._job.stdin.close()
            try:
                self._job.wait(20)
            except subprocess.TimeoutExpired:
                self._job.kill()
                self._job.wait()
            self._job = None
        if self._log is not None:
            self._log.close()
            self._log = None


def _cause(error: str) -> str:
    """The last exception that Java tells of, in one line."""
    lines = [line.strip() for line in error.splitlines()]
    causes = [line for line in lines if "Exception: " in line]
    return (causes or lines)[-1].rpartition("Exception: ")[2][:160]
