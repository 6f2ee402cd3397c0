"""`testing.Script` and `testing.Recorder`: the same elements whatever strikes, and each bundle once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import emberflow as ef
from emberflow import At, GlobalTime, InputError, fronts, testing
from emberflow.sinks import StoredBundle
from emberflow.sinks.writer import SinkFailedError, WriterThread
from emberflow.testing import Crash, Pause, Raise, Recorder, Repeat, Script

WORDS = ["ash", "ember", At(7, "flint"), "spark"]


def given(front: Script, position: Any = None) -> list[fronts.Element]:
    return [element for element in front.read(0, position) if element is not None]


def test_a_script_keeps_the_contract(tmp_path: Path) -> None:
    (tmp_path / "fault-2").touch()  # as if it had struck
    steps = ["ash", Pause(0.01), Raise(OSError("unplugged")), "ember", Repeat(2), At(9, "flint")]
    payloads = ["ash", "ember", "ash", "ember", "flint"]
    for ends in (True, False):
        testing.check_front(
            lambda ends=ends: Script(steps, folder=tmp_path, ends=ends),  # type: ignore[misc]
            payloads=payloads,
            times=[0, 1, 2, 3, 9],
            seconds=30,
        )
    testing.check_front(lambda: Script(payloads, arrival=True), payloads=payloads)


def test_its_elements_are_what_a_reference_run_takes() -> None:
    flow = ef.Flow("upper")
    flow.front("words").map(str.upper).sink("loud")
    script = Script([*WORDS, Pause(1), Repeat(2), fronts.Malformed("{oops", "not JSON")])
    assert script.elements == [
        At(0, "ash"),
        At(1, "ember"),
        At(7, "flint"),
        At(8, "spark"),
        At(9, "flint"),
        At(10, "spark"),
    ]
    assert ef.run(flow, words=script.elements)["loud"][-1] == "SPARK"
    assert Script(["ash"], arrival=True).elements == ["ash"]


def test_a_raise_strikes_once(tmp_path: Path) -> None:
    script = Script(["ash", Raise(OSError("unplugged")), "ember"], folder=tmp_path)
    reading = script.read(0, None)
    assert next(reading) == fronts.Element(0, "ash", 0)
    with pytest.raises(OSError, match="unplugged"):
        next(reading)
    assert [element.payload for element in given(script, 0)] == ["ember"]
    assert [element.payload for element in given(script)] == ["ash", "ember"]


def test_a_crash_kills_the_process_that_reads_once(tmp_path: Path) -> None:
    program = """
import cloudpickle, sys
script = cloudpickle.load(open(sys.argv[1], "rb"))
for element in script.read(0, None):
    if element is not None:
        print(element.payload, flush=True)
"""
    import cloudpickle

    script = Script(["ash", Crash(), "ember"], folder=tmp_path)
    (tmp_path / "script").write_bytes(cloudpickle.dumps(script))
    runs = [
        subprocess.run(
            [sys.executable, "-c", program, tmp_path / "script"],
            capture_output=True,
            text=True,
            check=False,
        )
        for _ in range(2)
    ]
    assert [run.stdout.split() for run in runs] == [["ash"], ["ash", "ember"]]
    assert [run.returncode for run in runs] == [-9, 0]


def test_a_crash_spares_the_process_of_the_test(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="It is for the workers of a live query"):
        given(Script([Crash()], folder=tmp_path))


def test_a_pause_lasts_until_a_file_is_there(tmp_path: Path) -> None:
    reading = Script([Pause(until=tmp_path / "go"), "ash"]).read(0, None)
    assert next(reading) is None
    assert next(reading) is None
    (tmp_path / "go").touch()
    assert next(element for element in reading if element is not None).payload == "ash"


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([Crash()], r"has a Crash, which strikes once\. Give folder="),
        (["ash", Repeat(2)], r"testing.Repeat\(2\) comes after 1 elements"),
        ([At(5, "ash"), At(4, "ember")], r"behind an element of time 5"),
    ],
)
def test_a_script_that_cannot_be_is_refused(steps: list[Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Script(steps)


def test_a_folder_that_is_not_there_is_told_before_a_query_starts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        Script([Crash()], folder=tmp_path / "missing").check()


def test_a_recorder_keeps_the_contract() -> None:
    checked = testing.check_sink(
        Recorder, payloads=lambda recorder, partition: recorder.payloads(partition)
    )
    assert checked == ["members", "check", "writer", "order", "resume", "partitions"]


def test_each_bundle_is_there_once_however_the_sink_fails() -> None:
    recorder = Recorder(fail_before={0, 3}, fail_after={1})
    writer = WriterThread(recorder, "words", 0)
    bundles = [StoredBundle("words", 0, GlobalTime(at, 0), [at]) for at in range(3)]
    for bundle in bundles:
        writer.store(bundle)
        assert writer.stored(30).total() == 1
    writer.close(30)
    assert recorder.bundles() == bundles
    assert (recorder.failed, recorder.attempts) == ([0, 1, 3], 5)


def test_without_patience_the_first_failure_is_the_end() -> None:
    recorder = Recorder(fail_before={0}, retry_seconds=0)
    writer = WriterThread(recorder, "words", 0)
    writer.store(StoredBundle("words", 0, GlobalTime(1, 0), ["ash"]))
    with pytest.raises(SinkFailedError, match=r"attempt 0 fails, as testing.Recorder was told"):
        writer.stored(30)
    writer.close(30)
    assert recorder.payloads() == []


def test_a_recorder_refuses_what_it_has() -> None:
    recorder = Recorder()
    bundle = StoredBundle("words", 0, GlobalTime(1, 0), ["ash"])
    recorder.open(0).store(bundle)
    with pytest.raises(ef.EmberflowError, match="has stored up to"):
        recorder.open(0).store(bundle)
    with pytest.raises(InputError, match="attempt 2 is in fail_before= and in fail_after="):
        Recorder(fail_before={2}, fail_after={1, 2})


def test_it_needs_neither_pytest_nor_an_extra() -> None:
    """Of this room and those below it: whether the package itself does is tested elsewhere."""
    program = """
import sys, types
package = types.ModuleType("emberflow")
package.__path__ = [sys.argv[1]]
sys.modules["emberflow"] = package
missing = "pytest", "pyspark", "pyarrow", "zmq", "confluent_kafka", "psycopg"
sys.modules.update(dict.fromkeys(missing))
from emberflow import testing
print(testing.check_front(lambda: testing.Script(["ash", "ember"])))
print(testing.check_sink(testing.Recorder))
"""
    run = subprocess.run(
        [sys.executable, "-c", program, Path(ef.__file__).parent],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("resume") == 2
