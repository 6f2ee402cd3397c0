"""What is read of a damaged part is right or refused: by a restore, and by SQL over state."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emberflow.checkpoint import DamagedCutError, Manifest, PartInfo
from emberflow.checkpoint import files as files_module
from emberflow.checkpoint.cuts.part_file import PartFile
from emberflow.checkpoint.cuts.parts import writer as writer_module
from emberflow.checkpoint.cuts.scan import Wanted
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.files import Written
from emberflow.values.hashing import key_hash
from tests.checkpoint.cases import FILES, STORES, State, graph, remote, rows_of, state_of

FLIPS = 1_200
BLOCK = 512


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_GROUP_ROWS_MAX", 20)
    monkeypatch.setattr(files_module, "BLOCK_BYTES", BLOCK)


def stored(store: CheckpointStore) -> Manifest:
    """A cut of two steps, in many row groups."""
    store.begin()
    state: State = {
        (step, key): [((key, 0, 5), f"payload {key} of {step}")]
        for step in ("last", "other")
        for key in range(60)
    }
    part = store.write_part(1, 0, [rows_of(state)], incarnation=1)
    return Manifest.of(graph(), number=1, incarnation=1, time=(99, 0), parts=[part])


def restored(store: CheckpointStore, cut: Manifest) -> Any:
    return state_of(store.rows(cut))


def scanned(store: CheckpointStore, cut: Manifest, **wanted: Any) -> Any:
    pages = store.pages(cut.parts, Wanted("last", child_ids=True, **wanted))
    return [tuple(map(list, page)) for page in pages]


@pytest.mark.parametrize("kind", FILES)
def test_no_flipped_bit_changes_what_is_read(kind: str, tmp_path: Path) -> None:
    store = STORES[kind](tmp_path)
    cut = stored(store)
    (part,) = cut.parts
    readers: list[Callable[[], Any]] = [
        lambda: restored(store, cut),
        lambda: scanned(store, cut),
        lambda: scanned(store, cut, hashes=(key_hash(7),)),
        lambda: scanned(store, cut, low=0),
    ]
    right = [reader() for reader in readers]
    path = tmp_path / part.path
    whole = path.read_bytes()
    assert len(part.blocks) > 10
    dice = random.Random(f"part {kind}")
    refusals = []
    for bit in dice.sample(range(8 * len(whole)), FLIPS // len(FILES)):
        path.write_bytes(flipped(whole, bit))
        number = dice.randrange(len(readers))
        try:
            assert readers[number]() == right[number], f"bit {bit} by reader {number}"
        except DamagedCutError as error:
            refusals.append(str(error))
    assert refusals
    assert all(part.path in refusal for refusal in refusals)


def test_who_needs_few_rows_verifies_few_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "BLOCK_BYTES", 16 << 10)
    store = CheckpointStore(tmp_path)
    store.begin()
    dice = random.Random("few")
    state: State = {("last", key): [((key, 0), dice.randbytes(1_000))] for key in range(600)}
    part = store.write_part(1, 0, [rows_of(state)], incarnation=1)
    cut = Manifest.of(graph(), number=1, incarnation=1, time=(99, 0), parts=[part])
    path = tmp_path / cut.parts[0].path
    whole = path.read_bytes()
    refused = 0
    for bit in range(0, 8 * len(whole), 8 * (16 << 10)):
        path.write_bytes(flipped(whole, bit))
        try:
            ((keys, _, _, _, payloads),) = scanned(store, cut, hashes=(key_hash(7),))
            assert [(keys[0], payloads[0])] == [(7, state["last", 7][0][1])]
        except DamagedCutError:
            refused += 1
    assert 0 < refused < len(cut.parts[0].blocks) / 2


def flipped(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


@pytest.mark.parametrize("cut_off", [1, BLOCK - 1, BLOCK, 3 * BLOCK])
def test_a_part_that_lost_its_end_is_refused(cut_off: int, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    cut = stored(store)
    path = tmp_path / cut.parts[0].path
    path.write_bytes(path.read_bytes()[:-cut_off])
    with pytest.raises(DamagedCutError, match=path.name):
        list(store.pages(cut.parts, Wanted("last")))


def test_a_part_without_blocks_is_one_block(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    cut = stored(store)
    (part,) = cut.parts
    alone = replace(part, blocks=())
    assert list(store.pages([alone], Wanted("last"))) == list(store.pages([part], Wanted("last")))
    path = tmp_path / part.path
    path.write_bytes(flipped(path.read_bytes(), 99))
    with pytest.raises(DamagedCutError, match="block 0"):
        list(store.pages([alone], Wanted("last")))


def test_blocks_survive_the_manifest(tmp_path: Path) -> None:
    cut = stored(CheckpointStore(tmp_path))
    assert Manifest.from_json(cut.to_json(), "") == cut


@pytest.mark.parametrize("seed", range(3))
def test_a_part_file_reads_as_a_file_does(seed: int, tmp_path: Path) -> None:
    dice = random.Random(f"part file {seed}")
    data = dice.randbytes(dice.choice([1, BLOCK, 5 * BLOCK, 5 * BLOCK + 7]))
    path = tmp_path / "part"
    with open(path, "wb") as plain:
        file = Written(plain)
        begin = 0
        while begin < len(data):
            begin += file.write(data[begin : begin + dice.randrange(1, 2 * BLOCK)])
    info = PartInfo(
        "bucket", 1, "0", "part", 1, file.bytes, file.checksum, 0, 0, BLOCK, file.blocks
    )
    with PartFile(open(path, "rb"), info) as checked, open(path, "rb") as expected:
        for _ in range(200):
            offset = dice.choice([(dice.randrange(len(data) + 9), 0), (0, 2), (-1, 2), (0, 1)])
            assert checked.seek(*offset) == expected.seek(*offset)
            size = dice.choice([0, 1, BLOCK, 3 * BLOCK, -1])
            assert checked.read(size) == expected.read(size)
            assert checked.tell() == expected.tell()


def test_a_remote_store_has_blocks_too(tmp_path: Path) -> None:
    assert stored(remote(tmp_path)).parts[0].blocks
