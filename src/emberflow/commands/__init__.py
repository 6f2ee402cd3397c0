"""What is behind the larger commands of `emberflow.cli`: one module a command, and what they share.

`run`       ``emberflow run``: a flow live on Spark, from fronts to sinks, until Ctrl-C
`diff`      ``emberflow diff``: what a new version of a flow changes, and what becomes of its state
`audit`     ``emberflow audit``: what sinks hold, judged by what went in
`diagnosis` ``emberflow doctor``: what will work here, and what to do about the rest
`elements`  the elements of ``emberflow verify``, from a module or from files
`adapters`  fronts and sinks from a command line: ``docs=files:in/``
`logs`      what went into a live query, from the logs of its fronts
`session`   a Spark session that keeps quiet, and errors that say what Spark lacks
`display`   how a live query is doing: a picture on a terminal, lines elsewhere

None of these modules imports an optional package at its top: each command has its ``--help`` in the
base install.
"""
