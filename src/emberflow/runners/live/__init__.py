"""Live on Spark: long-running workers, the tasks of one barrier job, milliseconds to the sink.

==============  ====================================================================
`wire`          authenticated sockets, the kinds of messages, how they are encoded
`worker`        a worker's process: the loop, its fronts, its sinks, its part of cuts
`driver`        the coordinator, its part of cuts, progress, the cluster, listeners
`arrival`       the loop and the coordinator of ``ordering="arrival"``
`processes`     the barrier jobs, whose tasks keep the workers' processes, and who knows these
`balance`       what workers tell of their load, and plans made of it
`lives`         how a life begins, what takes over from it, and what a loss means
`supervisor`    one life of the workers after another
`elastic`       who acts on the load, by hand or by itself
`serving`       reads of state for users, over HTTP, and for processes beside the query
`query`         the handle that `start()` returns
`builder`       ``flow.live(spark).read(...).write(...).start()``
==============  ====================================================================

Importing this package imports none of them: most need the extra ``spark``, and `listener` does not.
"""
