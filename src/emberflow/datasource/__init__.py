"""Spark's data source ``emberflow``: Structured Streaming into and out of a live query, SQL over state.

`source`          the class that Spark registers, by way of the module ``pyspark_emberflow``
`options`         options, and how a process finds the live query that they name
`stream_writer`   a streaming write feeds a front
`stream_reader`   a streaming read reads a sink
`state`           a batch read reads a state: pieces of it (`pages`), from a checkpoint (`stored`) that
                  is trusted (`trust`), or from a live query (`live`), with filters on the key pushed
                  down (`filters`)

Spark runs each of these in processes of its own: one on the driver's machine that plans, one there
that commits, and the workers of its executors. None of them is the process of the live query: they
reach it through its bridge (`runners.live.serving.bridge`).
"""

from emberflow.extras import need

need("pyspark", extra="spark", what="the data source 'emberflow'")
