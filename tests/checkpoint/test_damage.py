"""Truncations and flipped bits are detected and an older cut is used, or they are harmless."""

from __future__ import annotations

import random
import shutil
import warnings
from pathlib import Path

import pytest

from emberflow.checkpoint import CheckpointError, DamagedCutError, DamagedCutWarning, Manifest
from emberflow.checkpoint.cuts.store import CheckpointStore
from tests.checkpoint.cases import State, Workers, state_of
from tests.effort import SOAK


class Stored:
    """Three cuts: a full one, one that builds on it, and a full one again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = CheckpointStore(folder)
        workers = Workers(self.store, self.store.begin().incarnation, 1, 0)
        dice = random.Random(1)
        state: State = {("last", key): [((key, 0), key)] for key in range(3)}
        self.states: dict[int, State] = {}
        self.cuts: dict[int, Manifest] = {}
        for number in (1, 2, 3):
            state["last", number] = [((9, number), "new")]
            changed = [("last", number)] if number == 2 else None
            cut = workers.write(number, state, changed, self.cuts.get(number - 1), dice)
            self.store.commit(cut)
            self.cuts[number], self.states[number] = cut, dict(state)

    def needs(self, number: int, path: Path) -> bool:
        name = path.relative_to(self.folder).as_posix()
        return name == f"cuts/{number:010d}-000001.json" or name in {
            part.path for part in self.cuts[number].parts
        }

    def stride(self, path: Path) -> int:
        """Files that the latest cut needs are damaged at every byte in a soak, else at every third."""
        if self.needs(3, path) or path.name.endswith(".base.json"):
            return 1 if SOAK else 3
        return 40

    def check(self, path: Path, what: str) -> bool:
        """Whether the damage to this file was detected. Whatever is restored must be right."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            refused = ""
            found = None
            try:
                found = self.store.latest()
            except DamagedCutError as error:
                refused = str(error)
        if refused:
            assert path.name in refused, what
            return True
        assert found is not None, what
        expected = 3 if not caught or not self.needs(3, path) else 2
        assert found == self.cuts[expected], what
        for warning in caught:
            assert warning.category is DamagedCutWarning
            assert str(path) in str(warning.message), what
        return bool(caught)


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path / "cuts")


def files(stored: Stored) -> list[Path]:
    return sorted(path for path in stored.folder.rglob("*.*") if path.is_file())


def test_every_flipped_bit_is_found_or_harmless(stored: Stored) -> None:
    dice = random.Random(7)
    for path in files(stored):
        whole = path.read_bytes()
        found = 0
        places = range(0, len(whole), stored.stride(path))
        tried = len(places)
        for place in places:
            damaged = bytearray(whole)
            damaged[place] ^= 1 << dice.randrange(8)
            path.write_bytes(damaged)
            found += stored.check(path, f"{path.name}: byte {place}")
        path.write_bytes(whole)
        if stored.needs(3, path) and path.suffix == ".parquet":
            assert found == tried
        if stored.needs(3, path) and path.suffix == ".json":
            assert found > tried / 2  # one blank may become another
    assert not stored.check(files(stored)[0], "nothing")


def test_every_truncation_is_found(stored: Stored) -> None:
    for path in files(stored):
        whole = path.read_bytes()
        counts = stored.needs(3, path) or path.name.endswith("base.json")
        for length in range(0, len(whole), 3 * stored.stride(path)):
            path.write_bytes(whole[:length])
            assert stored.check(path, f"{path.name}: {length} bytes") == counts
        path.unlink()
        if path.suffix == ".parquet":
            assert stored.check(path, f"{path.name} is missing") == counts
        elif path.parent.name == "cuts":  # a cut without its manifest never existed
            assert stored.store.latest() == stored.cuts[2 if stored.needs(3, path) else 3]
        path.write_bytes(whole)


def test_the_cut_before_is_used_and_its_rows_are_right(stored: Stored) -> None:
    (path,) = (path for path in files(stored) if path.name.startswith("0000000003-000001-0"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(DamagedCutWarning, match=f"{path}.* bytes; it has"):
        found = stored.store.latest()
    assert found == stored.cuts[2]
    assert state_of(stored.store.rows(found)) == stored.states[2]
    with pytest.warns(DamagedCutWarning):
        life = stored.store.begin()
    assert life.restored == found
    # It was passed over once: there is no second warning.
    assert stored.store.latest() == found
    assert life.next_cut == 3


def test_no_cut_that_is_whole_is_an_error_and_not_a_fresh_start(stored: Stored) -> None:
    for path in (stored.folder / "parts").iterdir():
        path.unlink()
    with (
        pytest.warns(DamagedCutWarning),
        pytest.raises(DamagedCutError, match=r"none .* is whole") as caught,
    ):
        stored.store.latest()
    assert str(caught.value).count("  - ") == 3


def test_a_lost_record_of_an_incarnation_is_an_error(stored: Stored) -> None:
    (path,) = stored.folder.glob("incarnations/*.base.json")
    path.unlink()
    with pytest.raises(DamagedCutError, match=r"incarnations/000001-….base.json is missing"):
        stored.store.latest()


def test_a_newer_format_is_refused_and_not_called_damaged(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    from emberflow.checkpoint.cuts import manifest

    monkeypatch.setattr(manifest, "FORMAT_VERSION", 2)
    with pytest.raises(CheckpointError, match="has version 1 of the format") as caught:
        stored.store.latest()
    assert not isinstance(caught.value, DamagedCutError)


def test_a_copy_of_a_location_is_as_good(stored: Stored, tmp_path: Path) -> None:
    shutil.copytree(stored.folder, tmp_path / "copy")
    copy = CheckpointStore(tmp_path / "copy")
    found = copy.latest()
    assert found is not None
    assert state_of(copy.rows(found)) == stored.states[3]


def test_rows_of_a_damaged_file_name_it(stored: Stored) -> None:
    (path,) = (path for path in files(stored) if path.name.startswith("0000000003-000001-0"))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DamagedCutError, match=f"{path}: block 0 of 1"):
        list(stored.store.rows(stored.cuts[3]))
