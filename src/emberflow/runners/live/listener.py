"""What a listener to live queries is, and what it is told.

Names are PySpark's, in camel case: a listener written for its streaming queries hears these too.
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
    #: As of ``query.lastProgress``: a dict with attributes.
    progress: Any


@dataclass(frozen=True, slots=True)
class QueryIdleEvent:
    id: str
    runId: str  # noqa: N815
    timestamp: str


@dataclass(frozen=True, slots=True)
class QueryTerminatedEvent:
    """``exception`` is what the query failed with, as text; None if it did not."""

    id: str
    runId: str  # noqa: N815
    exception: str | None
    errorClassOnException: str | None  # noqa: N815


class LiveQueryListener:
    """Override what you want to hear. Any object with some of these methods will do as well.

    >>> class Elements(LiveQueryListener):
    ...     def onQueryProgress(self, event: QueryProgressEvent) -> None:
    ...         print(event.progress["elements"], "elements so far")
    >>> Elements().onQueryProgress(QueryProgressEvent({"elements": 3}))
    3 elements so far
    """

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """The query has been started; its workers are on their way."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Something was taken in, released or stored, or is under way."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """All that has come is stored, and nothing comes. Told now and then while it lasts."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The query is over, with or without an error. The last event."""
