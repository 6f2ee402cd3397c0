"""The overview of a query for other processes of its user: the service behind ``emberflow top``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emberflow.errors import InputError


class OverviewService:
    """Tells how a query is doing. ``look`` is set later: the bridge begins first."""

    def __init__(self) -> None:
        self.look: Callable[[], dict[str, Any]] | None = None

    def serve(self, method: str, arguments: dict[str, Any]) -> Any:
        if method != "look":
            raise InputError(f"the overview has no method {method!r}.")
        if self.look is None:
            raise InputError("the live query has not begun yet: ask again.")
        return self.look()

    def close(self) -> None:
        """It has nothing open."""
