"""Sinks: where a live query puts its output. The protocol, and one file an adapter.

=============  ================================================  =============================
sink           output                                            last global time
=============  ================================================  =============================
`Memory`       in the driver's memory                            in memory, too
`Callback`     a function in the driver                          in memory, while it runs
`Files`        a file of JSON Lines or Parquet for each bundle   in the name of the last file
`Postgres`     rows of a table                                   in the same transaction
`Kafka`        records of a topic                                in a header of the last record
`Structured`   rows that Structured Streaming reads              in the name of the last file
=============  ================================================  =============================

A sink is a description that travels to the workers that hold its partitions and is opened there. To
make one, write a class with ``open(partition)`` that gives a writer with three methods::

    class Printed:
        def open(self, partition):
            return self

        def last(self):
            return None

        def store(self, bundle):
            for payload in bundle.payloads:
                print(payload)

        def close(self):
            pass

``store`` keeps a bundle, payloads and last global time together, all or nothing, and returns when
they are safe. ``last`` tells the last global time that was kept, ``None`` if there is none. A sink
with ``on_driver = True`` is opened in the driver process, and bundles travel there. ``check()``, if
there is one, raises `InputError` before anything starts if the sink cannot be reached.

A writer that raises is closed and, after a pause, another one is opened and asked what it has; so it
goes on for ``retry_seconds`` (an attribute of the sink, 30 unless it says otherwise), and then the
query ends with the error. `PayloadError` and `SinkMovedError` end it at once: the first would come
again, and after the second the query begins a new life and asks the sink what it has now. A writer
that can, should refuse with the latter to store anything once another one was opened for its
partition: a worker may be cut off, and not know that it has a successor.
"""

from __future__ import annotations

from emberflow.rows.plain import PayloadError
from emberflow.sinks.callback import Callback
from emberflow.sinks.files import Files, read_files
from emberflow.sinks.kafka import Kafka
from emberflow.sinks.memory import Memory
from emberflow.sinks.postgres import Postgres
from emberflow.sinks.protocol import Sink, SinkMovedError, StoredBundle, Writer
from emberflow.sinks.structured import Structured

__all__ = [
    "Callback",
    "Files",
    "Kafka",
    "Memory",
    "PayloadError",
    "Postgres",
    "Sink",
    "SinkMovedError",
    "StoredBundle",
    "Structured",
    "Writer",
    "read_files",
]
