"""What went into a live query, from the logs of its fronts: ``--front NAME=log:CHECKPOINT``.

A front that takes times of arrival has them in its log, with positions; what was there is still in
its source, which is named behind ``?source=``. A front whose source cannot be read again has the
payloads in the log too. A front with times of its own has no log and needs none: name its source.

Logs are removed with the cuts that need them, unless the query was told to keep them
(``keepFrontLogs``). What is left of one that was trimmed is not all that went in, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

from emberflow.checkpoint.logs.front_log import read_log
from emberflow.errors import InputError
from emberflow.fronts import Files, Front
from emberflow.graph.nodes import Graph
from emberflow.guarantees import LoggedElements
from emberflow.values.item import GlobalTime, front_index


def logged_elements(
    graph: Graph, front: str, place: str, source_of: Callable[[str], Front]
) -> LoggedElements:
    """All elements of a front. ``source_of`` makes a front of ``KIND:PLACE``."""
    location, _, source = place.partition("?source=")
    found = False
    for partition in count():
        if not (Path(location) / "fronts" / f"{quote(front, safe='')}-{partition}").exists():
            break
        found = True
        index = front_index(graph.fronts[front].index, len(graph.fronts), partition)
        entries = read_log(location, front, partition)
        payloads = _payloads(front, entries, source_of(source) if source else None, partition)
        for time, payload in payloads:
            yield GlobalTime(time, index), front, payload
    if not found:
        raise InputError(
            f"front {front!r}: there is no log of it in {location}. A front with times of its own "
            f"has none: give its source instead."
        )


def _payloads(
    front: str, entries: Iterator[tuple[Any, ...]], source: Front | None, partition: int
) -> Iterator[tuple[int, Any]]:
    reading: Iterator[Any] | None = None
    for entry in entries:
        if len(entry) == 3:
            yield entry[1], entry[2]
            continue
        if source is None:
            raise InputError(
                f"front {front!r}: its log has times and positions. Name the source that has what "
                f"was there: {front}=log:CHECKPOINT?source=files:FOLDER."
            )
        if reading is None:
            if isinstance(source, Files):
                source.until_end = True
            reading = (element for element in source.read(partition, None) if element is not None)
        element = next(reading, None)
        if element is None or element.position != entry[0]:
            raise InputError(
                f"front {front!r}: the log goes on at position {entry[0]!r} and its source at "
                f"{getattr(element, 'position', 'its end')!r}. Was the log trimmed (see "
                f"keepFrontLogs), or is this another source?"
            )
        yield entry[1], element.payload
