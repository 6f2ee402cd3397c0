"""Spark's data source ``emberflow``: Structured Streaming into and out of a live query, SQL over state.

`source`      the class that Spark registers, by way of the module ``pyspark_emberflow``
`options`      options, and how a process finds the live query that they name
`stream_writer`     a streaming write feeds a front
`stream_reader`     a streaming read takes a sink
`state`       a batch read takes a state: pages of it (`pages`), from a checkpoint (`stored`), as columns
              (`columns`), with filters on the key pushed down (`filters`)

Spark runs each of these in processes of its own: one beside the driver that plans, one there that
commits, and the workers of its executors. None of them is the process of the live query, which is
asked through its bridge (`runners.live.serving.bridge`).
"""
