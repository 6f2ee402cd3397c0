"""Live on Spark: long-running workers, the tasks of one barrier job, milliseconds to the sink.

`builder`      ``flow.live(spark).read(...).write(...).start()``
`cluster`      what Spark can run, asked first
`launch`       the barrier job
`coordinator`  the thread of the driver through which workers find each other; the acker
`worker`       the worker's loop, with `feeding` (fronts) and `storing` (sinks)
`wire`         authenticated sockets
`query`        the handle, with `progress` (what it tells) and `listening` (whom)
"""

from emberflow.runners.live.builder import LiveBuilder
from emberflow.runners.live.query import LiveQuery

__all__ = ["LiveBuilder", "LiveQuery"]
