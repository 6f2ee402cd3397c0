"""Nobody but the owner can read what a query keeps in its checkpoint, whatever the umask says."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import emberflow as ef
from emberflow.checkpoint import Manifest
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.logs.front_log import FrontLogWriter
from emberflow.values.hashing import key_hash
from emberflow.values.item import GlobalTime
from tests.adapters.structured import Sender, graph, outbox, placed_front, placed_sink


@pytest.fixture(params=[0o000, 0o022], ids=oct)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A location that does not exist yet, in a process with a lax umask."""
    before = os.umask(request.param)
    yield tmp_path / "above" / "checkpoint"
    os.umask(before)


def assert_private(folder: Path) -> None:
    found = [folder, *folder.rglob("*")]
    assert len(found) > 1
    for path in found:
        expected = 0o700 if path.is_dir() else 0o600
        assert oct(stat.S_IMODE(path.stat().st_mode)) == oct(expected), path


def test_cuts_holds_and_incarnations(location: Path) -> None:
    store = CheckpointStore(location)
    life = store.begin()
    rows = [("count", key_hash("ash"), "ash", (7, 0), 1)]
    part = store.write_part(1, 0, [rows], incarnation=life.incarnation)
    flow = graph()
    store.commit(
        Manifest.of(flow, number=1, incarnation=life.incarnation, time=(8, 0), parts=[part])
    )
    assert store.hold(60, lambda manifest: True) is not None
    store.prune(1, incarnation=life.incarnation)
    folders = {path.name for path in location.iterdir() if path.is_dir()}
    assert {"cuts", "holds", "incarnations", "parts"} <= folders
    assert_private(location)


def test_logs_of_fronts(location: Path) -> None:
    log = FrontLogWriter(location, "words", 0, 1)
    log.append([(0, 7)])
    log.sync()
    log.close()
    assert_private(location)


def test_batches_of_structured_fronts(location: Path) -> None:
    service = placed_front(location, "word").service()
    for step in Sender().steps(0, [[(1, "ash")]])[:-1]:
        step(service)  # a part that is staged, and no more
    Sender().send(service, 0, [(1, "ash")])
    service.close()
    assert_private(location)


def test_bundles_of_structured_sinks(location: Path) -> None:
    sink = placed_sink(location)
    writer = sink.open(0)
    bundle = ef.sinks.StoredBundle("counts", 0, GlobalTime(7, 0), [("ash", 1)], [(7, 0)])
    writer.store(bundle)
    writer.close()
    service = outbox(sink)
    service.serve("acknowledge", {"end": {"0": [6, 0]}})
    assert_private(location)


def test_output_that_others_are_to_read_follows_the_umask(location: Path) -> None:
    writer = ef.sinks.Files(location).open(0)
    writer.store(ef.sinks.StoredBundle("words", 0, GlobalTime(7, 0), ["ash"]))
    (file,) = location.glob("*/*.jsonl")
    assert stat.S_IMODE(file.stat().st_mode) & 0o044
