"""Fronts: where a live query gets its elements. The protocol, and one file an adapter.

=============  ================================================  ==========================
front          elements                                          position
=============  ================================================  ==========================
`Iterable`     of a Python iterable, with a rate                 number of the element
`Files`        lines of the files of a folder that grows         file name and byte offset
`Socket`       lines that a server sends over TCP                none that can be replayed
`Structured`   rows that Structured Streaming writes             batch and row
`Kafka`        records of a topic, each partition by itself      offset
=============  ================================================  ==========================

A front is a description that travels to a worker and is read there, by a thread of its own. To make
one, write a class with ``partitions`` and ``read``; it is all there is to it::

    class Numbers:
        partitions = 1

        def read(self, partition, position):
            for number in itertools.count(0 if position is None else position + 1):
                yield Element(position=number, payload=number)

``read`` gives elements from behind a position on, and again the same ones when it is asked again
with the same position. It yields ``None`` when there is nothing just now, so that the thread can
see that it is to stop; it may block for a moment before it does, not for ever. It returns when there
will never be anything more.

An element's time is given (``time=``, strictly increasing within a partition) or, left out, the
time of its arrival in milliseconds.

What cannot be read as an element is one all the same, with a `Malformed` for its payload: what was
read, and an error message that says where. Then the query decides (``onError``) whether to end or to
put it aside and go on. Raise only where reading cannot go on.

Some members are optional. ``check()`` raises `InputError` before anything starts if the source
cannot be reached. ``replayable = False`` says that what was read cannot be read again.
``arrival = True`` says that its elements take the time of their arrival, so that it need not have
given one before it can promise the present while it is idle. ``read_batches`` is as ``read`` and may
also give a `Batch` where several elements come together; it is preferred where it is there, because
an object for each element is most of what reading costs.

``promises = True`` says that the front may give an `Idle`: that nothing below a time will come,
although nothing at it has. Then a partition that is silent holds back no other, at the price that
times are noted. A reader that sees its source grow raises `FrontGrewError`; then ``look_again()`` is
called before the next life of the query begins, to say how many partitions there are now.

A front that keeps its elements itself, with the cuts of the query, has ``placed(node, checkpoint)``,
which gives it as one of that query. ``passed(partition, position)`` tells it what the newest cut has,
``trim(partition, position)`` what no cut needs any more. ``service()`` is what it offers to other
processes (see `runners.live.serving.bridge`).
"""

from __future__ import annotations

from emberflow.fronts.files import Files
from emberflow.fronts.iterable import Iterable
from emberflow.fronts.kafka import Kafka
from emberflow.fronts.protocol import Batch, Element, Front, FrontGrewError, Idle, Malformed
from emberflow.fronts.socket import Socket
from emberflow.fronts.structured import Structured

__all__ = [
    "Batch",
    "Element",
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
