"""A worker dies in the middle of a piece of its own work, whichever the test asks for.

A random moment seldom hits what takes some milliseconds. So each worker's process has traps at such places, which do
nothing until the test arms one of them. The first worker that comes to it then kills its own process, with a signal
that nobody can catch: nothing is cleaned up, and no file is closed.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from emberflow.checkpoint.cuts.parts.writer import PartWriter
from emberflow.runners.live.cold import runs
from emberflow.runners.live.cold.blocks import RunFiles
from emberflow.runners.live.cold.restored import CutRun
from emberflow.runners.live.worker.cut_writer import CutWriter

#: Cold rows are in a file, and still in memory.
EVICTION = "eviction"
#: Some of the rows of several runs are in the files of the new one.
MERGE = "merge"
#: Behind a restore: rows of the cut are in the files of a run, which nobody uses yet.
COPY = "copy of a cut"
#: A part of a cut is written, and has neither its name nor its last bytes.
PART = "part of a cut"
#: A part of a cut is durable, and the cut does not count yet.
STORED = "cut without a manifest"
#: A copy follows a restore, so there is one behind each of the others.
PLACES = (EVICTION, COPY, MERGE, PART, STORED)

#: The processes that have traps.
_trapped: set[int] = set()


class Traps:
    """Sets the traps in each process that an element comes to. The element goes on as it is."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder

    def __call__(self, element: Any) -> Any:
        if os.getpid() not in _trapped:
            _trapped.add(os.getpid())
            self._set()
        return element

    def _set(self) -> None:
        # So few keys are merged in pieces, by a thread, as millions are.
        runs._SMALL_ROWS, runs._PIECE_ROWS = 256, 512
        copies = threading.local()

        def merges(rows_of_cuts: bool) -> bool:
            is_merge = threading.current_thread().name == "emberflow cold merge"
            return is_merge and getattr(copies, "has_begun", False) == rows_of_cuts

        def copy_begins() -> None:
            copies.has_begun = True

        _behind(CutRun, "slices", copy_begins)
        _behind(RunFiles, "add", lambda: merges(True) and self._spring(COPY))
        _behind(RunFiles, "add", lambda: merges(False) and self._spring(MERGE))
        _behind(runs, "run_on_disk", lambda: self._spring(EVICTION))
        _behind(PartWriter, "finish", lambda: self._spring(PART))
        _behind(CutWriter, "_stored", lambda: self._spring(STORED))

    def _spring(self, place: str) -> None:
        armed = self._folder / "armed"
        if not armed.exists() or armed.read_text() != place:
            return
        try:
            (self._folder / place).touch(exist_ok=False)
        except FileExistsError:
            return  # somebody has died here
        os.kill(os.getpid(), signal.SIGKILL)

    # In the test's process.

    def arm(self, place: str) -> None:
        new = self._folder / "new"
        new.write_text(place)
        new.rename(self._folder / "armed")

    def was_deadly(self, place: str) -> bool:
        return (self._folder / place).exists()


def _behind(owner: Any, name: str, then: Callable[[], object]) -> None:
    """Let something follow each call of a function."""
    called: Callable[..., Any] = getattr(owner, name)

    def followed(*arguments: Any) -> Any:
        result = called(*arguments)
        then()
        return result

    setattr(owner, name, followed)
