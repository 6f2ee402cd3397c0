"""What went into a live query, from the logs of its fronts: ``--front NAME=log:CHECKPOINT``.

A front that takes times of arrival has them in its log, with positions; what was there is still in
its source, which is named behind ``?source=``. A front whose source cannot be read again has the
payloads in the log too. A front with times of its own that promises while it is idle has its promises
there, and its rule says which elements were late: name its source. Any other front with times of its
own has no log and needs none: name its source alone.

Logs are removed with the cuts that need them, unless the query was told to keep them
(``keepFrontLogs``). What is left of one that was trimmed is not all that went in, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, count
from typing import Any, NamedTuple
from urllib.parse import quote

from emberflow.checkpoint.files import location_of
from emberflow.checkpoint.logs.front_log import read_log
from emberflow.checkpoint.logs.segments import OwnTime
from emberflow.errors import InputError
from emberflow.fronts import Front
from emberflow.fronts.protocol import front_contract, only_elements
from emberflow.graph.nodes import Graph
from emberflow.guarantees import LoggedElements
from emberflow.runners.elements import stamped_records
from emberflow.values.item import GlobalTime, front_index


def logged_elements(
    graph: Graph, front: str, place: str, source_of: Callable[[str], Front]
) -> LoggedElements:
    """All elements of a front. ``source_of`` makes a front of ``KIND:PLACE``."""
    location, _, source = place.partition("?source=")
    found = False
    folders = set(location_of(location).names("fronts"))
    for partition in count():
        if f"{quote(front, safe='')}-{partition}" not in folders:
            break
        found = True
        index = front_index(graph.fronts[front].index, len(graph.fronts), partition)
        given = source_of(source) if source else None
        records = _records(front, read_log(location, front, partition), given, partition)
        yield from _entered(graph, front, partition, index, records, given)
    if not found:
        raise InputError(
            f"front {front!r}: there is no log of it in {location}. A front with times of its own "
            f"has none: give its source instead."
        )


def _entered(
    graph: Graph,
    front: str,
    partition: int,
    index: int,
    records: Iterator[_Record],
    source: Front | None,
) -> LoggedElements:
    contract = None
    if source is not None:
        contract = front_contract(source, f"front {front!r}").counted(graph.unit)
    first = next(records, None)
    if first is None:
        return
    records = chain((first,), records)
    if not (first.has_own_time or (contract is not None and contract.promises)):
        for _, payload, _, logged, _ in records:
            yield GlobalTime(logged, index), front, payload
        return
    if contract is None:
        raise InputError(
            f"front {front!r}: its elements had times of their own, and its log has promises. Name the "
            f"source that has the rule: {front}=log:CHECKPOINT?source=KIND:PLACE."
        )
    read = ((position, payload, at, logged) for position, payload, at, logged, _ in records)
    rule = contract.event_time
    for at, _, payload in stamped_records(graph.fronts[front], rule, partition, index, read):
        yield at, front, payload


class _Record(NamedTuple):
    position: Any
    payload: Any
    time: Any
    logged: int
    has_own_time: bool


def _records(
    front: str, entries: Iterator[tuple[Any, ...]], source: Front | None, partition: int
) -> Iterator[_Record]:
    reading: Iterator[Any] | None = None
    for entry in entries:
        if len(entry) == 3:
            position, logged, payload = entry
            if isinstance(payload, OwnTime):
                yield _Record(position, payload.payload, payload.time, logged, True)
            else:
                yield _Record(position, payload, None, logged, False)
            continue
        if source is None:
            raise InputError(
                f"front {front!r}: its log has times and positions. Name the source that has what "
                f"was there: {front}=log:CHECKPOINT?source=files:FOLDER."
            )
        if reading is None:
            ending = front_contract(front_contract(source).ending())
            reading = only_elements(ending.read(partition, None))
        element = next(reading, None)
        if element is None or element.position != entry[0]:
            raise InputError(
                f"front {front!r}: the log goes on at position {entry[0]!r} and its source at "
                f"{getattr(element, 'position', 'its end')!r}. Was the log trimmed (see "
                f"keepFrontLogs), or is this another source?"
            )
        yield _Record(entry[0], element.payload, element.time, entry[1], False)
