"""What checkpoints, front logs and `sinks.Files` rely on, on a name node and a data node that run here."""

from __future__ import annotations

import contextlib
import errno
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from emberflow import GlobalTime, cli, sinks, testing
from emberflow.checkpoint import FencedError, Manifest
from emberflow.checkpoint import hdfs as hdfs_module
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.errors import UnreachableError
from emberflow.checkpoint.files import Location, digest, is_unwritable, location_of, write
from emberflow.checkpoint.logs.front_log import FrontLogWriter, read_log
from emberflow.sinks import SinkMovedError, StoredBundle
from emberflow.sinks.formats import FORMATS
from emberflow.testing import SINK_RULES, SimulatedCrash
from emberflow.values.hashing import key_hash, owner
from tests.adapters.java_server import free_port
from tests.checkpoint.cases import graph
from tests.effort import SOAK
from tests.hadoop.minicluster import Hdfs

HdfsClient = hdfs_module.Hdfs


@pytest.fixture
def folder(hdfs: Hdfs, request: pytest.FixtureRequest) -> str:
    return f"{hdfs.url}/{request.node.name.replace('[', '-').replace(']', '').replace(' ', '-')}"


@pytest.fixture
def location(folder: str) -> Location:
    return location_of(folder)


def client_of(folder: str) -> tuple[HdfsClient, str]:
    url = hdfs_module.parsed(folder)
    return HdfsClient(url.place), url.path


# --- The location ---------------------------------------------------------------------------------


def test_a_file_is_whole_or_not_there(location: Location) -> None:
    data = bytes(range(256)) * 8_192  # more than a packet, and than a block of the checksums
    with location.new("parts/one") as file:
        file.write(data[:1_000])
        assert location.names("parts") == []
        assert len(location.names("parts", temporary=True)) == 1
        file.write(data[1_000:])
    assert location.names("parts") == ["one"]
    assert location.names("parts", temporary=True) == []
    assert location.read("parts/one") == data
    assert digest(location, "parts/one") == (len(data), file.checksum)
    with contextlib.suppress(ZeroDivisionError), location.new("parts/two") as file:
        file.write(data)
        raise ZeroDivisionError
    assert location.names("parts") == ["one"]
    assert location.names("parts", temporary=True) == []


def test_a_file_is_replaced_in_one_step(location: Location) -> None:
    write(location, "state", b"old")
    read: list[bytes] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            read.append(location.read("state"))

    looking = threading.Thread(target=look)
    looking.start()
    for number in range(5):
        write(location, "state", b"new" * number)
    ended.set()
    looking.join(60)
    assert set(read) <= {b"old", *(b"new" * number for number in range(5))}
    assert location.read("state") == b"new" * 4


def test_what_is_not_there(location: Location) -> None:
    assert location.names("nothing") == []
    assert location.modified("nothing") is None
    location.remove("nothing")
    for get in (location.read, location.open):
        with pytest.raises(FileNotFoundError):
            get("nothing")


def test_a_file_is_read_from_any_place(location: Location) -> None:
    write(location, "digits", b"0123456789" * 100_000)
    with location.open("digits") as file:
        assert file.seek(-3, 2) == 999_997
        assert file.read() == b"789"
        assert file.seek(500_005) == 500_005
        assert file.read(7) == b"5678901"
        assert file.read(0) == b""
        file.seek(2_000_000)
        assert file.read(1) == b""
        with pytest.raises(OSError, match="negative"):
            file.seek(-1)
    write(location, "empty", b"")
    assert location.read("empty") == b""
    assert abs(location.modified("digits") - time.time()) < 600  # type: ignore[operator]


def test_only_the_owner_can_read_it(folder: str, location: Location) -> None:
    write(location, "cuts/1", b"")
    client, path = client_of(folder)
    modes = [client.status(f"{path}{of}").permission for of in ("", "/cuts", "/cuts/1")]
    assert list(map(oct, modes)) == list(map(oct, (0o700, 0o700, 0o600)))


def test_creating_and_moving_never_replace_what_others_have(folder: str) -> None:
    client, path = client_of(folder)
    for name in ("one", "other"):
        with client.create(f"{path}/{name}", permission=0o600) as file:
            file.write(name.encode())
    with (
        pytest.raises(FileExistsError),
        client.create(f"{path}/one", permission=0o600) as file,
    ):
        file.write(b"mine")
    with pytest.raises(FileExistsError):
        client.rename(f"{path}/one", f"{path}/other", replace=False)
    assert client.read(f"{path}/one") == b"one"
    assert client.read(f"{path}/other") == b"other"
    client.rename(f"{path}/one", f"{path}/other", replace=True)
    assert client.names(path) == ["other"]
    assert client.read(f"{path}/other") == b"one"


def test_who_takes_a_folder_away_ends_its_users(folder: str) -> None:
    client, path = client_of(folder)
    client.make_folder(f"{path}/own", 0o700)
    with client.create(f"{path}/own/done", permission=0o600) as file:
        file.write(b"done")

    def write_into_it_while_it_goes() -> None:
        creation = client.create(f"{path}/own/begun", permission=0o600, make_folders=False)
        with creation as file:
            file.write(b"begun")
            client.remove(f"{path}/own")

    with pytest.raises(OSError, match="begun"):
        write_into_it_while_it_goes()
    with pytest.raises(FileNotFoundError):
        client.rename(f"{path}/own/done", f"{path}/done", replace=False)
    later = client.create(f"{path}/own/later", permission=0o600, make_folders=False)
    with pytest.raises(FileNotFoundError), later as file:
        file.write(b"later")
    assert client.names(path) == []


def test_a_full_quota_and_safe_mode_are_waited_for(
    hdfs: Hdfs, folder: str, location: Location
) -> None:
    write(location, "before", b"")
    files = hdfs.cluster.getFileSystem()
    path = hdfs.jvm.org.apache.hadoop.fs.Path(hdfs_module.parsed(folder).path)
    files.setQuota(path, 2, 2**40)
    with pytest.raises(OSError, match="quota") as full:
        write(location, "one-more", b"")
    assert full.value.errno == errno.EDQUOT
    assert is_unwritable(full.value)
    assert "at org.apache" not in str(full.value), "the stack of the name node helps nobody"
    files.setQuota(path, 100, 2**40)
    actions = hdfs.jvm.org.apache.hadoop.fs.SafeModeAction
    files.setSafeMode(actions.ENTER)
    try:
        with pytest.raises(OSError, match="safe mode") as closed:
            write(location, "one-more", b"")
        assert is_unwritable(closed.value)
    finally:
        files.setSafeMode(actions.LEAVE)
    write(location, "one-more", b"")
    assert location.names("") == ["before", "one-more"]


def test_without_a_name_node_there_is_an_error_soon_and_other_threads_go_on() -> None:
    pytest.importorskip("hdfs_native")
    location = location_of(f"hdfs://127.0.0.1:{free_port()}/flows")
    turns = 0
    ended = threading.Event()

    def turn() -> None:
        nonlocal turns
        while not ended.wait(0.05):
            turns += 1

    turning = threading.Thread(target=turn)
    turning.start()
    try:
        with pytest.raises(UnreachableError) as lost:
            location.names("cuts")
    finally:
        ended.set()
        turning.join(60)
    assert turns > 10, "the client holds the interpreter's lock while it waits"
    assert is_unwritable(lost.value)
    assert is_unwritable(pickle.loads(pickle.dumps(lost.value))), "as a worker reports it"


# --- Cuts and front logs --------------------------------------------------------------------------


def test_the_newest_driver_wins_and_a_cut_is_read_back(folder: str) -> None:
    one, other = CheckpointStore(folder), pickle.loads(pickle.dumps(CheckpointStore(folder)))
    rows = [("last", key, f"key {key}", (key, 0), key * 1.5) for key in range(1_000)]

    def cut(store: CheckpointStore, incarnation: int, number: int) -> Manifest:
        part = store.write_part(number, 0, [rows], incarnation=incarnation)
        return Manifest.of(
            graph(), number=number, incarnation=incarnation, time=(9, 0), parts=[part]
        )

    assert one.begin() == (1, None)
    first = cut(one, 1, 1)
    one.commit(first)
    late = cut(one, 1, 2)
    assert other.begin() == (2, first)
    with pytest.raises(FencedError, match="incarnation 1 was followed by incarnation 2"):
        one.commit(late)
    second = cut(other, 2, 2)
    other.commit(second)
    assert one.latest() == second
    assert [tuple(row) for row in one.rows(second, -(2**31), 2**31 - 1)] == rows
    other.prune(1, incarnation=2)
    assert [found.number for found in one.cuts()] == [2]
    assert len(location_of(folder).names("parts")) == 1


def test_an_incarnation_goes_on_with_the_log_of_the_one_before(folder: str) -> None:
    log = FrontLogWriter(folder, "words", 0, 1, segment_size=3)
    for number in range(4):
        log.append([(number, 1_700 + number)])
        assert log.sync().time == 1_700 + number
    successor = FrontLogWriter(folder, "words", 0, 2)
    log.append([(4, 1_704)])
    log.close()  # too late: it is not in the log that its successor has begun with
    entries = [(number, 1_700 + number) for number in range(4)]
    assert list(successor.entries()) == entries
    successor.append([(4, 1_800)])
    successor.close()
    assert list(read_log(folder, "words", 0)) == [*entries, (4, 1_800)]
    with pytest.raises(FencedError):
        FrontLogWriter(folder, "words", 0, 2)


# --- The sink -------------------------------------------------------------------------------------


def crash_instead(*arguments: Any, **named: Any) -> Any:
    raise SimulatedCrash


@contextmanager
def dying_before_the_rename() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HdfsClient, "rename", crash_instead)
        yield


@contextmanager
def dying_after_the_rename() -> Iterator[None]:
    rename = HdfsClient.rename

    def rename_then_crash(client: HdfsClient, *arguments: Any, **named: Any) -> None:
        rename(client, *arguments, **named)
        raise SimulatedCrash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HdfsClient, "rename", rename_then_crash)
        yield


@contextmanager
def dying_half_way() -> Iterator[None]:
    create = HdfsClient.create

    @contextmanager
    def half(client: HdfsClient, path: str, **named: Any) -> Iterator[Any]:
        with create(client, path, **named) as file:
            write = file.write

            def half_of_it(data: bytes) -> None:
                write(data[: len(data) // 2])
                raise SimulatedCrash

            file.write = half_of_it  # type: ignore[method-assign]
            yield file

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HdfsClient, "create", half)
        yield


CRASHES: dict[str, Callable[[], Any]] = {
    "before the rename": dying_before_the_rename,
    "half way": dying_half_way,
}


@pytest.mark.parametrize("format", ["jsonl", "parquet"] if SOAK else ["jsonl"])
def test_the_sink_keeps_its_contract(folder: str, format: str) -> None:
    made = iter(range(100))
    checked = testing.check_sink(
        lambda: sinks.Files(f"{folder}/{next(made)}", format=format),
        payloads=lambda sink, partition: sink.payloads(partition),
        unstorable=object(),
        crashes=CRASHES,
    )
    # Each partition has a folder of its own, so there are no groups.
    assert checked == [rule for rule in SINK_RULES if rule != "group"]


def bundle(time: int) -> StoredBundle:
    return StoredBundle("words", 0, GlobalTime(time, 0), [{"time": time}])


def test_a_writer_that_dies_after_the_rename_has_stored_its_bundle(folder: str) -> None:
    sink = sinks.Files(folder)
    writer = sink.open(0)
    with dying_after_the_rename(), pytest.raises(SimulatedCrash):
        writer.store(bundle(1))
    successor = sink.open(0)
    assert successor.last() == GlobalTime(1, 0)
    successor.store(bundle(2))
    assert sink.payloads(0) == [{"time": 1}, {"time": 2}]


@pytest.mark.parametrize("moment", ["create", "rename"])
def test_a_writer_that_is_succeeded_while_it_stores(
    folder: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a bundle: whatever the successor has seen is what there is."""
    sink = sinks.Files(folder)
    writer = sink.open(0)
    writer.store(bundle(1))
    original = getattr(HdfsClient, moment)
    successors = []

    def succeeded(client: HdfsClient, path: str, *arguments: Any, **named: Any) -> Any:
        if not successors:
            successors.append(sink.open(0))
        return original(client, path, *arguments, **named)

    monkeypatch.setattr(HdfsClient, moment, succeeded)
    with pytest.raises(SinkMovedError, match="was opened by another writer"):
        writer.store(bundle(2))
    (successor,) = successors
    assert successor.last() == GlobalTime(1, 0)
    successor.store(bundle(2))
    assert sink.payloads(0) == [{"time": 1}, {"time": 2}]
    successor.close()
    client, path = client_of(folder)
    assert all(name.endswith(".jsonl") for name in client.names(f"{path}/partition-0000"))


def test_writers_that_open_at_once_do_not_both_store(folder: str) -> None:
    """At most one of them is left, and then it knows all that is stored."""
    sink = sinks.Files(folder)
    sink.check()
    start = threading.Barrier(4)
    outcomes: list[str] = []

    def write_some(number: int) -> None:
        start.wait(60)
        writer = sink.open(0)
        try:
            for _ in range(3):
                last = writer.last()
                writer.store(bundle(1 if last is None else last.time + 1))
        except SinkMovedError:
            outcomes.append("moved")
        else:
            outcomes.append("stored")

    threads = [threading.Thread(target=write_some, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(outcomes) == 4
    held = sink.payloads(0)
    assert held == [{"time": time} for time in range(1, len(held) + 1)], (
        "no time twice, none missing"
    )
    last = sink.open(0)
    last.store(bundle(len(held) + 1))
    assert len(sink.payloads(0)) == len(held) + 1


def test_parquet_is_read_back_by_others(folder: str) -> None:
    sink = sinks.Files(folder, format="parquet")
    writer = sink.open(0)
    writer.store(StoredBundle("rows", 0, GlobalTime(3, 0), [{"word": "ash", "count": 2}]))
    writer.close()
    client, path = client_of(folder)
    (name,) = client.names(f"{path}/partition-0000")
    with client.open(f"{path}/partition-0000/{name}") as file:
        assert pyarrow.parquet.read_table(file).to_pylist() == [{"word": "ash", "count": 2}]


AUDITED = """
import emberflow as ef

flow = ef.Flow("parted")
flow.front("words").key_by(lambda word: word).sink("out", partitions=2)
"""


@pytest.mark.parametrize("format", FORMATS if SOAK else ["jsonl"])
def test_audit_judges_what_a_folder_holds(folder: str, tmp_path: Path, format: str) -> None:
    """Of a log and a sink that are both in HDFS: whole, with a bundle missing, with one twice."""
    (tmp_path / "audited.py").write_text(AUDITED)
    words = [f"word {number}" for number in range(8)]
    log = FrontLogWriter(f"{folder}/checkpoint", "words", 0, 1, payloads=True)
    log.append([(number, 2 * number, word) for number, word in enumerate(words)])
    log.sync()
    log.close()
    sink = sinks.Files(f"{folder}/out", format=format)
    writers = [sink.open(partition) for partition in range(2)]
    bundles = [
        StoredBundle("out", owner(key_hash(word), 2), GlobalTime(2 * at, 0), [word])
        for at, word in enumerate(words)
    ]

    def guarantee() -> str:
        arguments = ["--front", f"words=log:{folder}/checkpoint"]
        arguments += ["--sink", f"out=files:{folder}/out?format={format}"]
        told = CliRunner().invoke(cli.app, ["audit", f"{tmp_path}/audited.py:flow", *arguments])
        return told.output

    for made in bundles[:-1]:
        writers[made.partition].store(made)
    assert "at-most-once" in guarantee()
    writers[bundles[-1].partition].store(bundles[-1])
    assert "exactly-once" in guarantee()
    again = bundles[-1]._replace(last=GlobalTime(1_000, 0))
    writers[again.partition].store(again)
    assert "at-least-once" in guarantee()
    for writer in writers:
        writer.close()
