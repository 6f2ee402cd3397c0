"""Fronts: where a live query gets its elements. The contract, and one file for each adapter.

=============  ================================================  ==========================
front          elements                                          position
=============  ================================================  ==========================
`Iterable`     of a Python iterable, with a rate                 number of the element
`Files`        lines of the files of a folder that grows         file name and byte offset
`Socket`       lines that a server sends over TCP                none that can be replayed
`Structured`   rows that Structured Streaming writes             batch and row
`Kafka`        records of a topic, each partition by itself      offset
`Delta`        what the commits of a Delta table change          version and change
=============  ================================================  ==========================

A front is a description. The driver sends it to the workers, and a thread of a worker reads it. To
write one, write a class with ``partitions`` and ``read``::

    class Numbers:
        partitions = 1

        def read(self, partition, position):
            for number in itertools.count(0 if position is None else position + 1):
                yield Element(position=number, payload=number)

``read`` gives the elements behind a position. Asked again with the same position, it gives the same
elements again. It yields ``None`` when there is nothing to read now, at least once a second, so that
the thread can stop. It returns when the source has ended for good.

An element has a time (``time=``; `docs/event-time.md` says how far out of order), or it gets the time of its
arrival in milliseconds.

What cannot be decoded is an element as well, with a `Malformed` as its payload. The query decides
(``onError``) whether to end or to divert it. Raise only where reading cannot go on.

All other members of a front are optional: `protocol.FrontContract` lists them with their defaults and
meanings. ``docs/adapters.md`` has a complete example, and `emberflow.testing.check_front` tests a front.
"""

from __future__ import annotations

from emberflow.fronts.delta import Delta
from emberflow.fronts.files import Files
from emberflow.fronts.iterable import Iterable
from emberflow.fronts.kafka import Kafka
from emberflow.fronts.protocol import Batch, Element, Front, FrontGrewError, Idle, Malformed
from emberflow.fronts.socket import Socket
from emberflow.fronts.structured import Structured
from emberflow.values.event_time import EventTime

__all__ = [
    "Batch",
    "Delta",
    "Element",
    "EventTime",
    "Files",
    "Front",
    "FrontGrewError",
    "Idle",
    "Iterable",
    "Kafka",
    "Malformed",
    "Socket",
    "Structured",
]
