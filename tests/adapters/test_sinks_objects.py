"""`sinks.Files` and `fronts.Files` on an object store: late writers, lost requests, and what readers see."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.dataset
import pyarrow.fs
import pytest

from emberflow import GlobalTime, fronts, sinks
from emberflow.checkpoint import objects as objects_module
from emberflow.checkpoint.objects import Objects, UnavailableError
from emberflow.errors import InputError
from emberflow.fronts import Element
from emberflow.sinks import SinkMovedError, StoredBundle
from tests.adapters.s3_server import LOST_AFTER, PASSED, FaultyS3, S3Server, all_pass, loses_some
from tests.adapters.test_fronts_files import until_idle
from tests.effort import SOAK

pytestmark = pytest.mark.xdist_group("s3")


def bundle(begin: int, end: int) -> StoredBundle:
    return StoredBundle(
        "out", 0, GlobalTime(end - 1, 0), [{"key": number} for number in range(begin, end)]
    )


def keys(url: str) -> list[int]:
    return [payload["key"] for payload in sinks.read_files(url)]


def test_a_bundle_whose_writer_died_before_the_copy_is_copied_by_the_next(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.new_url()
    writer = sinks.Files(url).open(0)
    writer.store(bundle(0, 3))

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "copy", die)
        with pytest.raises(KeyboardInterrupt):
            writer.store(bundle(3, 5))
        with pytest.raises(KeyboardInterrupt):  # so does the next one
            sinks.Files(url).open(0)
    assert keys(url) == [0, 1, 2]
    following = sinks.Files(url).open(0)
    assert following.last() == GlobalTime(4, 0)
    assert keys(url) == [0, 1, 2, 3, 4]
    with pytest.raises(SinkMovedError, match="was opened by another writer"):
        writer.store(bundle(5, 6))
    following.store(bundle(5, 7))
    following.close()
    # Nothing else is in the folder of the partition, and no record is left.
    assert len(Objects(url).metas("partition-0000")) == 3
    assert all(not meta.bytes for meta in Objects(url).metas("_emberflow/partition-0000"))
    # What was closed has nothing to be copied: a file that somebody has moved stays away.
    newest = Objects(url).metas("partition-0000")[-1].name
    Objects(url).remove([f"partition-0000/{newest}"])
    assert sinks.Files(url).open(0).last() == GlobalTime(6, 0)
    assert keys(url) == [0, 1, 2, 3, 4]


def test_records_are_removed_while_a_writer_goes_on(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from emberflow.sinks.folders import objects

    monkeypatch.setattr(objects, "_REMOVED_AT_ONCE", 5)
    url = s3.new_url()
    writer, zombie = sinks.Files(url).open(0), sinks.Files(url).open(0)
    writer = sinks.Files(url).open(0)
    for number in range(23):
        writer.store(bundle(number, number + 1))
    assert len(Objects(url).metas("_emberflow/partition-0000")) < 5 + 1 + 4
    with pytest.raises(SinkMovedError):
        zombie.store(bundle(0, 9))
    assert keys(url) == list(range(23))
    assert sinks.Files(url).open(0).last() == GlobalTime(22, 0)


def test_files_that_were_copied_here_count(s3: S3Server) -> None:
    url, other = s3.new_url(), s3.new_url()
    writer = sinks.Files(url).open(0)
    writer.store(bundle(0, 3))
    writer.close()
    for meta in Objects(url).metas("partition-0000"):
        data = Objects(url).read(f"partition-0000/{meta.name}")
        Objects(other).put(f"partition-0000/{meta.name}", data)
    assert sinks.Files(other).open(0).last() == GlobalTime(2, 0)


@pytest.mark.parametrize("seed", range(20 if SOAK else 2))
def test_whatever_is_lost_each_payload_is_stored_once(
    seed: int, faulty: FaultyS3, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that fails is opened again and asked what it has, as a query does."""
    monkeypatch.setattr(objects_module, "_RETRY_SECONDS", 0.05)
    url = s3.new_url()
    faulty.fate = loses_some(seed, 0.2)
    dice = random.Random(seed)
    stored = 0
    zombies: list[Any] = []
    while stored < 60:
        try:
            writer = sinks.Files(url).open(0)
            last = writer.last()
            stored = 0 if last is None else last.time + 1
            for _ in range(dice.randint(1, 8)):
                size = dice.randint(1, 5)
                writer.store(bundle(stored, stored + size))
                stored += size
            zombies.append(writer)
        except UnavailableError:
            pass
        for zombie in zombies[:-1]:
            with pytest.raises((SinkMovedError, UnavailableError)):
                zombie.store(bundle(stored, stored + 7))
    faulty.fate = all_pass
    sinks.Files(url).open(0).close()
    found = keys(url)
    assert found == list(range(len(found)))
    assert len(found) >= stored


def test_other_readers_see_only_files_of_bundles(s3: S3Server) -> None:
    url = s3.new_url()
    for partition in (0, 1):
        writer = sinks.Files(url, format="parquet").open(partition)
        writer.store(bundle(0, 3))
        writer.store(bundle(3, 5))
    system = pyarrow.fs.S3FileSystem(
        access_key="ada",
        secret_key="lovelace",
        region="us-east-1",
        scheme="http",
        endpoint_override=s3.endpoint.removeprefix("http://"),
    )
    found = pyarrow.dataset.dataset(
        url.removeprefix("s3://"), filesystem=system, format="parquet"
    ).to_table()
    assert sorted(found.column("key").to_pylist()) == sorted([*range(5), *range(5)])


def test_a_place_that_is_neither_is_an_error() -> None:
    for files in (sinks.Files, fronts.Files):
        with pytest.raises(InputError, match=r"got 'ftp://x/y'"):
            files("ftp://x/y")


# The front


def test_follows_a_folder_of_objects(s3: S3Server) -> None:
    objects = Objects(s3.new_url())
    front = fronts.Files(str(objects), format="text", poll_ms=1)
    front.check()
    reading = front.read(0, None)
    assert until_idle(reading) == []
    objects.put("1", b"a\nb\n")
    objects.put(".hidden", b"x\n")
    objects.put("9/3", b"in a folder\n")
    assert until_idle(reading) == ["a", "b"]
    objects.put("1", b"a\nb\nc\n")  # a longer one that begins with the same
    assert until_idle(reading) + until_idle(reading) == ["c"]  # one look, and what it found
    objects.put("2", b"d\n")
    objects.put("3", b"e\n")
    assert until_idle(reading) == ["d", "e"]
    again = fronts.Files(str(objects), format="text", until_end=True)
    elements = [element for element in again.read(0, None) if element is not None]
    for number, element in enumerate(elements):
        rest = [found for found in again.read(0, element.position) if found is not None]
        assert rest == elements[number + 1 :]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda objects: objects.put("0", b"late\n"), "sorts before it"),
        (lambda objects: objects.put("2", b"b"), "has 1 bytes, and was read up to byte 4"),
        (lambda objects: objects.put("1", b"a\na\n"), "grew after 2 was begun"),
        (lambda objects: objects.remove(["2"]), "was removed or replaced"),
        (lambda objects: objects.put("3", b"no newline"), "has no newline at its end"),
    ],
)
def test_what_would_break_the_order_is_an_error(
    change: Callable[[Objects], None], problem: str, s3: S3Server
) -> None:
    objects = Objects(s3.new_url())
    objects.put("1", b"a\n")
    objects.put("2", b"b\nc\n")
    reading: Iterator[Element | None] = fronts.Files(str(objects), format="text", poll_ms=0.1).read(
        0, None
    )
    assert until_idle(reading) == ["a", "b", "c"]
    change(objects)
    if problem.startswith("has no newline"):
        assert until_idle(reading) == []
        objects.put("4", b"x\n")
    with pytest.raises(InputError, match=problem):
        all(True for _ in zip(range(200), reading, strict=False))


def test_what_a_sink_wrote_a_front_reads(s3: S3Server, faulty: FaultyS3) -> None:
    url = s3.new_url()
    writer = sinks.Files(url).open(0)
    for begin in range(0, 50, 10):
        writer.store(bundle(begin, begin + 10))
    lost = iter([True] * 5)
    faulty.fate = lambda method, path, headers: (
        LOST_AFTER if method == "GET" and next(lost, False) else PASSED
    )
    front = fronts.Files(f"{url}/partition-0000", time="key", until_end=True)
    found = [element for element in front.read(0, None) if element is not None]
    assert [element.payload for element in found] == [{"key": number} for number in range(50)]
    assert json.loads(Objects(url).read(f"partition-0000/{found[0].position[0]}").splitlines()[0])
