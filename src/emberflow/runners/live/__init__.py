"""Live on Spark: long-running workers, the tasks of one barrier job, milliseconds to the sink.

`builder`      ``flow.live(spark).read(...).write(...).start()``
`cluster`      what Spark can run, asked first
`launch`       the barrier job
`coordinator`  the thread of the driver through which workers find each other; the acker
`worker`       the worker's loop, with `feeding` (fronts), `malformed`, `diverting` and `storing` (sinks)
`supervision`  one life of all this after another, with `heartbeat`
`capturing`    a worker's part of a cut; `committing` is the driver's, `journal` a front's
`arrival`      the loop by arrival, and `snapshotting` its cuts
`asking`       questions about state on their way; `reads` is who asks, `endpoint` serves HTTP
`wire`         authenticated sockets
`query`        the handle, with `progress` (what it tells) and `listening` (whom)
"""

from emberflow.runners.live.builder import LiveBuilder
from emberflow.runners.live.query import LiveQuery

__all__ = ["LiveBuilder", "LiveQuery"]
