"""What a new version of a flow takes of backfills: which cut it is, and its rows.

A plan names a cut exactly (`graph.versions.CutName`). Whoever reads the rows later, such as a worker of
another process or the next life of a query, gets those of this cut, or an error. The checkpoint of the
backfill has to be there until the new version has made a cut of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from emberflow.checkpoint.cuts.rows import SCHEDULED
from emberflow.checkpoint.errors import CheckpointError
from emberflow.engine.cuts.cut import Row, Scheduled
from emberflow.engine.cuts.translation import backfilled_rows, backfilled_timers
from emberflow.errors import InputError
from emberflow.extras import need
from emberflow.graph.description import Step
from emberflow.graph.nodes import Graph
from emberflow.graph.versions import (
    Backfill,
    Carry,
    CarryError,
    CarryPlan,
    CutName,
    KnownCut,
    carry_plan,
)
from emberflow.values.hashing import ALL_HASHES, HashRange

if TYPE_CHECKING:
    from emberflow.checkpoint.cuts.manifest import Manifest
    from emberflow.checkpoint.cuts.store import CheckpointStore


def planned(
    before: Sequence[Step],
    graph: Graph,
    carry: Carry | None = None,
    at: tuple[int, int] | None = None,
) -> CarryPlan:
    """How a graph takes over from a version with these steps: `carry_plan`, with the cuts of backfills."""
    return carry_plan(before, graph, carry, at=at, look=known_cut)


def known_cut(checkpoint: str | os.PathLike[str]) -> KnownCut:
    """The last cut of a checkpoint, for a version that begins with some of its state."""
    location = absolute(checkpoint)
    cut = _last(location)
    if cut.ordering != "time":
        raise CarryError(
            f"the checkpoint at {location} is of a query with ordering={cut.ordering!r}: its state is that "
            f"of no moment. Backfill the flow instead."
        )
    return KnownCut(_name_of(location, cut), cut.steps)


def last_moment(checkpoint: str | os.PathLike[str]) -> tuple[int, int]:
    """The moment ``(time, front)`` of the last cut of a checkpoint: all below it is part of its state.

    A query that was stopped goes on from there. So this is where a backfill has to end whose state a new
    step begins with: ``flow.backfill(spark, until=ef.last_moment("checkpoint"), ...)``.
    """
    return _last(absolute(checkpoint)).time


def rows_of(
    backfill: Backfill, ranges: Sequence[HashRange] = ALL_HASHES
) -> tuple[Iterator[Row], Iterator[Scheduled]]:
    """The rows and scheduled items of these key hashes that the new version begins with."""
    store, cut = _found(backfill.cut)
    scheduled = map(Scheduled._make, store.rows_in(cut, ranges, kind=SCHEDULED))
    rows = store.rows_in(cut, ranges)
    return backfilled_rows(rows, backfill), backfilled_timers(scheduled, backfill)


def all_rows(
    plan: CarryPlan, ranges: Sequence[HashRange] = ALL_HASHES
) -> tuple[list[Row], list[Scheduled]]:
    """The same of all backfills of a plan, in memory."""
    rows: list[Row] = []
    scheduled: list[Scheduled] = []
    for backfill in plan.backfills:
        own, timers = rows_of(backfill, ranges)
        rows += own
        scheduled += timers
    return rows, scheduled


def check_begins(plan: CarryPlan, moment: tuple[int, int]) -> None:
    """Raises `CarryError` if a version that begins from backfills would take over at another moment."""
    if plan.moment is not None and plan.moment != moment:
        raise CarryError(
            f"the new version begins from a backfill that ends at {tuple(plan.moment)}, and would take "
            f"over at {tuple(moment)}. Let it take over at the moment of the backfill."
        )


def absolute(checkpoint: str | os.PathLike[str]) -> str:
    """The location, wherever a process runs that reads it."""
    text = os.fspath(checkpoint)
    return text if "://" in text else str(Path(text).absolute())


def _last(location: str) -> Manifest:
    need("pyarrow", extra="spark", what="state of a checkpoint")
    from emberflow.checkpoint.cuts.store import CheckpointStore

    cut = CheckpointStore(location).latest()
    if cut is None:
        raise InputError(
            f"{location} has no cut. A backfill leaves one there when it is done: "
            f"flow.backfill(spark, until=..., checkpoint={location!r}, ...)."
        )
    return cut


def _name_of(location: str, cut: Manifest) -> CutName:
    return CutName(location, cut.number, cut.incarnation, cut.fingerprint, cut.time)


def _found(name: CutName) -> tuple[CheckpointStore, Manifest]:
    from emberflow.checkpoint.cuts.store import CheckpointStore

    store = CheckpointStore(name.checkpoint)
    for cut in store.cuts():
        if _name_of(name.checkpoint, cut) == name:
            return store, cut  # `known_cut` found it whole, and who reads its files verifies them
    raise CheckpointError(
        f"{name.checkpoint} no longer has cut {name.number} at {name.moment}, with whose state a new "
        f"version of a flow begins. Keep the checkpoint of a backfill as it is until that version has "
        f"made a cut of its own, and let no query go on from it."
    )
