"""When the driver begins a cut, and of what: how long it rests, and what changes if somebody waits for it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.engine.cuts.cut import Row
from emberflow.engine.messages import Moment
from emberflow.runners.live.driver import cuts
from emberflow.runners.live.driver.cuts import CutCommitter, CutsByTime
from emberflow.runners.live.worker import cut_writer
from emberflow.runners.live.worker.cut_writer import CALM, QUICK, Captured, CutOrder, CutWriter
from emberflow.runners.live.worker.machine.spare import (
    AWAITED_AT_FIRST,
    FIRST_SECONDS,
    LOOK_SECONDS,
    MOST,
    Spare,
)
from tests.checkpoint.cases import graph


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return 0.0


def committer_at(folder: Path) -> CutCommitter:
    return CutCommitter(
        graph(), str(folder), CheckpointStore(folder).begin(), CutsByTime(),
        workers=1, interval_ms=1_000, keep=2, logged={},
    )  # fmt: skip


def test_a_cut_that_waits_for_a_sink_does_not_put_off_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(cuts, "time", clock)
    committer = committer_at(tmp_path)

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


def test_a_cut_that_somebody_waits_for_adds_to_the_last_one(tmp_path: Path) -> None:
    """However long the chain is: to store everything again would take long."""
    committer = committer_at(tmp_path)
    store, time_ = CheckpointStore(tmp_path), 0

    def made(share: float, *, whole: bool = False) -> CutOrder:
        nonlocal time_
        time_ += 1
        order = committer.due((time_, 0), now=True, share=share, whole=whole)
        assert order is not None
        rows = [("count", 5, "ada", (time_ - 1, 0), time_)]
        part = store.write_part(order.number, 0, [rows], incarnation=1, base=order.base)
        assert part is not None
        committer.captured(Captured(0, order.number, [part], {}))
        while committer.committed((time_, 0)) is None:
            time.sleep(0.001)  # a thread writes the manifest
        while not committer.is_idle:
            time.sleep(0.001)
        return order

    try:
        assert made(QUICK).base is None  # there is nothing that it could add to
        while made(CALM).base is not None:
            assert time_ < 100
        before = time_
        for number in range(before, 2 * before):
            assert made(QUICK).base == number
        assert committer.is_long
        assert made(QUICK, whole=True).base is None
        assert not committer.is_long
        committer.only_adds = True
        for number in range(2 * before + 1, 3 * before + 1):
            assert made(CALM).base == number
        committer.only_adds = False
        assert made(CALM).base is None
        order = committer.due((time_ + 1, 0), now=True)
        assert order is not None
        assert committer.hurry()
        assert not committer.hurry()  # the workers know it
    finally:
        committer.close(10)


class OneByOne:
    """An engine whose captures take a millisecond a piece, and never end."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def begin_cut(self, moment: Moment, since: Moment) -> OneByOne:
        return self

    def next(self, limit: int) -> list[Row]:
        self.clock.now += 0.001
        return []


def test_a_cut_of_many_rows_takes_of_what_a_busy_loop_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    spare = Spare(clock.now)
    writer, next_writer = (CutWriter(CheckpointStore(tmp_path), 0, 1, spare) for _ in range(2))
    try:
        monkeypatch.setattr(cut_writer, "time", clock)
        engine: Any = OneByOne(clock)

        def rests() -> float:
            """How long the capture rests behind the next piece."""
            clock.now = max(clock.now, writer._rests_until)
            writer.go_on(loop_is_busy=True)
            begin = clock.now
            while not writer.is_busy:
                clock.now += 0.0001
            return clock.now - begin

        def looked(free: float) -> float:
            """The share, when the loop had so much of the time left since the last look."""
            spare.look(clock.now)
            spare.gave(2 * LOOK_SECONDS * free)
            clock.now += 2 * LOOK_SECONDS
            spare.look(clock.now)
            writer.go_on(loop_is_busy=True)
            return writer.share

        writer.begin(engine, CutOrder(1, (5, 0), (4, 0), None), {})
        assert looked(0.9) == CALM  # it may be a small one
        assert rests() == pytest.approx(0.001 * (1 / CALM - 1), rel=0.1)
        clock.now += cut_writer._LARGE_AFTER_SECONDS
        assert CALM < looked(0.3) < looked(0.9) == MOST
        assert rests() < 0.001
        assert looked(0.0) == CALM
        writer.hurry()
        assert looked(0.0) == AWAITED_AT_FIRST  # it may be a small one
        clock.now += FIRST_SECONDS
        assert looked(0.0) == QUICK
        assert QUICK < looked(0.4) == pytest.approx(0.6, rel=0.05)
        for _ in range(100):
            looked(0.0)
        assert looked(0.0) == QUICK  # perhaps it is behind because of this cut
        next_writer.begin(engine, CutOrder(2, (6, 0), (5, 0), None, QUICK), {})
        clock.now += FIRST_SECONDS
        assert next_writer.share == AWAITED_AT_FIRST
    finally:
        monkeypatch.undo()
        writer.close(10)
        next_writer.close(10)
