"""A disk that is full or read-only for a while: nothing wrong is taken for right, and all goes on."""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from emberflow import GlobalTime, fronts, sinks
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.logs.front_log import FrontLogWriter, read_log
from emberflow.engine.cuts.cut import Capture, Row
from emberflow.runners.live.driver import cuts as driver_cuts
from emberflow.runners.live.driver.cuts import CutCommitter, CutsByTime
from emberflow.runners.live.worker import journal as journal_module
from emberflow.runners.live.worker.cut_writer import Captured, CutWriter
from emberflow.runners.live.worker.feed import Feed
from emberflow.runners.live.worker.journal import Journal
from emberflow.runners.live.worker.machine.spare import Spare
from emberflow.runners.live.worker.reader import Beginning
from emberflow.sinks import StoredBundle
from emberflow.sinks.files import read_files
from emberflow.sinks.writer import WriterThread
from emberflow.values.hashing import key_hash
from tests.adapters.structured import Sender, placed_front
from tests.adapters.test_fronts_structured import ROWS, WORDS, words
from tests.checkpoint.cases import graph, state_of
from tests.effort import SECONDS
from tests.small_disk import SmallDisk, mounted


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted(tmp_path / "small") as disk:
        yield disk


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


@contextlib.contextmanager
def unwritable(disk: SmallDisk, how: str) -> Iterator[None]:
    if how == "full":
        disk.fill()
        yield
        disk.free()
    else:
        with disk.read_only():
            yield


HOWS = pytest.mark.parametrize("how", ["full", "read-only"])


# --- Front logs ------------------------------------------------------------------------------------


def test_a_log_goes_on_when_there_is_room(disk: SmallDisk, tmp_path: Path) -> None:
    """Every other sync finds the disk full, in the middle of a block."""
    log = FrontLogWriter(disk.folder, "words", 0, 1)
    entries: list[tuple[str, int]] = []
    durable = 0
    for number in range(6):
        some = [(f"{number} {n} " + "x" * 40, 100 * number + n) for n in range(100)]
        log.append(some)
        entries += some
        if number % 2:
            disk.fill()
            for _ in range(2):
                with pytest.raises(OSError, match="No space left"):
                    log.sync()
            # What a crash would leave now has all that was durable, and nothing else.
            crashed = tmp_path / f"crashed {number}"
            shutil.copytree(disk.folder / "fronts", crashed / "fronts")
            left = FrontLogWriter(crashed, "words", 0, 2)
            found = list(left.entries())
            assert len(found) >= durable
            assert found == entries[: len(found)]
            left.close()
            disk.free()
        assert log.sync(mark=bool(number % 3)).entries == len(entries)
        durable = len(entries)
    log.close()
    assert list(read_log(disk.folder, "words", 0)) == entries
    again = FrontLogWriter(disk.folder, "words", 0, 2)
    assert list(again.entries()) == entries
    again.close()


def test_a_log_that_is_written_ahead_of_a_sync_waits_for_room(disk: SmallDisk) -> None:
    log = FrontLogWriter(disk.folder, "words", 0, 1)
    disk.fill()
    for begin in range(0, 100_000, 10_000):
        log.append_columns(range(begin, begin + 10_000), range(begin, begin + 10_000))
    with pytest.raises(OSError, match="No space left"):
        log.sync()
    disk.free()
    log.sync()
    log.close()
    assert list(read_log(disk.folder, "words", 0)) == [(n, n) for n in range(100_000)]


def test_a_segment_that_cannot_be_begun_loses_nothing(disk: SmallDisk) -> None:
    log = FrontLogWriter(disk.folder, "words", 0, 1, segment_size=1)
    log.append([(0, 0)])
    with disk.read_only(), pytest.raises(OSError, match="Read-only"):
        log.sync()
    log.append([(1, 1)])
    assert log.sync().entries == 2
    log.close()
    assert list(read_log(disk.folder, "words", 0)) == [(0, 0), (1, 1)]


def test_a_front_reports_nothing_that_is_not_durable_and_goes_on(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal_module, "_RETRY_SECONDS", 0.01)
    journal = Journal(FrontLogWriter(disk.folder, "words", 0, 1), "words 0", 0)
    journal.start()
    disk.fill()
    with caplog.at_level(logging.WARNING, "emberflow"):
        journal.note(["x" * 5_000], [7], None)
        wait_for(lambda: "the log of front words 0 waits for the disk" in caplog.text)
        assert journal.reportable((9, 0), (9, 0)) == (7, 0)
        disk.free()
        wait_for(lambda: journal.reportable((8, 0), (8, 0)) == (8, 0))
        wait_for(lambda: "is written again" in caplog.text)
    journal.close(10)
    assert list(read_log(disk.folder, "words", 0)) == [("x" * 5_000, 7)]


def test_a_front_that_has_ended_is_not_over_before_its_log_is_durable(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the query would end without the output of what is not durable."""
    monkeypatch.setattr(journal_module, "_RETRY_SECONDS", 0.01)
    journal = Journal(FrontLogWriter(disk.folder, "words", 0, 1), "words 0", 0)
    front = fronts.Iterable(
        range(10_000), arrival=True
    )  # more than the log has room for in its page
    feed = Feed("words", 0, front, 0, 0, 20_000, journal=journal)
    assert feed.is_reported
    disk.fill()
    feed.start(Beginning())
    wait_for(lambda: not feed.take(10_000) and feed.over)
    wait_for(lambda: "waits for the disk" in caplog.text)
    feed.report()
    assert not feed.is_reported
    disk.free()
    wait_for(lambda: feed.report() and feed.is_reported)
    feed.join(SECONDS)


# --- Cuts ------------------------------------------------------------------------------------------


class Keys:
    """What a worker captures: a row for each of its keys."""

    def __init__(self, name: str, count: int) -> None:
        self._rows = [
            Row("last", key_hash(key), key, (1, 0), key * 20)
            for key in (f"{name} {number}" for number in range(count))
        ]
        self.state = state_of(iter(self._rows))

    def begin_cut(self, moment: Any, since: Any) -> Capture:
        return Capture(moment, iter(self._rows))


class Cluster:
    """The driver's committer and two workers' writers, on one disk."""

    def __init__(self, disk: SmallDisk) -> None:
        self.store = CheckpointStore(disk.folder)
        life = self.store.begin()
        self.committer = CutCommitter(
            graph(), str(disk.folder), life, CutsByTime(),
            workers=2, interval_ms=0, keep=2, logged={},
        )  # fmt: skip
        # One of them needs little room.
        self.keys = [Keys("few", 1), Keys("many", 3_000)]
        self.writers = [CutWriter(self.store, number, 1, Spare()) for number in range(2)]

    def close(self) -> None:
        for writer in self.writers:
            writer.close(10)
        self.committer.close(10)

    def captured(self, minimal: int) -> list[Captured]:
        """A cut up to where all workers have stored their parts, or could not."""
        order = wait_for(lambda: self.committer.due((minimal, 0)))
        found = []
        for writer, keys in zip(self.writers, self.keys, strict=True):
            writer.begin(keys, order, {})  # type: ignore[arg-type]
            found.append(wait_for(lambda writer=writer: writer.go_on(loop_is_busy=False)))
            self.committer.captured(found[-1])
        return found

    def is_over(self) -> bool:
        self.committer.committed((100, 0))
        return self.committer.is_idle

    @property
    def state(self) -> Any:
        return self.keys[0].state | self.keys[1].state


@pytest.fixture
def cluster(disk: SmallDisk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(driver_cuts, "_ABANDONED_REST_SECONDS", 0.0)
    cluster = Cluster(disk)
    yield cluster
    cluster.close()


@HOWS
def test_a_cut_without_room_is_abandoned_and_the_next_one_has_everything(
    how: str, disk: SmallDisk, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.captured(1)
    wait_for(cluster.is_over)
    with unwritable(disk, how):
        for minimal in (2, 3):
            if how == "full":  # room for the part of one worker
                disk.free()
                disk.fill()
            problems = [captured.problem for captured in cluster.captured(minimal)]
            assert any(problems)
            wait_for(cluster.is_over)
            latest = cluster.store.latest()
            assert latest is not None
            assert latest.number == 1
            assert state_of(cluster.store.rows(latest)) == cluster.state
    assert caplog.text.count("is abandoned, and another one follows") == 2
    assert [captured.problem for captured in cluster.captured(4)] == [None, None]
    wait_for(cluster.is_over)
    latest = cluster.store.latest()
    assert latest is not None
    assert (latest.number, latest.time) == (4, (4, 0))
    assert state_of(cluster.store.rows(latest)) == cluster.state


@HOWS
def test_a_manifest_without_room_abandons_its_cut(
    how: str, disk: SmallDisk, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    assert [captured.problem for captured in cluster.captured(1)] == [None, None]
    with unwritable(disk, how):
        wait_for(cluster.is_over)
        assert cluster.store.latest() is None
    assert "cut 1 is abandoned" in caplog.text
    cluster.captured(2)
    wait_for(cluster.is_over)
    latest = cluster.store.latest()
    assert latest is not None
    assert latest.number == 2


def test_an_abandoned_cut_takes_no_room(disk: SmallDisk, cluster: Cluster) -> None:
    cluster.captured(1)
    wait_for(cluster.is_over)
    kept = {path.name for path in (disk.folder / "parts").iterdir()}
    disk.fill()
    with open(disk.folder / "ballast", "r+b") as ballast:
        ballast.truncate(ballast.seek(0, 2) - (16 << 10))  # enough for one part of the two
    problems = [captured.problem for captured in cluster.captured(2)]
    assert problems[0] is None
    assert problems[1] is not None
    wait_for(cluster.is_over)
    wait_for(lambda: {path.name for path in (disk.folder / "parts").iterdir()} == kept)


# --- Sinks and inboxes -----------------------------------------------------------------------------


@HOWS
def test_a_sink_goes_on_when_there_is_room(
    how: str, disk: SmallDisk, caplog: pytest.LogCaptureFixture
) -> None:
    sink = sinks.Files(disk.folder / "out")
    sink.retry_seconds = 0.0  # type: ignore[attr-defined]
    writer = WriterThread(sink, "out", 0)
    payloads = [["x" * 3_000] * number for number in range(1, 5)]

    def store(number: int) -> None:
        writer.store(StoredBundle("out", 0, GlobalTime(number, 0), payloads[number]))

    store(0)
    wait_for(writer.stored)
    with unwritable(disk, how):
        store(1)
        wait_for(lambda: caplog.text.count("failed and is tried again") > 2)
        assert not writer.stored()
        # What is there is whole.
        assert read_files(disk.folder / "out") == payloads[0]
    assert wait_for(writer.stored).total() == 1
    store(2)
    wait_for(writer.stored)
    writer.close(10)
    assert read_files(disk.folder / "out") == [*payloads[0], *payloads[1], *payloads[2]]


def test_a_batch_without_room_is_not_taken_in_and_comes_again(disk: SmallDisk) -> None:
    front = placed_front(disk.folder, "word")
    service = front.service()
    *staging, commit = Sender().steps(0, ROWS)
    for step in staging:
        step(service)
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        commit(service)
    assert words(front) == []
    disk.free()
    assert commit(service)
    assert words(front) == WORDS
    inbox = disk.folder / "structured" / "fronts-docs"
    assert [path.name for path in inbox.iterdir() if path.name.endswith(".temporary")] == []
    service.close()
