"""Derived operators: each is composed of map, broadcast, merge and grouping, and of nothing else.

One idea a file. An operator is a function of streams that returns a stream; it opens a scope, so
that its steps carry its name. Operators have no state of their own: an operator that remembers
something keeps it in an accumulator that drifts with the stream (`dsl.operators.reduce`), and one
that waits schedules an item.
"""

from emberflow.dsl.operators.aggregates import Aggregate, aggregate, catalogue, several
from emberflow.dsl.operators.changes import changes
from emberflow.dsl.operators.changes.change import key_of
from emberflow.dsl.operators.distinct import distinct
from emberflow.dsl.operators.joins import KEEPS_KEY as _KEPT_BY_JOINS
from emberflow.dsl.operators.joins import enrich, join, join_latest
from emberflow.dsl.operators.ranks import rank
from emberflow.dsl.operators.reduce import fold, lifetime, reduce
from emberflow.dsl.operators.windows import GatheredWindows, over, window, window_updates
from emberflow.dsl.operators.windows.updates import KEEPS_KEY as _KEPT_BY_WINDOWS

#: Maps that send items back into the bucket they come from: such a cycle stays within one key.
KEEPS_KEY = _KEPT_BY_WINDOWS | _KEPT_BY_JOINS

__all__ = [
    "KEEPS_KEY",
    "Aggregate",
    "GatheredWindows",
    "aggregate",
    "catalogue",
    "changes",
    "distinct",
    "enrich",
    "fold",
    "join",
    "join_latest",
    "key_of",
    "lifetime",
    "over",
    "rank",
    "reduce",
    "several",
    "window",
    "window_updates",
]
