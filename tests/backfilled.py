"""A backfill without Spark: the reference runs a flow up to a moment and leaves its cut in a checkpoint.

`tests/batch` and `tests/spark` show that a backfill on Spark leaves the same.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import emberflow as ef
from emberflow.checkpoint.cuts.manifest import Manifest
from emberflow.checkpoint.cuts.rows import SCHEDULED
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.runners.elements import graph_for, timed_elements
from emberflow.runners.reference import Reference
from emberflow.values.item import GlobalTime

_numbers = count()

#: By location: makes another one, which ends so many times before it.
BACKFILLED: dict[str, Callable[[int], Path]] = {}


@cache
def _scratch() -> Path:
    folder = tempfile.mkdtemp(prefix="backfilled-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def backfilled(
    flow: ef.Flow,
    elements: dict[str, list[Any]],
    moment: tuple[int, int],
    folder: Path | None = None,
) -> Path:
    """What `flow.backfill(until=moment, checkpoint=folder)` leaves there.

    Without a folder it is one that goes with this process.
    """
    if folder is None:
        folder = _scratch() / str(next(_numbers))
        time, front = moment
        BACKFILLED[str(folder)] = lambda less: backfilled(flow, elements, (time - less, front))
    own = {name: given for name, given in elements.items() if name in flow.graph().fronts}
    graph = graph_for(flow.graph(), own)
    reference = Reference(graph)
    for at, front, payload in timed_elements(graph, own):
        if at < moment:
            reference.enter(at, front, payload)
    reference.advance(GlobalTime(*moment))
    buckets = list(reference.cut())
    assert all(row.place < moment for row in buckets), "a cut holds what is below its moment"
    store = CheckpointStore(folder)
    life = store.begin()
    parts = [
        store.write_part(1, "backfill", [rows], incarnation=life.incarnation, kind=kind)
        for kind, rows in (
            ("bucket", buckets),
            (SCHEDULED, list(reference.scheduled())),
        )
        if rows
    ]
    store.commit(
        Manifest.of(graph, number=1, incarnation=life.incarnation, time=moment, parts=parts)
    )
    return folder
