"""The batch runner: a flow as a plan of Spark DataFrames, for history of any size.

`inputs`    from rows to elements: payloads and times
`planning`  from a graph to stages: what runs in one pass, what goes through a shuffle
`runner`    the plan as DataFrames
`passes`    what runs in a task, from Arrow to Arrow
`steps` `machines` `regions`   the operations, over sorted columns
`places` `codec`   places and payloads as bytes
`outputs`   from payloads to columns
`failures`  errors, on their way back to the driver
"""

from emberflow.runners.batch.failures import failure_of
from emberflow.runners.batch.inputs import Rows, rows
from emberflow.runners.batch.runner import batch, payloads

__all__ = ["Rows", "batch", "failure_of", "payloads", "rows"]
