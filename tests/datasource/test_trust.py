"""Reading a checkpoint runs none of its code, unless the user trusts it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from emberflow.checkpoint import DamagedCutError, Manifest
from emberflow.checkpoint.cuts.manifest import checked_json, json_with_checksum
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.datasource.state import state_reader, state_schema
from emberflow.datasource.trust import VARIABLE
from emberflow.errors import EmberflowError, InputError
from tests.datasource.test_state import flow, options, read, write


class Bomb:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def exploded(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "exploded"
    yield path
    assert not path.exists(), "code of the checkpoint ran"


def listed(location: Path, what: str) -> list[Any]:
    given = options(location, list=what)
    reader = state_reader(given, state_schema(given))
    return list(reader.read(reader.partitions()[0]))


def forge(location: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite the manifest of the only cut, with a checksum that is right."""
    (path,) = (location / "cuts").iterdir()
    body = checked_json(path.read_bytes(), str(path))
    change(body)
    path.write_bytes(json_with_checksum(body))


def test_lists_unpickle_nothing(tmp_path: Path, exploded: Path) -> None:
    location = tmp_path / "forged"
    write(location, {"ada": 3})
    bombs = {"orders": {0: Bomb(exploded)}, "words": {0: (1, [Bomb(exploded)])}}

    def change(body: dict[str, Any]) -> None:
        of_bombs = Manifest.of(
            flow().graph(),
            number=1,
            incarnation=1,
            time=(100, 1),
            parts=(),
            positions=bombs,
            sinks={"done": Bomb(exploded)},
        )
        stored = checked_json(of_bombs.to_json(), "forged")
        body["positions"], body["sinks"] = stored["positions"], stored["sinks"]

    forge(location, change)
    assert [row[:2] for row in listed(location, "cuts")] == [(1, 100)]
    assert ("accounts", "accounts") in listed(location, "states")
    assert read(options(location)) == [{"key": "ada", "value": 3, "time": 10, "front": 0}]
    (manifest,) = CheckpointStore(location).cuts()
    assert "exploded" not in repr(manifest)


def test_positions_come_back_to_the_query_that_restores_them(tmp_path: Path) -> None:
    positions = {"words": {0: ("file", b"bytes"), 1: None}}
    store = CheckpointStore(tmp_path)
    store.begin()
    store.commit(
        Manifest.of(
            flow().graph(), number=1, incarnation=1, time=(1, 0), parts=(), positions=positions
        )
    )
    life = store.begin()
    assert life.restored is not None
    assert life.restored.positions == positions
    assert life.restored.positions["words"].get(0) == ("file", b"bytes")


@pytest.mark.parametrize(
    "path", ["../other/parts/x.parquet", "/etc/passwd", "parts/../../x", "cuts/x.json", "parts/"]
)
def test_a_manifest_names_files_of_its_own_checkpoint_only(tmp_path: Path, path: str) -> None:
    write(tmp_path, {"ada": 3})

    def change(body: dict[str, Any]) -> None:
        body["parts"][0]["path"] = path

    forge(tmp_path, change)
    with pytest.warns(match="names a file"), pytest.raises(DamagedCutError, match="names a file"):
        read(options(tmp_path))


def with_bomb(location: Path, exploded: Path) -> None:
    """A checkpoint whose rows run code; its manifest fits its parts."""
    write(location, {"ada": 3, "bob": 4})
    for path in (location / "parts").iterdir():
        table = pq.read_table(path)
        column = table.schema.get_field_index("payload")
        bombs = [pickle.dumps(Bomb(exploded))] * table.num_rows
        field = table.schema.field(column)
        pq.write_table(table.set_column(column, field, pa.array(bombs, field.type)), path)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666], ids=oct)
def test_parts_that_others_can_write_are_not_unpickled(
    tmp_path: Path, exploded: Path, mode: int
) -> None:
    location = tmp_path / "checkpoint"
    with_bomb(location, exploded)
    for path in (location / "parts").iterdir():
        path.chmod(mode)
    with pytest.raises(EmberflowError, match=f"can be changed by other users.*{VARIABLE}"):
        read(options(location))
    assert listed(location, "cuts")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_parts_of_other_users_are_not_unpickled(tmp_path: Path, exploded: Path) -> None:
    location = tmp_path / "checkpoint"
    with_bomb(location, exploded)
    for path in (location / "parts").iterdir():
        os.chown(path, 12345, 12345)
    with pytest.raises(EmberflowError, match=f"belongs to user 12345.*{VARIABLE}"):
        read(options(location))


def test_a_task_looks_again(tmp_path: Path, exploded: Path) -> None:
    location = tmp_path / "checkpoint"
    write(location, {"ada": 3, "bob": 4})
    given = options(location)
    reader = state_reader(given, state_schema(given))
    partitions = reader.partitions()
    for path in (location / "parts").iterdir():
        path.chmod(0o666)
    with pytest.raises(EmberflowError, match="can be changed by other users"):
        list(reader.read(partitions[0]))


def test_a_location_that_is_named_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = tmp_path / "shared" / "checkpoint"
    write(location, {"ada": 3})
    for path in (location / "parts").iterdir():
        path.chmod(0o666)
    monkeypatch.setenv(VARIABLE, f"/nowhere,{tmp_path / 'shared'}")
    assert len(read(options(location))) == 1


@pytest.mark.parametrize("named", ["/nowhere", "{here}/shared-too", "{here}/shared/other", ","])
def test_where_locations_are_named_all_others_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    location = tmp_path / "shared" / "checkpoint"
    write(location, {"ada": 3})
    monkeypatch.setenv(VARIABLE, named.format(here=tmp_path))
    with pytest.raises(InputError, match=f"{VARIABLE} does not name"):
        read(options(location))
    assert listed(location, "cuts")


def test_a_link_out_of_a_named_folder_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = tmp_path / "elsewhere"
    write(location, {"ada": 3})
    trusted = tmp_path / "trusted"
    trusted.mkdir()
    (trusted / "link").symlink_to(location)
    monkeypatch.setenv(VARIABLE, str(trusted))
    with pytest.raises(InputError, match=f"{VARIABLE} does not name"):
        read(options(trusted / "link"))
    with pytest.raises(InputError, match=f"{VARIABLE} does not name"):
        read(options(Path(f"{trusted}/../elsewhere")))


def test_a_location_that_is_not_on_this_machine_has_to_be_named() -> None:
    from emberflow.datasource.trust import is_named

    with pytest.raises(InputError, match=rf"s3://bucket/cuts.*{VARIABLE}"):
        is_named("s3://bucket/cuts")
