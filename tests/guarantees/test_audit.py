"""`emberflow audit`: a verdict on stdout, and exit code 0 if the guarantee is good enough."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import emberflow as ef
from emberflow import cli, sinks
from emberflow.commands import audit as command
from emberflow.errors import InputError
from emberflow.guarantees import Guarantee, LoggedElements, Verdict
from emberflow.sinks import StoredBundle

INDEX = """
import emberflow as ef

flow = ef.Flow("index")
postings = flow.front("docs").flat_map(lambda doc: [(w, doc["id"]) for w in doc["text"].split()])
counts = postings.key_by(lambda posting: posting[0])
counts.reduce(
    first=lambda posting: {"word": posting[0], "docs": (posting[1],)},
    combine=lambda entry, posting: {**entry, "docs": (*entry["docs"], posting[1])},
).sink("changes")

def two_fronts():
    flow = ef.Flow("two")
    ef.merge(flow.front("left"), flow.front("right")).sink("both")
    return flow

def parted():
    flow = ef.Flow("parted")
    flow.front("words").key_by(lambda word: word).sink("words", partitions=3)
    return flow

def timed():
    flow = ef.Flow("timed")
    flow.front("words").with_time().map(lambda timed: {"at": timed.time, "word": timed.payload,
        "half": timed.time / 2, "none": None}).sink("timed")
    return flow
"""

DOCS = [{"id": 1, "text": "ash ember"}, {"id": 2, "text": "ember"}, {"id": 3, "text": "ash"}]
CHANGES = [
    {"word": "ash", "docs": [1]},
    {"word": "ember", "docs": [1]},
    {"word": "ember", "docs": [1, 2]},
    {"word": "ash", "docs": [1, 3]},
]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "shop.py").write_text(INDEX)
    write_lines(tmp_path / "in" / "1.jsonl", DOCS[:2])
    write_lines(tmp_path / "in" / "2.jsonl", DOCS[2:])
    yield
    sys.modules.pop("shop", None)


def write_lines(path: Path, payloads: Sequence[Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(payload) + "\n" for payload in payloads))


def stored(
    payloads: Sequence[Any], *, folder: str = "out", partition: int = 0, **options: Any
) -> None:
    """Each payload in a bundle of its own."""
    writer = sinks.Files(folder, **options).open(partition)
    for time, payload in enumerate(payloads):
        writer.store(StoredBundle("any", partition, ef.GlobalTime(time, 0), [payload]))
    writer.close()


def audited(*options: str) -> tuple[int, str, str]:
    arguments = ["audit", "shop:flow", "--front", "docs=files:in/", "--sink", "changes=files:out/"]
    result = CliRunner().invoke(cli.app, [*arguments, *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_exactly_once_exits_with_0() -> None:
    stored(CHANGES)
    said = "exactly-once: all 4 outputs are those of the reference on 3 elements.\n"
    assert audited() == (0, said, "")


def test_what_differs_first_is_told() -> None:
    stored(CHANGES[1:])
    code, said, _ = audited()
    assert code == 1
    assert said.startswith(
        "inconsistent: sink 'changes' partition 0 output 0: expected {'word': 'ash', 'docs': [1]}"
    )
    assert "holds {'word': 'ember', 'docs': [1]}" in said


def test_a_lost_element_is_enough_where_that_was_asked_for() -> None:
    stored([*CHANGES[:2], CHANGES[3]])
    code, said, _ = audited()
    assert (code, said.split(":")[0]) == (1, "at-most-once")
    assert audited("--at-most")[0] == 0
    assert audited("--at-least")[0] == 1
    assert audited("--at-most", "--failures", "0")[0] == 1


def test_a_repeated_element_is_enough_where_that_was_asked_for() -> None:
    again = [*CHANGES, {"word": "ash", "docs": [1, 3, 3]}]
    stored(again)
    code, said, _ = audited()
    assert (code, said.split(":")[0]) == (1, "at-least-once")
    assert audited("--at-least", "--failures", "1")[0] == 0
    assert audited("--at-most")[0] == 1


def test_a_run_that_is_not_over() -> None:
    stored(CHANGES[:3])
    assert audited("--unfinished")[0] == 0
    assert audited()[0] == 1


def test_what_a_writer_has_not_finished_is_not_seen() -> None:
    stored(CHANGES)
    Path("out/partition-0000/.p9.jsonl.temporary").write_text('{"word": "as')
    Path("out/partition-0000/notes.jsonl").write_text("not ours\n")
    assert audited()[0] == 0


def test_parquet() -> None:
    stored(CHANGES, format="parquet")
    assert audit_of("flow", "docs=files:in/", "changes=parquet:out/").exactly_once


def test_parquet_loses_what_columns_lose() -> None:
    Path("words.txt").write_text("a\nb\nc\n")
    rows = [{"at": n, "word": word, "half": n / 2, "none": None} for n, word in enumerate("abc")]
    writer = sinks.Files("out", format="parquet").open(0)
    writer.store(StoredBundle("timed", 0, ef.GlobalTime(2, 0), rows))
    writer.close()
    assert audit_of("timed", "words=text:words.txt", "timed=parquet:out").exactly_once


def test_times_from_a_field() -> None:
    write_lines(Path("left.jsonl"), [{"at": 5, "n": 1}, {"at": 9, "n": 2}])
    write_lines(Path("right.jsonl"), [{"at": 6, "n": 3}])
    stored([{"at": 5, "n": 1}, {"at": 6, "n": 3}, {"at": 9, "n": 2}])
    fronts = ["left=files:left.jsonl?time=at", "right=files:right.jsonl?time=at"]
    assert audit_of("two_fronts", fronts, "both=files:out").exactly_once
    with pytest.raises(InputError, match=r"a flow with 2 fronts are ordered by their times"):
        audit_of("two_fronts", [fronts[0], "right=files:right.jsonl"], "both=files:out")


def test_what_is_late_is_judged_too() -> None:
    """Out of order by no more than the disorder, with a tie, and one that is late."""
    rows = [{"at": at, "n": n} for n, at in enumerate([5, 9, 7, 9, 1, 20])]
    write_lines(Path("left.jsonl"), rows)
    write_lines(Path("right.jsonl"), [])
    stored([rows[n] for n in (0, 2, 1, 3, 5)])
    fronts = ["left=files:left.jsonl?time=at&disorder=3", "right=files:right.jsonl?time=at"]
    assert audit_of("two_fronts", fronts, "both=files:out").exactly_once
    flow = ef.Flow("one")
    flow.front("left").sink("both")
    source = ef.fronts.Files(".", pattern="left.jsonl", time="at", disorder=3, until_end=True)
    late = ef.run(flow, left=source)["late"]
    assert [record.payload["n"] for record in late] == [4]
    stored(late, folder="late")
    both = ["both=files:out", "late=files:late"]
    assert audit_of("two_fronts", fronts, both).exactly_once
    stored([*late, *late], folder="twice")
    assert not audit_of("two_fronts", fronts, [both[0], "late=files:twice"]).exactly_once


def test_partitions_are_judged_each_by_itself() -> None:
    Path("words.txt").write_text("".join(f"word-{number}\n" for number in range(20)))
    flow_outputs = [f"word-{number}" for number in range(20)]
    from emberflow.values.hashing import key_hash, owner

    for partition in range(3):
        mine = [word for word in flow_outputs if owner(key_hash(word), 3) == partition]
        assert mine
        stored(mine, partition=partition)
    assert audit_of("parted", "words=text:words.txt", "words=files:out").exactly_once
    stored(["word-1"], partition=3)
    with pytest.raises(InputError, match=r"partitions 0 to 2 .* holds partition 3"):
        audit_of("parted", "words=text:words.txt", "words=files:out")


def test_a_log_is_one_more_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(front: str, place: str) -> LoggedElements:
        assert (front, place) == ("words", "somewhere")
        return [(ef.GlobalTime(70, 0), front, "b"), (ef.GlobalTime(50, 0), front, "a")]

    monkeypatch.setitem(command.LOGS, "notes", read)
    rows = [{"at": 50, "word": "a", "half": 25.0, "none": None}]
    stored([*rows, {"at": 70, "word": "b", "half": 35.0, "none": None}])
    assert audit_of("timed", "words=notes:somewhere", "timed=files:out").exactly_once


def test_what_cannot_be_read_again() -> None:
    stored(CHANGES)
    with pytest.raises(InputError, match=r"came through socket: cannot be read again"):
        audit_of("flow", "docs=socket:localhost:1?format=jsonl", "changes=files:out")
    with pytest.raises(InputError, match=r"is not a folder"):
        audit_of("flow", "docs=files:in", "changes=files:nowhere")
    with pytest.raises(InputError, match=r"there are no outputs to judge"):
        audit_of("flow", "docs=files:in", "changes=console")
    assert not Path("nowhere").exists()


def audit_of(flow: str, fronts: str | list[str], sink: str | list[str]) -> Verdict:
    given = [fronts] if isinstance(fronts, str) else fronts
    written = [sink] if isinstance(sink, str) else sink
    return command.audit(f"shop:{flow}", fronts=given, sinks=written)


def test_the_program() -> None:
    stored([*CHANGES, CHANGES[3]])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "emberflow", "audit", "shop:flow"),
            *("--front", "docs=files:in/", "--sink", "changes=files:out/"),
        ],
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith(f"{Guarantee.INCONSISTENT}: sink 'changes' partition 0 output 4")
    assert "restored its state" in done.stdout
