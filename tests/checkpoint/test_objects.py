"""Protocols on an object store: requests that are lost, late writers, and stores that cannot do it."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from emberflow.checkpoint import FencedError, Manifest
from emberflow.checkpoint import objects as objects_module
from emberflow.checkpoint.chains import Chain
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.errors import TakenError
from emberflow.checkpoint.files import is_unwritable
from emberflow.checkpoint.logs.front_log import FrontLogWriter, read_log, trim
from emberflow.checkpoint.objects import Objects, UnavailableError
from emberflow.errors import InputError
from tests.adapters.s3_server import (
    LOST_BEFORE,
    PASSED,
    PROBLEMS,
    REFUSED,
    FaultyS3,
    S3Server,
    all_pass,
    fails,
    loses_some,
)
from tests.checkpoint.cases import graph
from tests.effort import SOAK

pytestmark = pytest.mark.xdist_group("s3")


@pytest.mark.parametrize("how", PROBLEMS)
def test_whoever_creates_an_object_knows_that_it_was_this_call(
    how: str, faulty: FaultyS3, s3: S3Server
) -> None:
    objects = Objects(s3.new_url())
    faulty.fate = fails(3, how)
    objects.create("one", b"mine", note="a note")
    assert faulty.counts[how] == 3
    assert (objects.read("one"), objects.note("one")) == (b"mine", "a note")
    faulty.fate = fails(3, how)
    with pytest.raises(TakenError, match=r"one exists: another process has created it"):
        objects.create("one", b"mine")
    faulty.fate = fails(2, how)
    objects.create("one", b"other", token=token_of(objects, "one"))  # the same call again
    assert objects.read("one") == b"mine"


def token_of(objects: Objects, name: str) -> str:
    token = objects._token(name)
    assert token
    return token


def test_one_of_many_creates_an_object(s3: S3Server) -> None:
    url = s3.new_url()
    winners: list[tuple[int, int]] = []
    begin = threading.Barrier(8)

    def create(own: int) -> None:
        objects = Objects(url)
        for number in range(20):
            begin.wait(30)
            try:
                objects.create(f"{number}", str(own).encode())
            except TakenError:
                continue
            winners.append((number, own))

    run_all([lambda own=own: create(own) for own in range(8)])  # type: ignore[misc]
    assert sorted(number for number, _ in winners) == list(range(20))
    assert all(Objects(url).read(f"{number}") == str(own).encode() for number, own in winners)


def run_all(bodies: list[Callable[[], Any]]) -> None:
    threads = [threading.Thread(target=body, daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_store_that_is_away_is_no_error_for_ever(
    faulty: FaultyS3, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_module, "_RETRY_SECONDS", 0.2)
    objects = Objects(s3.new_url())
    faulty.fate = fails(10**6, REFUSED)
    for write in (objects.create, objects.put):
        with pytest.raises(UnavailableError, match="503 SlowDown") as found:
            write("x", b"x")
        assert is_unwritable(found.value)
    faulty.fate = fails(10**6, LOST_BEFORE, "GET")
    with pytest.raises(UnavailableError):
        objects.metas()
    faulty.fate = all_pass
    objects.put("x", b"x")


@pytest.mark.parametrize("does", ["ignores", "refuses"])
def test_a_store_without_conditional_puts_is_refused_or_asked_for(
    does: str, faulty: FaultyS3, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_module, "_checked", set())
    setattr(faulty, f"{does}_conditions", True)
    url = s3.new_url()
    with pytest.raises(InputError, match=rf"the store {does} conditional puts.*\?conditional=no"):
        CheckpointStore(url).begin()
    store = CheckpointStore(f"{url}?conditional=no")
    assert store.begin().incarnation == 1
    assert store.begin().incarnation == 2
    with pytest.raises(FencedError):
        store.check_incarnation(1)
    assert not list(s3.path(url).glob(".emberflow*"))  # what checks leave


def test_a_bucket_that_is_not_there_and_a_wrong_password_are_named(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"s3://elsewhere/x: there is no such bucket"):
        CheckpointStore("s3://elsewhere/x").begin()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    monkeypatch.setattr(objects_module, "_checked", set())
    with pytest.raises(InputError, match=r"may not be written to.*SignatureDoesNotMatch"):
        CheckpointStore(s3.new_url()).begin()
    with pytest.raises(InputError, match="conditional=yes or conditional=no"):
        Objects("s3://bucket/x?sync=no")


def test_an_upload_in_pieces_is_there_when_it_is_complete(s3: S3Server) -> None:
    objects = Objects(s3.new_url())
    data = random.Random(1).randbytes(20 << 20)
    upload = objects.upload("large")
    for begin in range(0, len(data), 999_999):
        upload.write(data[begin : begin + 999_999])
    assert objects.metas() == []
    upload.complete()
    file = objects.open("large")
    assert file.read() == data
    for _ in range(20):
        begin = random.Random(2).randrange(len(data))
        file.seek(begin)
        assert file.read(70_000) == data[begin : begin + 70_000]
    left = objects.upload("abandoned")
    left.write(data)
    left.abandon()
    assert [meta.name for meta in objects.metas()] == ["large"]


# Chains


def test_a_chain_goes_on_with_whoever_took_it_over_last(s3: S3Server) -> None:
    objects = Objects(s3.new_url())
    one, other = Chain(objects, "chain"), Chain(objects, "chain")
    assert one.take_over() == (None, None)
    first = one.add(b"1", "one")
    second = one.add(b"2", "two")
    tail = other.take_over()
    assert (tail.note, tail.record) == ("two", (second, "two"))
    for _ in range(2):
        with pytest.raises(TakenError):
            one.add(b"3", "zombie")
    third = other.add(b"3", "three")
    other.remove_old()
    assert {first, second}.isdisjoint(objects.all_below("chain"))
    with pytest.raises(TakenError):  # also now that there is room
        one.add(b"3", "zombie")
    one.end()  # it is another's, so nothing happens
    assert objects.read(third) == b"3"
    other.end()
    assert one.take_over() == ("three", None)
    assert one.add(b"4", "four") in objects.all_below("chain")


@pytest.mark.parametrize("seed", range(40 if SOAK else 2))
def test_what_racing_writers_were_told_is_in_the_chain_once_and_in_order(
    seed: int, faulty: FaultyS3, s3: S3Server
) -> None:
    """Each counts on from what it found. Some requests are lost, some after they were made."""
    url = s3.new_url()
    told: list[tuple[int, str]] = []
    faulty.fate = loses_some(seed, 0.15)

    def write(own: int) -> None:
        dice = random.Random(f"{seed} {own}")
        objects = Objects(url)
        for _ in range(6):
            chain = Chain(objects, "chain")
            number = int((chain.take_over().note or "0").partition(" ")[0])
            try:
                for _ in range(dice.randint(1, 6)):
                    number += 1
                    chain.add(b"", f"{number} of {own}")
                    told.append((number, f"{number} of {own}"))
            except TakenError:
                continue

    run_all([lambda own=own: write(own) for own in range(3)])  # type: ignore[misc]
    faulty.fate = all_pass
    objects = Objects(url)
    notes = [objects.note(name) or "" for name in sorted(objects.all_below("chain"))]
    records = [note.partition(" ")[2] for note in notes if note.startswith("record")]
    assert [int(record.partition(" ")[0]) for record in records] == list(range(1, len(records) + 1))
    # A record whose writer was told nothing may be there as well, but none is told and missing.
    assert {note for _, note in told} <= set(records)


# Front logs


def test_a_slow_writer_of_an_older_life_hears_of_its_successor(s3: S3Server) -> None:
    url = s3.new_url()
    slow = FrontLogWriter(url, "words", 0, 1)
    slow.append([("a", 1)])
    slow.sync()
    fast = FrontLogWriter(url, "words", 0, 2)
    slow.append([("zombie", 2)])
    with pytest.raises(FencedError, match="another writer has taken this log over"):
        slow.sync()
    assert list(fast.entries()) == [("a", 1)]
    fast.append([("b", 2)])
    fast.close()
    assert list(read_log(url, "words", 0)) == [("a", 1), ("b", 2)]
    for late in (1, 2):
        with pytest.raises(FencedError):
            FrontLogWriter(url, "words", 0, late)


def test_a_writer_that_was_overtaken_while_it_began_begins_nothing(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first life is slow: it has looked, and writes its header when the second has begun."""
    from emberflow.checkpoint.logs import front_log

    url = s3.new_url()
    really = FrontLogWriter._begun_segment
    fast: list[FrontLogWriter] = []

    def overtaken(self: FrontLogWriter) -> Any:
        monkeypatch.setattr(front_log.FrontLogWriter, "_begun_segment", really)
        fast.append(FrontLogWriter(url, "words", 0, 2))
        return really(self)

    monkeypatch.setattr(front_log.FrontLogWriter, "_begun_segment", overtaken)
    with pytest.raises(FencedError):
        FrontLogWriter(url, "words", 0, 1)
    fast[0].append([("b", 2)])
    fast[0].close()
    assert list(read_log(url, "words", 0)) == [("b", 2)]
    third = FrontLogWriter(url, "words", 0, 3)
    assert list(third.entries()) == [("b", 2)]
    third.close()


def test_trimming_leaves_no_room_for_a_slow_writer(s3: S3Server) -> None:
    url = s3.new_url()
    slow = FrontLogWriter(url, "words", 0, 1)
    slow.append([("a", 1)])
    slow.sync()
    for incarnation in (2, 3):
        log = FrontLogWriter(url, "words", 0, incarnation, segment_size=3)
        for number in range(8):
            log.append([("b", 10 * incarnation + number)])
            log.sync()
        log.close()
    whole = list(read_log(url, "words", 0))
    assert len(whole) == 17
    assert "000001-000000.log" in trim(url, "words", 0, 25)
    slow.append([("zombie", 2)])
    with pytest.raises(FencedError):
        slow.sync()
    kept = list(read_log(url, "words", 0))
    assert kept == whole[-len(kept) :]
    assert set(whole[9:]) <= set(kept)
    log = FrontLogWriter(url, "words", 0, 4)
    assert list(log.entries()) == kept
    log.close()
    # One seal of each life that was taken over is all that stays of a trimmed segment.
    trim(url, "words", 0, 10**6)
    names = Objects(url).all_below("fronts")
    assert len(names) == 4 + 1  # with that of the root; and the header of the newest


@pytest.mark.parametrize("seed", range(10 if SOAK else 1))
def test_a_log_survives_lost_requests(
    seed: int, faulty: FaultyS3, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_module, "_RETRY_SECONDS", 0.05)
    url = s3.new_url()
    faulty.fate = loses_some(seed, 0.2)
    entries: list[tuple[int, int]] = []
    for incarnation in range(1, 40):
        try:
            log = FrontLogWriter(url, "words", 0, incarnation, segment_size=4)
        except UnavailableError:
            continue
        for _ in range(6):
            entries.append((len(entries), len(entries)))
            log.append(entries[-1:])
            while True:
                try:
                    assert log.sync().position == entries[-1][0]
                    break
                except UnavailableError:
                    continue
        if len(entries) > 24:
            break
    faulty.fate = all_pass
    assert list(read_log(url, "words", 0)) == entries


# Cuts


def test_a_driver_that_was_overtaken_while_it_stored_a_cut_is_told(
    s3: S3Server, faulty: FaultyS3
) -> None:
    """It looked for successors before there was one, and must not let sources forget what it has."""
    url = s3.new_url()
    old, new = CheckpointStore(url), CheckpointStore(url)
    old.begin()
    begun: list[Any] = []

    def fate(method: str, path: str, headers: dict[str, str]) -> str:
        if method == "PUT" and "/cuts/" in path and not begun:
            begun.append(None)
            begun.append(new.begin())
        return PASSED

    faulty.fate = fate
    cut = Manifest.of(graph(), number=1, incarnation=1, time=(1, 0), parts=[])
    with pytest.raises(FencedError, match="incarnation 1 was followed by incarnation 2"):
        old.commit(cut)
    assert begun[1] == (2, None)
    assert new.latest() is None
    assert os.path.exists(s3.path(url) / "cuts" / "0000000001-000001.json")
