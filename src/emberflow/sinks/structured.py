"""`sinks.Structured`: what a Structured Streaming query reads with ``.format("emberflow")``.

Bundles are files like those of `sinks.Files`, with the same guarantees: a file is whole or not there,
it is named after its last global time, and there is one writer. The files are Arrow. Their columns are
those of a batch run of the flow: the columns of the payload, then ``_time``, ``_front`` and ``_path``,
which say where a row is in the order, and ``_partition`` if the sink has more than one. A seal follows
the Arrow stream (`checkpoint.seals`), and every read checks it: a reader gets the rows that were stored,
or an error. The files are below the live query's ``checkpointLocation``, so they outlive the query. To the engine they are stored
output: what the streaming query has not read yet is neither lost nor computed again.

An *offset* is the last global time of each partition. When the streaming query has committed up to an
offset, that is *acknowledged*: the driver notes it in the file ``acknowledged``, replaced in one step,
and then removes the files. The newest file of each partition stays, because its name tells what the
sink has. A streaming query that is new to the sink, with a checkpoint of its own, begins behind what is
acknowledged. A sink has one reader. A reader that asks for what another one has acknowledged gets an
error.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberflow.checkpoint.files import location_of, make_private_folder, write
from emberflow.checkpoint.seals import sealed, unsealed
from emberflow.errors import InputError, PayloadError
from emberflow.sinks.files import FilesWriter, bundle_names, partition_folder
from emberflow.sinks.folders.names import name_of, time_of
from emberflow.sinks.protocol import StoredBundle, refusal
from emberflow.values.item import GlobalTime

if TYPE_CHECKING:
    from emberflow.graph.nodes import Sink
    from emberflow.rows.outputs import ColumnWriter, SinkColumns

_ACKNOWLEDGED = "acknowledged"
_FORMAT = "arrow"
#: In the metadata of a file: its columns as Spark names them.
SCHEMA = b"emberflow"

#: The last global time of each partition, by its number as text: it is JSON.
Offset = Mapping[str, list[int]]


class Structured:
    """Rows for ``spark.readStream.format("emberflow")``.

    ``schema`` is as in `Flow.batch`: a StructType, a string such as ``"word string, n long"``, the type
    of a single column, a dataclass or a named tuple. Without it, each partition takes the schema of its
    first bundle.
    """

    #: Bundles have the place of each payload.
    places = True

    def __init__(self, schema: Any = None) -> None:
        self._schema = schema
        self._folder: Path | None = None
        self._node: Sink | None = None
        self._columns: SinkColumns | None = None

    def placed(self, node: Sink | None, checkpoint: str | None) -> Structured:
        """This sink as one of a live query, which keeps its bundles with its cuts."""
        from emberflow.fronts.structured import kept_in
        from emberflow.rows.outputs import given_columns

        if node is None:
            raise InputError("the errors sink cannot be sinks.Structured; take sinks.Files.")
        placed = copy.copy(self)
        placed._node = node
        placed._folder = kept_in(checkpoint, "sinks", node.name)
        if self._schema is not None:
            # Not on a worker: Spark parses the text of a schema in the driver only.
            placed._columns = given_columns(node, self._schema)
        return placed

    def service(self) -> OutboxService:
        """The service that the bridge offers."""
        assert self._node is not None
        schema = None if self._columns is None else self._columns.schema().json()
        return OutboxService(self._own_folder(), self._node, schema)

    def refuses(self, payload: Any) -> str | None:
        """Why the columns of the sink cannot hold the payload; None if they can.

        Without a schema the first bundle decides the columns, and no payload is refused ahead of it.
        """
        if self._columns is None:
            return None
        assert self._node is not None
        encoding = _Encoding(self._node, self._columns)
        bundle = StoredBundle(self._node.name, 0, GlobalTime(0, 0), [payload], [(0, 0)])
        return refusal(encoding.encode, bundle)

    def open(self, partition: int) -> FilesWriter:
        folder = self._own_folder()
        make_private_folder(folder)
        assert self._node is not None
        encoding = _Encoding(self._node, self._columns)
        own = partition_folder(folder, partition)
        return FilesWriter(own, _FORMAT, encoding.encode, private=True)

    def _own_folder(self) -> Path:
        if self._folder is None:
            raise InputError(
                "sinks.Structured belongs to a live query: flow.live(spark).write(...)."
            )
        return self._folder


class _Encoding:
    """Bundles of a partition as the content of files: Arrow streams with a seal."""

    def __init__(self, node: Sink, columns: SinkColumns | None) -> None:
        self._node = node
        self._columns = columns
        self._writer: ColumnWriter | None = None

    def encode(self, bundle: StoredBundle) -> bytes:
        import pyarrow as pa

        from emberflow.rows.outputs import ColumnWriter, sampled_columns
        from emberflow.rows.paths import encoded_path

        assert bundle.places is not None
        try:
            if self._writer is None:
                if self._columns is None:
                    self._columns = sampled_columns(self._node, bundle.payloads)
                self._writer = ColumnWriter(self._columns)
            times = [place[0] for place in bundle.places]
            paths = [encoded_path(place[1:]) for place in bundle.places]
            batch = self._writer.batch(times, paths, bundle.payloads)
        except InputError as error:
            raise PayloadError(str(error)) from error
        except Exception as error:
            raise PayloadError(f"{error} {_ADVICE}") from error
        assert self._columns is not None
        schema = batch.schema.with_metadata({SCHEMA: self._columns.schema().json().encode()})
        file = pa.BufferOutputStream()
        with pa.ipc.new_stream(file, schema) as stream:
            stream.write_batch(batch.replace_schema_metadata(schema.metadata))
        return sealed(bytes(file.getvalue()), f"{name_of(bundle.last)}.{_FORMAT}")


_ADVICE = "Give sinks.Structured a schema that fits all payloads, or map them before the sink."


class OutboxService:
    """The service of a structured sink, which the bridge offers: the driver's end of its folder."""

    def __init__(self, folder: Path, node: Sink, schema: str | None) -> None:
        self._folder = folder
        self._node = node
        self._schema = schema
        self._lock = threading.Lock()

    def serve(self, method: str, arguments: dict[str, Any]) -> Any:
        return _OFFERED[method](self, **arguments)

    def close(self) -> None:
        pass

    def schema(self) -> str:
        """The columns of the sink, as Spark's JSON."""
        if self._schema is None:
            self._schema = self._found_schema()
        return self._schema

    def initial(self) -> Offset:
        """The offset of a reader that has none of its own."""
        return self._acknowledged()

    def latest(self, start: Offset, bytes_max: int | None) -> Offset:
        """The offset up to which a reader may read: the end, or so many bytes of each partition."""
        self._check_not_dropped(start)
        end = dict(start)
        for partition in range(self._node.partitions):
            size = 0
            for at, path in self._bundles(partition, _at(start, partition), None):
                size += path.stat().st_size
                end[str(partition)] = list(at)
                if bytes_max is not None and size >= bytes_max:
                    break
        return dict(sorted(end.items(), key=lambda item: int(item[0])))  # Spark compares the text

    def read(
        self, partition: int, after: list[int] | None, until: list[int], bytes_max: int
    ) -> tuple[list[bytes], list[int] | None]:
        """Bundles behind a time, in order, and where to read on; None if these are all."""
        begin = None if after is None else GlobalTime(*after)
        acknowledged = _at(self._acknowledged(), partition)
        if acknowledged is not None and (begin is None or begin < acknowledged):
            raise self._dropped(partition, begin, acknowledged)
        found: list[bytes] = []
        size = 0
        for at, path in self._bundles(partition, begin, GlobalTime(*until)):
            if found and size + path.stat().st_size > bytes_max:
                return found, list(begin or at)
            found.append(_read(path))
            size += len(found[-1])
            begin = at
        return found, None

    def acknowledge(self, end: Offset) -> None:
        """A reader has stored all up to here: note it, then remove the files."""
        with self._lock:
            known = dict(self._acknowledged())
            for own, at in end.items():
                if own not in known or tuple(at) > tuple(known[own]):
                    known[own] = at
            self._note(known)
            for partition in range(self._node.partitions):
                until = _at(known, partition)
                if until is not None:
                    for _, path in self._bundles(partition, None, until, but_newest=True):
                        path.unlink(missing_ok=True)

    def _bundles(
        self,
        partition: int,
        after: GlobalTime | None,
        until: GlobalTime | None,
        *,
        but_newest: bool = False,
    ) -> list[tuple[GlobalTime, Path]]:
        folder = partition_folder(self._folder, partition)
        try:
            names = sorted(bundle_names(folder))
        except FileNotFoundError:
            return []
        timed = [(time_of(name), folder / name) for name in (names[:-1] if but_newest else names)]
        return [
            (at, path)
            for at, path in timed
            if (after is None or at > after) and (until is None or at <= until)
        ]

    def _found_schema(self) -> str:
        import pyarrow as pa

        for partition in range(self._node.partitions):
            for _, path in self._bundles(partition, None, None)[-1:]:
                with pa.ipc.open_stream(_read(path)) as stream:
                    return str(stream.schema.metadata[SCHEMA], "utf-8")
        raise InputError(
            f"sink {self._node.name!r} has stored nothing yet, so its columns are not known. Give "
            f"sinks.Structured a schema, or the reader one: "
            f"spark.readStream.format('emberflow').schema(...)."
        )

    def _acknowledged(self) -> Offset:
        try:
            known: Offset = json.loads(_read(self._folder / _ACKNOWLEDGED))
        except FileNotFoundError:
            return {}
        return known

    def _note(self, acknowledged: Offset) -> None:
        make_private_folder(self._folder)
        data = sealed(json.dumps(acknowledged).encode(), _ACKNOWLEDGED)
        write(location_of(self._folder), _ACKNOWLEDGED, data)

    def _check_not_dropped(self, start: Offset) -> None:
        acknowledged = self._acknowledged()
        for partition in range(self._node.partitions):
            known, asked = _at(acknowledged, partition), _at(start, partition)
            if known is not None and (asked is None or asked < known):
                raise self._dropped(partition, asked, known)

    def _dropped(self, partition: int, asked: GlobalTime | None, known: GlobalTime) -> InputError:
        return InputError(
            f"sink {self._node.name!r} partition {partition} was asked for what follows "
            f"{None if asked is None else tuple(asked)}, and is acknowledged up to {tuple(known)} by "
            f"another streaming query. A sink has one reader, which reads on from its own "
            f"checkpointLocation; give the other one a sink of its own."
        )


def _read(path: Path) -> bytes:
    return unsealed(path.read_bytes(), path.name, str(path))


def _at(offset: Offset, partition: int) -> GlobalTime | None:
    at = offset.get(str(partition))
    return None if at is None else GlobalTime(*at)


_OFFERED: dict[str, Callable[..., Any]] = {
    "schema": OutboxService.schema,
    "initial": OutboxService.initial,
    "latest": OutboxService.latest,
    "read": OutboxService.read,
    "acknowledge": OutboxService.acknowledge,
}
