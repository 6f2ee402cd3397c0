"""A worker of an old life that opens its sink again stores nothing that its successor cannot know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from emberflow import GlobalTime, sinks
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.errors import FencedError
from emberflow.checkpoint.logs.front_log import FrontLogWriter, read_log
from emberflow.sinks import SinkMovedError, StoredBundle
from emberflow.sinks.writer import WriterThread
from tests.effort import SECONDS


class Shaky(sinks.Files):
    """Loses its connection once, when it is told to."""

    shakes = False

    def open(self, partition: int) -> Any:
        writer = super().open(partition)
        store = writer.store

        def shaky(bundle: StoredBundle) -> None:
            if self.shakes:
                self.shakes = False
                raise ConnectionError("the connection was lost")
            store(bundle)

        writer.store = shaky  # type: ignore[method-assign]
        return writer


class Life:
    """What a life opens, in its order: it claims the checkpoint, opens its sink, and then its log."""

    def __init__(self, folder: Path) -> None:
        self.sink = Shaky(folder / "out")
        store = CheckpointStore(folder / "checkpoint")
        self.number = store.begin().incarnation

        def confirm() -> None:
            try:
                store.check_not_followed(self.number)
            except FencedError as error:
                raise SinkMovedError(str(error)) from None

        self.writer = WriterThread(self.sink, "out", 0, confirm=confirm)
        self.folder = folder

    def open_log(self) -> None:
        self.log = FrontLogWriter(self.folder / "checkpoint", "words", 0, self.number)

    def enter(self, position: int, time: int) -> None:
        """An element gets a time, which is durable before its output is stored."""
        self.log.append([(position, time)])
        self.log.sync()
        self.writer.store(StoredBundle("out", 0, GlobalTime(time, 0), [{"time": time}]))
        assert self.writer.stored(SECONDS)


def logged(folder: Path) -> list[int]:
    return [time for _, time, *_ in read_log(folder / "checkpoint", "words", 0)]


def stored(folder: Path) -> list[int]:
    return [row["time"] for row in sinks.Files(folder / "out").payloads()]


def test_an_old_life_that_opens_its_sink_again_stores_nothing(tmp_path: Path) -> None:
    old = Life(tmp_path)
    old.open_log()
    old.enter(0, 10)
    new = Life(tmp_path)
    new.open_log()
    old.sink.shakes = True  # and so it does not hear that it has a successor
    with pytest.raises(SinkMovedError, match="was followed by incarnation 2"):
        old.enter(1, 20)
    for life in (old, new):
        life.writer.close(SECONDS)
    later = Life(tmp_path)
    assert later.writer.last() == GlobalTime(10, 0)
    later.open_log()
    later.enter(1, 30)
    later.writer.close(SECONDS)
    assert stored(tmp_path) == [10, 30]
    assert logged(tmp_path) == [10, 30]


def test_an_old_life_that_opens_its_sink_late_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = CheckpointStore.begin
    newer: list[Life] = []

    def overtaken(store: CheckpointStore, *given: Any) -> Any:
        monkeypatch.setattr(CheckpointStore, "begin", begun)
        life = begun(store, *given)
        newer.append(Life(tmp_path))  # claims, and opens its sink, before the older one does
        return life

    monkeypatch.setattr(CheckpointStore, "begin", overtaken)
    with pytest.raises(SinkMovedError, match="was followed by incarnation 2"):
        Life(tmp_path)
    for life in newer:
        life.writer.close(SECONDS)


def test_a_life_that_is_still_to_be_claimed_is_the_newest(tmp_path: Path) -> None:
    """The next version opens its sinks before this one has ended."""
    store = CheckpointStore(tmp_path)
    number = store.begin().incarnation
    for later in (number, number + 1):
        store.check_not_followed(later)
    with pytest.raises(FencedError):
        store.check_not_followed(number - 1)
