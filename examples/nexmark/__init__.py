"""NEXMark, the benchmark of streaming queries: an online auction, as flows.

`generator` makes the events, the modules of `queries` have the queries q0 to q22. See docs/nexmark.md.
"""
