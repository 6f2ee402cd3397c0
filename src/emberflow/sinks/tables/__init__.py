"""Tables of a lakehouse: `sinks.Delta` and `sinks.Iceberg`, and what both share.

`description` has the options of a table sink, `rows` makes Arrow rows of payloads, `edits` makes what a
bundle does to a table of rows with keys. `delta` and `iceberg` commit it together with the last global
time, each in the way of its format.
"""
