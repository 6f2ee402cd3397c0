"""Listeners of live queries, and their events.

Names are PySpark's, in camel case: a listener written for its streaming queries works here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class QueryStartedEvent:
    id: str
    runId: str  # noqa: N815
    name: str | None
    timestamp: str
    jobTags: frozenset[str]  # noqa: N815


@dataclass(frozen=True, slots=True)
class QueryProgressEvent:
    #: Like ``query.lastProgress``: a dict with attributes.
    progress: Any


@dataclass(frozen=True, slots=True)
class QueryIdleEvent:
    id: str
    runId: str  # noqa: N815
    timestamp: str


@dataclass(frozen=True, slots=True)
class QueryTerminatedEvent:
    """``exception`` is the text of the error that the query failed with; None if it did not fail."""

    id: str
    runId: str  # noqa: N815
    exception: str | None
    errorClassOnException: str | None  # noqa: N815


class LiveQueryListener:
    """Override the methods for the events you want. Any object with some of these methods works too.

    >>> class Elements(LiveQueryListener):
    ...     def onQueryProgress(self, event: QueryProgressEvent) -> None:
    ...         print(event.progress["elements"], "elements so far")
    >>> Elements().onQueryProgress(QueryProgressEvent({"elements": 3}))
    3 elements so far
    """

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """The query has been started; its workers are starting."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Elements were read, or output was released or stored, or something is in flight."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """All output is stored, and no elements come. Repeated now and then while this lasts."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The query is over, with or without an error. The last event."""
