"""``emberflow audit``: what sinks really hold, judged by what went in.

Two kinds of readers meet here. Each is a function, and a new one is a line in a table:

- *What went in* is `LoggedElements`: the global time, the front's name and the payload of each
  element. A folder of files gives them again, with times from a field or, for a single front, from
  the numbers of its lines. What a front with arrival times saw cannot be told from its files; that is
  what logs are for, and `LOGS` is where readers of logs belong.
- *What came out* is the payloads of each partition, as a reader of that sink sees them, and the form
  in which the sink keeps a payload: the reference's payloads are brought into it before they are
  compared. Where a store loses something (jsonb the order of fields, Parquet the difference between
  a field that is None and one that is missing), the form loses it on both sides.
"""

from __future__ import annotations

import decimal
import glob
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from emberflow import fronts as front_kinds
from emberflow import guarantees
from emberflow import sinks as sink_kinds
from emberflow.commands.adapters import given_fronts, given_sinks
from emberflow.commands.logs import logged_elements
from emberflow.dsl.loading import load_flow
from emberflow.errors import LATE_SINK, InputError
from emberflow.fronts.protocol import front_contract
from emberflow.graph.nodes import Graph, Sink, with_late_sink
from emberflow.guarantees import LoggedElements, Verdict
from emberflow.rows.plain import to_json
from emberflow.runners.elements import stamped_records
from emberflow.sinks.formats import decoded, encoded
from emberflow.values.item import GlobalTime

#: Readers of other logs by kind, as in ``--front NAME=KIND:PLACE``: functions of the front's name and
#: of the place. Those of live queries are ``log``: see `logs`.
LOGS: dict[str, Callable[[str, str], LoggedElements]] = {}

_PARTITION = re.compile(r"partition-(\d{4,})")


class Held(NamedTuple):
    """What a sink holds, by partition, and how it keeps a payload."""

    payloads: Mapping[int, Sequence[Any]]
    form: Callable[[Any], Any]


def audit(
    target: str,
    *,
    fronts: Sequence[str],
    sinks: Sequence[str],
    failures: int | None = None,
    finished: bool = True,
    effort: int = guarantees.EFFORT,
) -> Verdict:
    """The verdict on adapters that are given as text."""
    flow = load_flow(target)
    graph = flow.graph()
    more = {"log": _log_of_checkpoint(graph), **{kind: _log_of(kind) for kind in LOGS}}
    sources = given_fronts(graph, fronts, more=more)
    written = given_sinks(graph, sinks)
    if LATE_SINK in written and LATE_SINK not in graph.sinks:
        graph = with_late_sink(graph)
    held = {
        name: held_by(graph.sinks[name], sink)
        for name, sink in written.items()
        if not isinstance(sink, sink_kinds.Callback)
    }
    return guarantees.judge(
        flow,
        list(entered(graph, sources)),
        {name: each.payloads for name, each in held.items()},
        failures,
        finished=finished,
        forms={name: each.form for name, each in held.items()},
        effort=effort,
    )


# --- What went in ---------------------------------------------------------------------------------


class _Log(NamedTuple):
    elements: LoggedElements


def _log_of(kind: str) -> Callable[[str, str], _Log]:
    return lambda front, place: _Log(LOGS[kind](front, place))


def _log_of_checkpoint(graph: Graph) -> Callable[[str, str], _Log]:
    def log(front: str, place: str) -> _Log:
        def source_of(spec: str) -> front_kinds.Front:
            found: front_kinds.Front = given_fronts(graph, [f"{front}={spec}"], only=(front,))[
                front
            ]
            return found

        return _Log(logged_elements(graph, front, place, source_of))

    return log


def entered(graph: Graph, sources: Mapping[str, Any]) -> Iterator[tuple[GlobalTime, str, Any]]:
    """The elements of all fronts, in any order."""
    for name, source in sources.items():
        if isinstance(source, _Log):
            yield from source.elements
        elif isinstance(source, front_kinds.Files):
            yield from _of_files(graph, name, source)
        else:
            raise InputError(
                f"front {name!r}: what came through {type(source).__name__.lower()}: cannot be read "
                "again. Give a copy of it as files:PATH or text:PATH."
            )


def _of_files(graph: Graph, name: str, files: front_kinds.Files) -> LoggedElements:
    if files.folder.is_file():
        files.pattern, files.folder = glob.escape(files.folder.name), files.folder.parent
    files.until_end = True
    index = graph.fronts[name].index
    if not files.arrival:
        rule = front_contract(files, f"front {name!r}").counted(graph.unit).event_time
        records = ((*element, None) for element in files.read(0, None) if element is not None)
        for at, _, payload in stamped_records(graph.fronts[name], rule, 0, index, records):
            yield at, name, payload
        return
    if len(graph.fronts) > 1:
        raise InputError(
            f"front {name!r}: the elements of a flow with {len(graph.fronts)} fronts are "
            "ordered by their times, and these have none. Name the field that holds it: "
            f"{name}=files:PATH?time=FIELD."
        )
    elements = (element for element in files.read(0, None) if element is not None)
    for number, element in enumerate(elements):
        yield GlobalTime(number, index), name, element.payload


# --- What came out --------------------------------------------------------------------------------


def held_by(sink: Sink, store: Any) -> Held:
    """What a sink holds."""
    if isinstance(store, sink_kinds.Files):
        return _held_in_files(sink, store)
    if isinstance(store, sink_kinds.Postgres):
        return _held_in_postgres(sink, store)
    raise InputError(f"sink {sink.name!r}: what {type(store).__name__} holds cannot be read.")


def _held_in_files(sink: Sink, store: sink_kinds.Files) -> Held:
    if store.on_hdfs is not None:
        raise InputError(
            f"sink {sink.name!r}: audit reads folders of this machine, and {store.on_hdfs} is not one. "
            f"Copy it first: hdfs dfs -get {store.on_hdfs} held"
        )
    if not store.folder.is_dir():
        raise InputError(f"sink {sink.name!r}: {store.folder} is not a folder.")
    _check_partitions(sink, _partitions_in(store.folder), str(store.folder))
    by_partition = {number: store.payloads(number) for number in range(sink.partitions)}
    if store.format == "jsonl":
        return Held(by_partition, _as_json)
    rows = {
        number: [_unordered(row, is_column=True) for row in held]
        for number, held in by_partition.items()
    }
    return Held(rows, _as_parquet)


def _partitions_in(folder: Path) -> set[int]:
    found = (_PARTITION.fullmatch(entry.name) for entry in folder.iterdir() if entry.is_dir())
    return {int(match[1]) for match in found if match is not None}


def _held_in_postgres(sink: Sink, store: sink_kinds.Postgres) -> Held:
    import psycopg  # there is one, or the sink could not have been made

    query = store.composed("SELECT partition, payload::text FROM {table} ORDER BY id")
    held: dict[int, list[Any]] = {number: [] for number in range(sink.partitions)}
    try:
        with store.connected() as connection:
            rows = connection.execute(query).fetchall()
    except psycopg.Error as error:
        raise InputError(
            f"sink {sink.name!r}: table {store.table!r} is not one that sinks.Postgres makes without "
            f"columns=, with id, partition and payload: {str(error).splitlines()[0]}."
        ) from None
    _check_partitions(sink, {partition for partition, _ in rows}, f"table {store.table!r}")
    for partition, payload in rows:
        held[partition].append(_unordered(json.loads(payload)))
    return Held(held, lambda payload: _unordered(_as_json(payload)))


def _check_partitions(sink: Sink, found: set[int], where: str) -> None:
    strange = sorted(found - set(range(sink.partitions)))
    if strange:
        raise InputError(
            f"sink {sink.name!r} has the partitions 0 to {sink.partitions - 1} in this flow, and "
            f"{where} holds partition {strange[0]}. Was it written by another version of the flow?"
        )


def _as_json(payload: Any) -> Any:
    return json.loads(to_json(payload))


def _as_parquet(payload: Any) -> Any:
    return _unordered(decoded("parquet", encoded("parquet", [payload]))[0], is_column=True)


def _unordered(value: Any, *, is_column: bool = False) -> Any:
    """A value without what jsonb loses, and columns besides: fields that are None.

    >>> list(_unordered({"b": 1.0, "a": None}).items())
    [('a', None), ('b', 1)]
    >>> _unordered({"b": 1.0, "a": None}, is_column=True)
    {'b': 1}
    """
    if isinstance(value, dict):
        kept = sorted(key for key in value if not is_column or value[key] is not None)
        return {key: _unordered(value[key], is_column=is_column) for key in kept}
    if isinstance(value, list):
        return [_unordered(entry, is_column=is_column) for entry in value]
    if isinstance(value, float) and value.is_integer():
        # jsonb has 1e30 as 1 and 30 zeros, which is not int(1e30); a column of floats has 1 as 1.0.
        return int(decimal.Decimal(repr(value)))
    return value
