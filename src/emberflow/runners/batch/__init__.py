"""The batch runner: a flow as a plan of Spark DataFrames, for history of any size.

From the bottom:

`failures`               Emberflow's errors, recovered from Spark's
`shuffle/bus`            rows between passes: chunks of many items
`shuffle/sorting`        the items of a slice in order; `output_order` the rows of a sink
`shuffle/spilling`       sorting more than fits in memory
`plan/ordering`          which transactions wait for each other
`plan/stages`            from a graph to stages: what runs in one pass, what is shuffled
`passes/steps`           map and broadcast; `machines` grouping and reduction, over sorted columns
`passes/regions`         cycles; `transactions` transactions
`passes/ends`            output, state and scheduled items at the end of a backfill, as rows
`passes/passes`          what runs in a Spark task, from Arrow to Arrow
`runner`                 the plan as DataFrames
`backfill`               a batch up to a time that ends in a checkpoint
`backfill/handover`      its last pass, which writes sinks and the cut
`front_logs`             the elements that entered a live query, as rows

`emberflow.rows` has the conversions: rows to elements, payloads to columns, places and payloads to
bytes.

Importing this package imports none of them: the passes need the extra ``spark``.
"""
