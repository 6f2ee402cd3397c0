"""What is behind the larger commands of `emberflow.cli`: one module a command, and what they share.

`run`       ``emberflow run``: a flow live on Spark, from fronts to sinks, until Ctrl-C
`adapters`  fronts and sinks from a command line: ``docs=files:in/``
`session`   a Spark session that keeps quiet, and errors that say what Spark lacks
`display`   how a live query is doing: a picture on a terminal, lines elsewhere
"""
