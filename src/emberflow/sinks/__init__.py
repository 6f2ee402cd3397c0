"""Sinks: where a query stores its output. The contract, and one file for each adapter.

=============  ================================================  ===================================
sink           output                                            last global time
=============  ================================================  ===================================
`Memory`       in the driver's memory                            in memory, too
`Callback`     a function in the driver                          in memory, while it runs
`Files`        a file of JSON Lines or Parquet for each bundle   in the name of the last file
`Postgres`     rows of a table                                   in the same transaction
`Kafka`        records of a topic                                in a header of the last record
`Delta`        rows of a Delta table                             in a transaction of the same commit
`Iceberg`      rows of an Iceberg table                          in a property of the same commit
`Structured`   rows that Structured Streaming reads              in the name of the last file
=============  ================================================  ===================================

A sink is a description. The driver sends it to the workers that hold its partitions, and they open it.
To write one, write a class with ``open(partition)`` that gives a writer with three methods::

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

``store`` stores a bundle, its payloads and its last global time together, all or nothing, and returns
when they are safe. ``last`` tells the last global time that is stored, ``None`` if there is none.

When a writer raises, the query closes it, pauses, opens another one and asks it what it has. The query
tries so for ``retry_seconds`` and then ends with the error. It does not try again after two errors:

- `PayloadError` would come again. The query ends with it.
- `SinkMovedError` says that another writer has the partition. A driver whose checkpoint another driver
  has claimed ends. Otherwise it begins a new life, which asks the sink what it has now, and ends if
  that life loses the sink as well. A writer should raise it once another writer has opened its
  partition: a worker may be cut off and not know that it has a successor.

All other members of a sink are optional: `protocol.SinkContract` lists them with their defaults and
meanings. ``docs/adapters.md`` has a complete example, and `emberflow.testing.check_sink` tests a sink.
"""

from __future__ import annotations

from emberflow.errors import PayloadError
from emberflow.sinks.callback import Callback
from emberflow.sinks.files import Files, read_files
from emberflow.sinks.kafka import Kafka
from emberflow.sinks.memory import Memory
from emberflow.sinks.postgres import Postgres
from emberflow.sinks.protocol import Sink, SinkMovedError, StoredBundle, Writer
from emberflow.sinks.structured import Structured
from emberflow.sinks.tables.delta import Delta
from emberflow.sinks.tables.iceberg import Iceberg

__all__ = [
    "Callback",
    "Delta",
    "Files",
    "Iceberg",
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
