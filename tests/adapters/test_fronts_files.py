"""`fronts.Files`: growth, the rule of names, and errors that say where."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberflow import GlobalTime, fronts, sinks
from emberflow.errors import InputError
from emberflow.fronts import Element, Malformed
from tests.effort import examples


def append(path: Path, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


def until_idle(reading: Iterator[Element | None]) -> list[object]:
    """What is there now."""
    found: list[object] = []
    while (element := next(reading)) is not None:
        found.append(element.payload)
    return found


def test_follows_a_folder_that_grows(tmp_path: Path) -> None:
    reading = fronts.Files(tmp_path, format="text", poll_ms=1).read(0, None)
    assert until_idle(reading) == []
    append(tmp_path / "1", "a\nb")
    assert until_idle(reading) == ["a"]
    append(tmp_path / "1", "c\n")
    assert until_idle(reading) == ["bc"]
    append(tmp_path / "1", "d\n")
    append(tmp_path / "2", "e\n")
    append(tmp_path / "3", "f\n")
    assert until_idle(reading) == ["d", "e", "f"]
    append(tmp_path / "3", "g\n")
    assert until_idle(reading) == ["g"]


def test_what_is_appended_just_before_the_next_file_is_not_missed(tmp_path: Path) -> None:
    """The end of a file was seen, then it grew, and only then the folder was looked at."""
    append(tmp_path / "1", "a\n")
    front = fronts.Files(tmp_path, format="text", poll_ms=1)
    reading = front.read(0, None)
    assert next(reading) is not None
    # The generator stands behind its first line, before it sees that there is no more.
    append(tmp_path / "1", "b\n")
    append(tmp_path / "2", "c\n")
    assert until_idle(reading) == ["b", "c"]


@given(st.data())
@settings(max_examples=examples(30), deadline=None)
def test_however_it_is_written_it_is_read_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Pieces of any size, files begun at any line, and readings cut at any moment."""
    folder = tmp_path_factory.mktemp("grows")
    lines = data.draw(st.lists(st.text("ab\r ", max_size=5), max_size=12))
    lines = [line.rstrip("\r") for line in lines]
    files = data.draw(st.lists(st.integers(0, 2), min_size=len(lines), max_size=len(lines)))
    found: list[object] = []
    position = None
    number = 0
    for line, step in zip(lines, files, strict=True):
        number += step
        text = f"{line}\n"
        cut = data.draw(st.integers(0, len(text)))
        for piece in (text[:cut], text[cut:]):
            append(folder / f"{number:03d}", piece)
            if data.draw(st.booleans()):
                reading = fronts.Files(folder, format="text", poll_ms=0.01).read(0, position)
                while (element := next(reading)) is not None:
                    found.append(element.payload)
                    position = element.position
                reading.close()  # type: ignore[attr-defined]
    rest = fronts.Files(folder, format="text", until_end=True).read(0, position)
    found += [element.payload for element in rest if element is not None]
    assert found == lines


def test_only_what_the_pattern_says(tmp_path: Path) -> None:
    for name in ("a.log", "b.txt", ".c.log"):
        append(tmp_path / name, f"{name}\n")
    front = fronts.Files(tmp_path, format="text", pattern="*.log", until_end=True)
    assert [element.payload for element in front.read(0, None) if element] == ["a.log"]


def test_blank_lines_are_no_json(tmp_path: Path) -> None:
    append(tmp_path / "1", '1\n\n  \r\n{"a": 2}\r\n')
    front = fronts.Files(tmp_path, until_end=True)
    found = [element for element in front.read(0, None) if element]
    assert found == [Element(("1", 2), 1), Element(("1", 17), {"a": 2})]


def test_lines_longer_than_a_chunk(tmp_path: Path) -> None:
    long = "x" * 700_000
    append(tmp_path / "1", json.dumps(long) + "\n1\n")
    front = fronts.Files(tmp_path, until_end=True)
    assert [element.payload for element in front.read(0, None) if element] == [long, 1]


@pytest.mark.parametrize(
    ("disturb", "complaint"),
    [
        (lambda folder: append(folder / "1", "late\n"), "1 grew after 2 was begun"),
        (lambda folder: append(folder / "0", "late\n"), "0 appeared after 2 was begun"),
        (lambda folder: (folder / "2").write_text("b"), "has 1 bytes, and was read up to byte 2"),
        (lambda folder: (folder / "2").unlink(), "2 was removed or replaced"),
        (lambda folder: (folder / "2").rename(folder / ".2"), "2 was removed or replaced"),
    ],
    ids=["grown", "earlier", "shrunk", "removed", "renamed"],
)
def test_what_breaks_the_order_is_an_error(
    disturb: Callable[[Path], object], complaint: str, tmp_path: Path
) -> None:
    append(tmp_path / "1", "a\n")
    append(tmp_path / "2", "b\n")
    reading = fronts.Files(tmp_path, format="text", poll_ms=1).read(0, None)
    assert until_idle(reading) == ["a", "b"]
    disturb(tmp_path)
    with pytest.raises(InputError, match=complaint):
        until_idle(reading)


@pytest.mark.parametrize(
    ("text", "options", "complaint"),
    [
        ('{"a": 1}\n{oops}\n', {}, r"a\.jsonl, line 2, is not JSON \(.*\): '{oops}'"),
        ('\n\n{"a": \n', {}, r"a\.jsonl, line 3, is not JSON"),
        ('{"b": 1}\n', {"time": "a"}, r"line 1, has no field 'a', which time= names: {'b': 1}"),
        ("[1]\n", {"time": "a"}, r"line 1, has no field 'a'"),
        ('{"a": 1.5}\n', {"time": "a"}, r"line 1,: the time \(field 'a'\) is 1\.5"),
        ("0\n", {"time": lambda n: 1 // n}, r"given by .*test_fronts_files.*: ZeroDivisionError"),
    ],
    ids=["json", "lines are counted", "field", "list", "float", "function"],
)
def test_malformed_input_says_where_and_is_read_past(
    text: str, options: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    append(tmp_path / "a.jsonl", f'{text}{{"a": 9}}\n')
    options.setdefault("time", None)
    if callable(options["time"]):
        append(tmp_path / "a.jsonl", "9\n")
    front = fronts.Files(tmp_path, until_end=True, **options)  # type: ignore[arg-type]
    found = [element for element in front.read(0, None) if element]
    refused = next(element for element in found if isinstance(element.payload, Malformed))
    assert re.search(complaint, refused.payload.problem)
    assert refused.payload.raw == text.rstrip("\n").rpartition("\n")[2]
    assert refused.payload.before_next == (options["time"] is not None)
    assert refused.time is None
    assert not isinstance(found[-1].payload, Malformed)
    # And the rest of it from there on.
    rest = [element for element in front.read(0, refused.position) if element]
    assert rest == found[found.index(refused) + 1 :]


def test_each_of_many_malformed_lines_is_numbered(tmp_path: Path) -> None:
    """In two files, and with a reading that begins in the middle."""
    for name in ("a", "b"):
        append(tmp_path / name, "".join(f"{n}\n" if n % 3 else "oops\n\n" for n in range(12)))
    front = fronts.Files(tmp_path, until_end=True)
    found = [element for element in front.read(0, None) if element]
    numbers = [
        re.findall(r"(\w), line (\d+), is not JSON", element.payload.problem)[0]
        for element in found
        if isinstance(element.payload, Malformed)
    ]
    assert numbers == [(name, number) for name in "ab" for number in ("1", "5", "9", "13")]
    rest = [element for element in front.read(0, found[6].position) if element]
    assert rest == found[7:]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"fine\n\xff\xfe\ngood\n")
    front = fronts.Files(tmp_path, format="text", until_end=True)
    fine, bad, good = (element.payload for element in front.read(0, None) if element)
    assert (fine, bad.raw, good) == ("fine", "\\xff\\xfe", "good")
    assert "line 2, is not UTF-8" in bad.problem


def test_a_last_line_without_a_newline_is_an_error(tmp_path: Path) -> None:
    append(tmp_path / "a.jsonl", '{"a": 1}\n{"a": 2')
    complaint = r"line 2, has no newline at its end, and it is read until"
    with pytest.raises(InputError, match=complaint):
        list(fronts.Files(tmp_path, until_end=True).read(0, None))


def test_a_file_that_is_done_ends_in_a_newline(tmp_path: Path) -> None:
    append(tmp_path / "1", "a\nb")
    append(tmp_path / "2", "c\n")
    with pytest.raises(InputError, match=r"1, line 2, has no newline at its end, and 2 was begun"):
        list(fronts.Files(tmp_path, format="text").read(0, None))


def test_a_position_in_a_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot go on from byte 5 of .*gone: there is no such"):
        next(fronts.Files(tmp_path).read(0, ("gone", 5)))


def test_a_position_may_have_been_a_list_meanwhile(tmp_path: Path) -> None:
    """A log that keeps positions as JSON gives lists back."""
    append(tmp_path / "1", "1\n2\n")
    front = fronts.Files(tmp_path, until_end=True)
    assert [element.payload for element in front.read(0, ["1", 2]) if element] == [2]


def test_early_checks(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        fronts.Files(tmp_path / "missing").check()
    with pytest.raises(InputError, match="takes 'jsonl' or 'text', got 'csv'"):
        fronts.Files(tmp_path, format="csv")
    with pytest.raises(InputError, match="a line of text has no fields"):
        fronts.Files(tmp_path, format="text", time="at")
    with pytest.raises(InputError, match="poll_ms"):
        fronts.Files(tmp_path, poll_ms=0)


def test_what_a_sink_wrote_is_read_as_it_was(tmp_path: Path) -> None:
    """Names of bundles sort, and temporary ones are hidden: one query's output feeds the next."""
    writer = sinks.Files(tmp_path).open(0)
    for number in (-5, -1, 3, 12):
        bundle = sinks.StoredBundle("s", 0, GlobalTime(number, 0), [number, number + 0.5])
        writer.store(bundle)
    writer.close()
    front = fronts.Files(tmp_path / "partition-0000", until_end=True)
    found = [element.payload for element in front.read(0, None) if element]
    assert found == [-5, -4.5, -1, -0.5, 3, 3.5, 12, 12.5]
