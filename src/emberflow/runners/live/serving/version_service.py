"""New versions, and other owners of keys, by other processes: the service of the bridge behind
``emberflow upgrade``, ``emberflow rescale`` and ``emberflow rebalance``.

A request for a version names a flow by module and folder; it brings no code. The driver imports it anew,
because the file may have changed since the old version was imported. The folder must be one that the driver
imports from already, and the module must lie there: a request chooses among the files that the driver's
user has put beside the flow, and nothing else. The same holds for checkpoints of backfills, whose rows are
unpickled: they lie in that folder or beside the query's own checkpoint, and belong to the driver's user.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from emberflow.dsl.flow import Flow
from emberflow.dsl.loading import lies_in, load_flow_anew
from emberflow.errors import EmberflowError, InputError
from emberflow.graph.versions import Backfilled, Drop, Source

#: Takes a flow, a time or None, what is carried, and seconds.
Upgrade = Callable[[Flow, Any, dict[str, Source], float], None]

#: Takes a number of workers, and seconds.
Rescale = Callable[[int, float], None]

#: Takes seconds, and gives the number of slices that have moved.
Rebalance = Callable[[float], int]

_SECONDS_MAX = 3_600.0


class VersionService:
    """Lets a query go over to another version, or other owners of keys. Its three functions are set later: the
    bridge begins first."""

    def __init__(self, checkpoint: str | None = None) -> None:
        """``checkpoint`` is where the query has its own cuts."""
        self.upgrade: Upgrade | None = None
        self.rescale: Rescale | None = None
        self.rebalance: Rebalance | None = None
        self._checkpoint = checkpoint

    def serve(self, method: str, arguments: dict[str, Any]) -> Any:
        if method not in ("upgrade", "rescale", "rebalance"):
            raise InputError(f"versions have no method {method!r}.")
        if getattr(self, method) is None:
            raise InputError("the live query has not begun yet: ask again.")
        if method == "rescale":
            return self._rescaled(arguments["workers"], float(arguments["seconds"]))
        if method == "rebalance":
            return self._rebalanced(float(arguments["seconds"]))
        assert self.upgrade is not None
        target, folder = str(arguments["target"]), Path(str(arguments["folder"])).resolve()
        known = {Path(path or ".").resolve() for path in sys.path}
        try:
            is_there = folder in known and lies_in(target, folder)
        except EmberflowError as error:
            raise InputError(str(error)) from error
        if not is_there:
            raise InputError(
                f"the driver imports no {target} from {folder}. Run the command in the folder that the "
                f"query was started in; a flow of an installed package takes a restart."
            )
        carry: dict[str, Source] = dict(arguments["carry"])
        for step, location in dict(arguments.get("begin", {})).items():
            if not self._is_ours(str(location), folder):
                raise InputError(
                    f"the backfill at {location} is not read for a request from another process: it has to "
                    f"lie in {folder} or beside the query's own checkpoint, and belong to the user of the "
                    f"driver."
                )
            carry[str(step)] = Backfilled(str(location))
        carry |= {str(step): Drop(str(step)) for step in arguments["drop"]}
        seconds = min(float(arguments["seconds"]), _SECONDS_MAX)
        try:
            flow = load_flow_anew(target, folder)
            self.upgrade(flow, arguments["at"], carry, seconds)
        except EmberflowError as error:
            raise InputError(str(error)) from error
        return flow.name

    def _rescaled(self, workers: Any, seconds: float) -> Any:
        assert self.rescale is not None
        try:
            self.rescale(workers, min(seconds, _SECONDS_MAX))
        except EmberflowError as error:
            raise InputError(str(error)) from error
        return workers

    def _rebalanced(self, seconds: float) -> int:
        assert self.rebalance is not None
        try:
            return self.rebalance(min(seconds, _SECONDS_MAX))
        except EmberflowError as error:
            raise InputError(str(error)) from error

    def _is_ours(self, location: str, folder: Path) -> bool:
        """Whether a checkpoint lies where the driver's user keeps what the query needs."""
        own = self._checkpoint
        if "://" in location:
            beside = None if own is None else own.rstrip("/").rpartition("/")[0] + "/"
            return beside is not None and location.startswith(beside) and ".." not in location
        path = Path(location).resolve()
        known = [folder, *([] if own is None or "://" in own else [Path(own).resolve().parent])]
        is_near = any(path.is_relative_to(one) for one in known)
        return is_near and path.is_dir() and path.stat().st_uid == os.getuid()

    def close(self) -> None:
        """It has nothing open."""
