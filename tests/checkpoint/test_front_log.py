"""A front log gives back everything that was durable, in order, whatever was written after it."""

from __future__ import annotations

import errno
import os
import random
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from emberflow.checkpoint import CheckpointError, DamagedLogError, FencedError
from emberflow.checkpoint.logs.front_log import FrontLogWriter, last_reservation, read_log, trim
from tests.checkpoint.cases import FILES, KINDS, url_of
from tests.effort import examples


class Place:
    """A location that can append, or one that has a file or an object for each block."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        location = {"local": folder, "remote": "", "objects": url_of(folder)}[kind]
        self.arguments: tuple[Any, ...] = (location, "words", 3)
        system = SubTreeFileSystem(str(folder), LocalFileSystem()) if kind == "remote" else None
        self.options: dict[str, Any] = {"filesystem": system}

    def writer(self, incarnation: int, **options: Any) -> FrontLogWriter:
        return FrontLogWriter(*self.arguments, incarnation, **self.options, **options)

    def read(self, **options: Any) -> list[Any]:
        return list(read_log(*self.arguments, **self.options, **options))

    def reservation(self, **options: Any) -> int | None:
        return last_reservation(*self.arguments, **self.options, **options)

    def trim(self, before: int) -> list[str]:
        return trim(*self.arguments, before, **self.options)

    def segments(self) -> list[Path]:
        return sorted((self.folder / "fronts" / "words-3").iterdir())


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, request.param)


POSITIONS = st.one_of(
    st.integers(), st.text(max_size=4), st.tuples(st.text(max_size=3), st.integers(0, 9)), st.none()
)


@pytest.mark.parametrize("kind", FILES)
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    lives=st.lists(
        st.lists(
            st.lists(st.tuples(POSITIONS, st.integers(1, 2**50), st.text(max_size=3)), max_size=6),
            max_size=5,
        ),
        max_size=4,
    ),
    payloads=st.booleans(),
    start=st.integers(-(2**62), 2**61),
    segment_size=st.sampled_from([1, 300, 2**20]),
)
def test_what_was_given_is_given_again(
    kind: str, lives: list[Any], payloads: bool, start: int, segment_size: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), kind)
        given_so_far: list[Any] = []
        time = start
        for incarnation, batches in enumerate(lives, 1):
            log = place.writer(incarnation, payloads=payloads, segment_size=segment_size)
            assert list(log.entries()) == given_so_far
            for batch in batches:
                entries: list[Any] = []
                for position, step, payload in batch:
                    time += step
                    entries.append((position, time, payload) if payloads else (position, time))
                log.append(entries)
                given_so_far += entries
                durable = log.sync()
                if entries:
                    assert (durable.position, durable.time) == entries[-1][:2]
            log.close()
        assert place.read() == given_so_far
        for entry in given_so_far[:3]:
            later = [other for other in given_so_far if other[1] >= entry[1]]
            assert place.read(from_time=entry[1]) == later
        if len({repr(entry[0]) for entry in given_so_far}) == len(given_so_far):
            for number, entry in enumerate(given_so_far[:3]):
                if all(entry[0] != other[0] for other in given_so_far[:number]):
                    assert place.read(after_position=entry[0]) == given_so_far[number + 1 :]


RUNS = st.builds(
    lambda first, count, step: range(first, first + count * step, step),
    st.integers(-(2**40), 2**40),
    st.integers(1, 5),
    st.sampled_from([1, 3, 200, 70_000, 2**33]),
)


@settings(max_examples=examples(100), deadline=None)
@given(
    parts=st.lists(
        st.tuples(RUNS | st.lists(POSITIONS, min_size=1, max_size=5), st.booleans(), RUNS),
        min_size=1,
        max_size=5,
    )
)
def test_runs_of_numbers_are_kept_as_columns_and_given_again_as_entries(parts: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), "local")
        log = place.writer(1)
        entries: list[Any] = []
        least = -(2**62)
        for positions, is_range, run in parts:
            times = range(least, least + len(positions) * run.step, run.step)
            least = times[-1] + 1 + run[0] % 1000
            log.append_columns(positions, times if is_range else list(times))
            entries += zip(positions, times, strict=True)
        log.sync(mark=False)  # all of it is one batch
        assert place.read() == entries
        log.close()


def test_columns_of_different_lengths_are_refused_whole(place: Place) -> None:
    log = place.writer(1, payloads=True)
    for positions, payloads in (("a", "xy"), ("abc", "xy"), ("ab", "x"), ("ab", "xyz")):
        with pytest.raises(ValueError, match="zip"):
            log.append_columns(positions, range(5, 7), payloads)
    log.append_columns("ab", range(5, 7), "xy")
    log.close()
    assert place.read() == [("a", 5, "x"), ("b", 6, "y")]


def test_a_disk_that_cannot_write_durably_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def unsupported(*_: Any) -> int:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "pwritev", unsupported)
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(file), fsync(file)))
    place = Place(tmp_path, "local")
    log = place.writer(1)
    begun = len(synced)
    for time in range(3):
        log.append([("a", time)])
        log.sync(mark=False)
    assert len(synced) == begun + 3
    assert place.read() == [("a", time) for time in range(3)]
    log.close()


def test_a_position_that_is_not_there_leaves_nothing_out(place: Place) -> None:
    with_two = [("a", 1), ("b", 2)]
    log = place.writer(1)
    log.append(with_two)
    log.close()
    assert place.read(after_position="z") == with_two
    assert Place(place.folder / "elsewhere", "local").read() == []


def test_reservations(place: Place) -> None:
    log = place.writer(1)
    assert place.reservation() is None
    log.append([("a", 5)])
    log.reserve(100)
    log.reserve(90)
    assert place.reservation() is None  # not durable yet
    assert log.sync() == (1, "a", 5, 100)
    assert place.reservation() == 100
    log.append([("b", 60)])  # this life knows what it has really promised; the next one does not
    log.close()
    log.close()
    following = place.writer(2)
    assert (following.time, following.reservation) == (60, 100)
    with pytest.raises(CheckpointError, match=r"a time of at least 100, got \('c', 99\)"):
        following.append([("c", 99)])
    with pytest.raises(CheckpointError, match=r"at least 101, got \('d', 100\)"):
        following.append([("c", 101), ("d", 100)])
    with pytest.raises(CheckpointError, match="3 parts"):
        following.append([("c", 101, "payload")])
    following.append([("c", 101)])
    following.close()
    with pytest.raises(CheckpointError, match="closed"):
        following.append([("d", 102)])
    assert place.read() == [("a", 5), ("b", 60), ("c", 101)]


@pytest.mark.parametrize("place", FILES, indirect=True)
def test_a_slow_writer_of_an_older_life_is_not_read(place: Place) -> None:
    slow = place.writer(1)
    slow.append([("a", 1)])
    slow.sync()
    fast = place.writer(2, segment_size=1)
    slow.append([("zombie", 2)])
    slow.sync()
    slow.append([("zombie", 3)])
    slow.close()
    assert list(fast.entries()) == [("a", 1)]
    fast.append([("b", 2)])
    fast.sync()
    fast.append([("c", 3)])
    fast.close()
    assert place.read() == [("a", 1), ("b", 2), ("c", 3)]
    assert place.read(incarnation=1) == [("a", 1), ("zombie", 2), ("zombie", 3)]
    for late in (1, 2):
        with pytest.raises(FencedError, match=f"incarnation {late} comes too late"):
            place.writer(late)


@pytest.mark.parametrize("place", FILES, indirect=True)
def test_a_slow_writer_that_begins_another_segment_is_not_read(place: Place) -> None:
    slow = place.writer(1, segment_size=1)
    fast = place.writer(2)
    slow.append([("zombie", 2)])
    slow.sync()
    slow.append([("zombie", 3)])
    slow.close()
    fast.append([("b", 2)])
    fast.close()
    assert place.read() == [("b", 2)]


def test_trimming_drops_whole_segments_below_the_oldest_cut(place: Place) -> None:
    for incarnation in (1, 2):
        log = place.writer(incarnation, segment_size=1)
        for time in range(3):
            log.append([(time, 10 * incarnation + time)])
            log.sync()
        log.close()
    whole = place.read()
    assert place.trim(0) == []
    removed = place.trim(11)
    assert len(removed) == 1
    assert place.read() == whole[1:]
    removed = place.trim(21)
    assert place.read() == [(1, 21), (2, 22)]
    assert place.read(from_time=21) == [(1, 21), (2, 22)]
    place.trim(10**6)
    last = place.writer(3)
    last.append([("new", 23)])
    last.close()
    assert place.read()[-1] == ("new", 23)
    assert place.read(from_time=23) == [("new", 23)]


def test_a_segment_that_is_lost_from_the_middle_is_an_error(tmp_path: Path) -> None:
    place = Place(tmp_path, "local")
    for incarnation in (1, 2, 3):
        log = place.writer(incarnation)
        log.append([("a", incarnation)])
        log.close()
    place.segments()[1].unlink()
    with pytest.raises(DamagedLogError, match=r"000002-000000.log is missing"):
        place.read()


def logged(folder: Path) -> tuple[Place, Path, list[Any], list[int]]:
    """A log of two lives, its last segment, its entries, and how many were durable after each sync."""
    place = Place(folder, "local")
    entries: list[Any] = []
    ends = []
    for incarnation in (1, 2):
        log = place.writer(incarnation)
        for batch in range(3):
            added = [(len(entries) + n, 100 * incarnation + 10 * batch + n) for n in range(3)]
            log.append(added)
            log.sync()
            entries += added
            ends.append(place.segments()[-1].stat().st_size)
        log.close()
    return place, place.segments()[-1], entries, ends[3:]


def test_a_torn_tail_is_cut_off_and_only_that(tmp_path: Path) -> None:
    place, path, entries, ends = logged(tmp_path)
    whole = path.read_bytes()
    before = 0
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        found = place.read()
        assert found == entries[: len(found)]
        assert len(found) >= before  # more bytes, more entries
        assert len(found) >= 3 + 3 * sum(end <= length for end in ends)
        before = len(found)
    assert before == len(entries)


def test_what_a_disk_leaves_behind_a_crash_is_cut_off(tmp_path: Path) -> None:
    place, path, entries, _ = logged(tmp_path)
    whole = path.read_bytes()
    for rest in (b"\0" * 500, os.urandom(500), whole[:200], whole):
        path.write_bytes(whole + rest)
        assert place.read() == entries
    # A hole where a block was not written yet, and a later block that was.
    log = place.writer(3)
    log.append([("a", 300)])
    log.sync()
    path = place.segments()[-1]
    synced = path.stat().st_size
    # more than the buffer holds: a block is written
    log.append([(n, 301 + n) for n in range(35_000)])
    log.append([(n, 99301 + n) for n in range(35_000)])
    data = bytearray(path.read_bytes())
    assert len(data) > synced + 10_000
    data[synced : synced + 100] = bytes(100)
    path.write_bytes(data)
    assert place.read() == [*entries, ("a", 300)]
    following = place.writer(4)
    following.append([("b", 301)])
    following.close()
    assert place.read() == [*entries, ("a", 300), ("b", 301)]


def test_every_flipped_bit_of_what_was_durable_is_an_error(tmp_path: Path) -> None:
    place, last, entries, ends = logged(tmp_path)
    first = place.segments()[0]
    dice = random.Random(3)
    for path in (first, last):
        whole = path.read_bytes()
        # The mark after the last sync of the last segment is unconfirmed, and need not be
        # confirmed.
        durable = len(whole) if path == first else ends[-1] - 25
        for place_of_bit in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place_of_bit] ^= 1 << dice.randrange(8)
            path.write_bytes(damaged)
            if place_of_bit < durable:
                with pytest.raises(DamagedLogError, match=f"{path} is damaged at offset"):
                    place.read()
            else:
                assert place.read() == entries
        path.write_bytes(whole)
    # The second life has recorded how long the first one's segment was.
    whole = first.read_bytes()
    for length in range(len(whole)):
        first.write_bytes(whole[:length])
        with pytest.raises(DamagedLogError, match=f"at offset {length}: it ends there"):
            place.read()


def test_a_file_of_a_block_that_is_damaged_or_missing_is_an_error(tmp_path: Path) -> None:
    place = Place(tmp_path, "remote")
    log = place.writer(1)
    for time in range(4):
        log.append([("a", time)])
        log.sync()
    log.close()
    (folder,) = place.segments()
    files = sorted(folder.iterdir())
    assert len(files) == 5
    for number, path in enumerate(files[:-1]):
        whole = path.read_bytes()
        for data in (whole[:-1], whole[:-1] + b"x", whole + b"x", files[-1].read_bytes()):
            path.write_bytes(data)
            with pytest.raises(DamagedLogError, match=f"offset {number}: .* is damaged"):
                place.read()
        path.unlink()
        with pytest.raises(DamagedLogError, match=f"offset {number}: .* is missing"):
            place.read()
        path.write_bytes(whole)
    assert len(place.read()) == 4


def test_many_appends_share_an_fsync_and_none_is_reported_before_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Group commit as in the docstring. What `sync` has reported is on the disk by then."""
    synced_bytes: dict[int, int] = {}
    really = os.fsync

    def fsync(descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        really(descriptor)
        synced_bytes[os.fstat(descriptor).st_ino] = size

    monkeypatch.setattr(os, "fsync", fsync)
    place = Place(tmp_path, "local")
    log = place.writer(1)
    path = place.segments()[0]
    reports: list[tuple[int, int]] = []
    appended, ended = threading.Event(), threading.Event()

    def keep_durable() -> None:
        while not ended.is_set() or appended.is_set():
            if appended.wait(timeout=0.05):
                appended.clear()
                durable = log.sync()
                reports.append((durable.entries, synced_bytes[path.stat().st_ino]))

    thread = threading.Thread(target=keep_durable)
    thread.start()
    for n in range(3000):
        log.append([(n, n)])
        appended.set()
    ended.set()
    thread.join(60)
    assert not thread.is_alive()
    assert len(reports) < 3000 / 2
    whole = path.read_bytes()
    for entries, size in random.Random(1).sample(reports, min(len(reports), 20)):
        path.write_bytes(whole[:size])  # what a power failure cannot have taken
        assert len(place.read()) >= entries
    assert reports[-1][0] == 3000
    path.write_bytes(whole)
    log.close()


def test_after_an_error_of_the_disk_nothing_more_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Place(tmp_path, "local").writer(1)
    log.append([("a", 1)])

    def fail(descriptor: int) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="the disk is gone"):
            log.sync()
    with pytest.raises(CheckpointError, match="a write failed before"):
        log.sync()
    with pytest.raises(CheckpointError, match="Begin the next incarnation"):
        log.append([("b", 2)])
    log.close()


def test_a_log_is_compact(tmp_path: Path) -> None:
    place = Place(tmp_path, "local")
    log = place.writer(1)
    dice = random.Random(1)
    time = 1_700_000_000_000_000
    for batch in range(10):
        entries = []
        for n in range(1000):
            time += dice.randint(1, 60)
            entries.append((1000 * batch + n, time))
        log.append(entries)
    log.close()
    assert place.segments()[0].stat().st_size < 10_000 * 2 + 2000


def test_names_of_fronts_may_be_anything(tmp_path: Path) -> None:
    log = FrontLogWriter(tmp_path, "../a/b c", 0, 1)
    log.append([(0, 1)])
    log.close()
    assert list(read_log(tmp_path, "../a/b c", 0)) == [(0, 1)]
    assert [path.name for path in (tmp_path / "fronts").iterdir()] == ["..%2Fa%2Fb%20c-0"]
