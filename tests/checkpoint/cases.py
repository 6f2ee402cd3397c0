"""A flow, stores on all kinds of file system, and cuts of a state that is a plain dict."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

import emberflow as ef
from emberflow.checkpoint import BUCKET, Manifest, Row, removed
from emberflow.checkpoint.cuts.lists import SavedLists
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.graph.nodes import Graph
from emberflow.values.hashing import hash_ranges, key_hash, owner
from tests.adapters import s3_server

#: By operation and key: the items of the bucket.
State = dict[tuple[str, Any], list[tuple[tuple[int, ...], Any]]]


def graph(window: int = 3) -> Graph:
    flow = ef.Flow("counting")
    words = flow.front("words").flat_map(str.split, name="split").key_by(str)
    words.group(window=window, name="last").sink("last")
    return flow.graph()


def remote(folder: Path) -> CheckpointStore:
    """A store on a file system without locks, appends or fsync."""
    return CheckpointStore("", filesystem=SubTreeFileSystem(str(folder), LocalFileSystem()))


def on_objects(folder: Path) -> CheckpointStore:
    """A store on the S3 server of the tests: which runs for those with the parameter "objects"."""
    return CheckpointStore(url_of(folder))


def url_of(folder: Path) -> str:
    return f"s3://{s3_server.BUCKET}{folder}"


STORES: dict[str, Callable[[Path], CheckpointStore]] = {
    "local": CheckpointStore,
    "remote": remote,
    "objects": on_objects,
}
FILES = ["local", "remote"]
#: The tests that run on a server share one: see conftest.py.
KINDS = [*FILES, pytest.param("objects", marks=pytest.mark.xdist_group("s3"))]


def hash_of(key: Any, spread: int) -> int:
    """A hash that equal keys share; with a small spread, other keys too."""
    return key_hash(key) if spread == 0 else key_hash(key) % spread - spread // 2


def rows_of(state: State, spread: int = 0) -> list[Row]:
    return [
        (operation, hash_of(key, spread), key, place, payload)
        for (operation, key), bucket in state.items()
        for place, payload in bucket
    ]


def state_of(rows: Iterator[Row]) -> State:
    state: State = {}
    for operation, _, key, place, payload in rows:
        state.setdefault((operation, key), []).append((place, payload))
    return state


class Workers:
    """Writes cuts as this many workers would: each the rows of its range, in chunks."""

    def __init__(self, store: CheckpointStore, incarnation: int, workers: int, spread: int) -> None:
        self.store = store
        self.incarnation = incarnation
        self.workers = workers
        self.spread = spread
        self.lists = [SavedLists() for _ in range(workers)]

    def restore(self, manifest: Manifest, kind: str = BUCKET) -> State:
        state: State = {}
        for lists, own in zip(self.lists, hash_ranges(self.workers), strict=True):
            rows = list(self.store.rows(manifest, own.low, own.high, kind=kind, lists=lists))
            assert all(row[1] in own for row in rows)
            found = state_of(iter(rows))
            assert not found.keys() & state.keys()
            state |= found
        return state

    def write(
        self,
        number: int,
        state: State,
        changed: Sequence[tuple[str, Any]] | None,
        base: Manifest | None,
        dice: random.Random,
        time: tuple[int, int] = (0, 0),
    ) -> Manifest:
        """Write a cut without committing it. ``changed`` is None for a full one."""
        parts = []
        for worker in range(self.workers):
            rows: list[Row] = []
            for operation, key in state if changed is None else changed:
                hashed = hash_of(key, self.spread)
                if owner(hashed, self.workers) == worker:
                    bucket = state.get((operation, key))
                    if bucket is None:
                        rows.append(removed(operation, hashed, key))
                    else:
                        rows += [(operation, hashed, key, *item) for item in bucket]
            parts.append(
                self.store.write_part(
                    number,
                    worker,
                    chunks(rows, dice),
                    incarnation=self.incarnation,
                    base=None if changed is None or base is None else base.number,
                    lists=self.lists[worker],
                )
            )
        return Manifest.of(
            graph(),
            number=number,
            incarnation=self.incarnation,
            time=time,
            parts=parts,
            base=None if changed is None else base,
        )


def chunks(rows: list[Row], dice: random.Random) -> Iterator[list[Row]]:
    while rows:
        size = dice.randint(0, 4)
        yield rows[:size]
        rows = rows[size:]
