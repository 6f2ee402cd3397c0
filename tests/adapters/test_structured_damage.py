"""Files of structured fronts and sinks: a flipped bit is found or harmless, never other rows."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from emberflow import GlobalTime, fronts, sinks
from emberflow.checkpoint import DamagedFileError
from emberflow.errors import InputError
from emberflow.fronts.inbox import batch_name
from emberflow.fronts.structured import kept_in
from tests.adapters.structured import Sender, outbox, placed_front, placed_sink
from tests.adapters.test_fronts_structured import ROWS, read
from tests.adapters.test_sinks_structured import Count, bundle, latest
from tests.adapters.test_sinks_structured import read as read_bundles

FLIPS = 600


def flipped(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def check_flips(path: Path, observe: Callable[[], Any], seed: int, flips: int = FLIPS) -> int:
    """Flip random bits of a file, one at a time. Returns how many of them `observe` refused."""
    whole, right = path.read_bytes(), observe()
    dice = random.Random(seed)
    bits = dice.sample(range(8 * len(whole)), min(flips, 8 * len(whole)))
    refusals = []
    for bit in bits:
        path.write_bytes(flipped(whole, bit))
        try:
            assert observe() == right, f"bit {bit} of {path.name}"
        except DamagedFileError as error:
            refusals.append(str(error))
    path.write_bytes(whole)
    assert observe() == right
    assert all(str(path) in refusal for refusal in refusals)
    return len(refusals)


def check_truncations(path: Path, observe: Callable[[], Any]) -> None:
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedFileError, match=path.name):
            observe()
    path.write_bytes(whole)


@pytest.fixture(params=[None, "at"])
def front(tmp_path: Path, request: pytest.FixtureRequest) -> fronts.Structured:
    front = placed_front(tmp_path, "word", time=request.param)
    service = front.service()
    for batch in range(2):
        Sender().send(service, batch, *ROWS)
    service.close()
    return front


def test_every_flipped_bit_of_a_batch_is_found(front: fronts.Structured, tmp_path: Path) -> None:
    path = kept_in(str(tmp_path), "fronts", "docs") / batch_name(1)
    assert check_flips(path, lambda: read(front), seed=1) == FLIPS


def test_every_truncation_of_a_batch_is_found(front: fronts.Structured, tmp_path: Path) -> None:
    path = kept_in(str(tmp_path), "fronts", "docs") / batch_name(2)
    check_truncations(path, lambda: read(front))


def test_a_batch_in_the_place_of_another_is_found(front: fronts.Structured, tmp_path: Path) -> None:
    folder = kept_in(str(tmp_path), "fronts", "docs")
    shutil.copy(folder / batch_name(1), folder / batch_name(2))
    with pytest.raises(DamagedFileError, match=batch_name(2)):
        read(front)


@pytest.mark.parametrize("is_empty", [False, True], ids=["batch", "numbers"])
def test_a_flipped_bit_changes_no_number_of_a_stream(tmp_path: Path, is_empty: bool) -> None:
    front = placed_front(tmp_path, "word")
    service = front.service()
    Sender().send(service, 0, *ROWS)
    if is_empty:
        Sender().send(service, 1, [])
    service.close()
    folder = kept_in(str(tmp_path), "fronts", "docs")

    def last() -> int | None:
        service = front.service()
        service.close()
        return service._inbox.last("stream-1")

    # The rows of the newest batch are not read for this. Its head, with the numbers, is.
    found = check_flips(folder / ("numbers" if is_empty else batch_name(1)), last, seed=2)
    assert found > 100


def test_an_inbox_that_lost_its_newest_batches_is_refused(
    front: fronts.Structured, tmp_path: Path
) -> None:
    position = read(front)[-1].position
    assert read(front, position) == []
    for path in kept_in(str(tmp_path), "fronts", "docs").glob("batch-*"):
        path.unlink()
    with pytest.raises(InputError, match=r"batch-0{15}2 was removed"):
        read(front, position)


@pytest.fixture
def sink(tmp_path: Path) -> sinks.Structured:
    sink = placed_sink(tmp_path, Count)
    writer = sink.open(0)
    for number in range(4):
        writer.store(bundle(number))
    writer.close()
    return sink


def bundles(tmp_path: Path) -> list[Path]:
    return sorted(kept_in(str(tmp_path), "sinks", "counts").glob("partition-0000/*.arrow"))


def all_rows(sink: sinks.Structured) -> Any:
    service = outbox(sink)
    start = service.initial()
    return read_bundles(service, start, latest(service, start))


def test_every_flipped_bit_of_a_bundle_is_found(sink: sinks.Structured, tmp_path: Path) -> None:
    path = bundles(tmp_path)[1]
    assert check_flips(path, lambda: all_rows(sink), seed=3) == FLIPS
    check_truncations(path, lambda: all_rows(sink))


def test_a_bundle_in_the_place_of_another_is_found(sink: sinks.Structured, tmp_path: Path) -> None:
    first, second, *_ = bundles(tmp_path)
    shutil.copy(first, second)
    with pytest.raises(DamagedFileError, match=second.name):
        all_rows(sink)


def test_a_schema_is_taken_from_no_damaged_bundle(tmp_path: Path) -> None:
    sink = placed_sink(tmp_path)
    writer = sink.open(0)
    writer.store(bundle(1))
    writer.close()
    (path,) = bundles(tmp_path)
    assert check_flips(path, lambda: outbox(sink).schema(), seed=4, flips=100) == 100


def test_a_flipped_bit_acknowledges_nothing(sink: sinks.Structured, tmp_path: Path) -> None:
    outbox(sink).acknowledge({"0": list(GlobalTime(-10, 0))})
    path = kept_in(str(tmp_path), "sinks", "counts") / "acknowledged"
    size = 8 * path.stat().st_size
    assert check_flips(path, lambda: outbox(sink).initial(), seed=5) == min(size, FLIPS)


@pytest.mark.parametrize("kind", ["fronts", "sinks"])
def test_names_that_differ_have_folders_that_differ(kind: str) -> None:
    names = ["a/b", "a_b", "a%2Fb", "a%b", "a%25b", "a b", "ä.b", "a-b", "a%2fb", "/", "%", "_"]
    folders = [kept_in("/checkpoint", kind, name) for name in names]
    assert len(set(folders)) == len(names)
    assert {folder.parent for folder in folders} == {Path("/checkpoint/structured")}


def test_a_plain_name_is_its_folder() -> None:
    for name in ("docs", "a_b", "new orders", "größe.2"):
        assert kept_in("/checkpoint", "fronts", name).name == f"fronts-{name}"
