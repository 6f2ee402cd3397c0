"""All queries, and the flows that they make.

A query is a function from the stream of events to its result. It is a stream, or where the SQL has a result
that is updated, a table that changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import emberflow as ef
from nexmark import aggregates, joins, rows, windows
from nexmark.views import Events

Query: TypeAlias = Callable[[Events], ef.Stream[Any] | ef.Changes[Any, Any]]

_ALL: tuple[Query, ...] = (
    *(rows.q0, rows.q1, rows.q2, joins.q3, joins.q4, windows.q5, joins.q6, windows.q7),
    *(windows.q8, joins.q9, rows.q10, windows.q11, windows.q12, rows.q13, rows.q14),
    *(aggregates.q15, aggregates.q16, aggregates.q17, aggregates.q18, aggregates.q19),
    *(joins.q20, rows.q21, rows.q22),
)

QUERIES: dict[str, Query] = {query.__name__: query for query in _ALL}


def flow_of(name: str) -> ef.Flow:
    """The flow of one query: a front ``events`` and a sink of the name of the query."""
    return flow_of_all([name])


def flow_of_all(names: Iterable[str] = QUERIES) -> ef.Flow:
    """A flow of several queries, which read the same front and share nothing else."""
    names = list(names)
    flow = ef.Flow(f"nexmark {' '.join(names)}")
    events: Events = flow.front("events")
    for name in names:
        QUERIES[name](events).sink(name)
    return flow
