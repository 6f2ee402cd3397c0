"""The batch runner: a flow as a plan of Spark DataFrames, for history of any size.

`inputs`    from rows to elements: payloads and times
`stages`  from a graph to stages: what runs in one pass, what goes through a shuffle
`runner`    the plan as DataFrames
`passes`    what runs in a task, from Arrow to Arrow
`steps` `machines` `regions`   the operations, over sorted columns
`ordering` `transactions`   which transactions wait for each other, and how they run
`bus`       rows between passes: chunks of many items
`sorting` `output_order` `spilling`   the items of such rows, and the rows of sinks, in order, however many
`paths` `codec`   places and payloads as bytes
`outputs`   from payloads to columns
`failures`  errors, on their way back to the driver
`backfill`  a batch up to a time that ends in a checkpoint
`ends`      what is left then, as rows; `handover` writes it
`front_logs` the other way round: what went into a live query, as rows
"""

from emberflow.rows.inputs import Rows, rows
from emberflow.runners.batch.backfill.backfill import backfill
from emberflow.runners.batch.failures import failure_of
from emberflow.runners.batch.front_logs import front_log
from emberflow.runners.batch.runner import batch, payloads

__all__ = ["Rows", "backfill", "batch", "failure_of", "front_log", "payloads", "rows"]
