"""Spark looks for modules of this kind of name and registers what they define: ``emberflow``.

It imports all of them in a process that only does that, so this is light: the rest of Emberflow, and
what it needs, is imported by whoever uses the data source.
"""

from emberflow.datasource.source import EmberflowSource as DefaultSource

__all__ = ["DefaultSource"]
