"""How long the driver rests between cuts: by how long a cut took, not by how long it waited for sinks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.engine.messages import Moment
from emberflow.runners.live.driver import cuts
from emberflow.runners.live.driver.cuts import CutCommitter, CutsByTime
from emberflow.runners.live.worker.cut_writer import Captured
from tests.checkpoint.cases import graph


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_a_cut_that_waits_for_a_sink_does_not_put_off_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(cuts, "time", clock)
    committer = CutCommitter(
        graph(), str(tmp_path), CheckpointStore(tmp_path).begin(), CutsByTime(),
        workers=1, interval_ms=1_000, keep=2, logged={},
    )  # fmt: skip

    def settled(at: Moment) -> bool:
        while (manifest := committer.committed(at)) is None and committer._writing:
            time.sleep(0.001)  # a thread writes the manifest
        return manifest is not None

    clock.now += 1
    order = committer.due((5, 0))
    assert order is not None
    clock.now += 2  # so long the worker captures and stores its part
    committer.captured(Captured(0, order.number, [], {}))
    assert not settled((4, 0)), "output below the cut is not stored"
    clock.now += 600  # so long the sink holds output
    assert not settled((4, 0))
    assert settled((5, 0))
    clock.now += 2 * 2 - 0.5
    assert committer.due((6, 0)) is None
    clock.now += 0.5
    assert committer.due((6, 0)) is not None
    committer.close(10)
