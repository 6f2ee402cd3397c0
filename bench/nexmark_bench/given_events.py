"""The events that all systems get: in memory, and as JSON Lines.

Files have the events as NEXMark's own sources do: a row has a kind, a time, and one of three structs. They are
in the order of time. ``dealt`` has two files, with every second event each, so that two readers at a time stay
together. ``batches`` has a file for each micro-batch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from nexmark.generator import Event, generated

READERS = 2


@cache
def events(count: int, rate: float = 10_000) -> list[Event]:
    """Events of ``rate`` a second of event time."""
    return list(generated(count, rate=rate))


def line(event: Event) -> str:
    kind = type(event).__name__.lower()
    fields = event._asdict()
    return json.dumps({"kind": kind, "date_time": event.date_time, kind: fields})


def write_dealt(folder: Path, given: list[Event]) -> None:
    folder.mkdir()
    for reader in range(READERS):
        _write(folder / f"{reader}.jsonl", given[reader::READERS])


def write_batches(folder: Path, given: list[Event], size: int) -> int:
    """How many files."""
    folder.mkdir()
    begins = range(0, len(given), size)
    for number, begin in enumerate(begins):
        path = folder / f"{number:04}.jsonl"
        _write(path, given[begin : begin + size])
        os.utime(path, (number, number))  # Spark takes the oldest file first
    return len(begins)


def _write(path: Path, given: Iterable[Event]) -> None:
    with path.open("w") as lines:
        lines.writelines(f"{line(event)}\n" for event in given)
