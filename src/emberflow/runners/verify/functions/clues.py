"""Suspicious builtins that a function was seen to call: clocks, random numbers, ``hash``, ``id``.

While a function runs, `Witness` sees every builtin that it calls, directly or not
(`sys.setprofile`), and notes the suspicious ones with the user's line. Calls that are invisible to
it (NumPy) are guessed from the names in the code. Clues explain two different results; they never
replace them: a function may time itself and still be pure.
"""

from __future__ import annotations

import builtins
import datetime
import gc
import os
import random
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from emberflow.runners.verify.functions.variables import (
    globals_of,
    is_of_python,
    names_in,
    reached_by,
)
from emberflow.values.functions import Where

ClueKind: TypeAlias = Literal["clock", "random", "hash", "id", "process"]

_OURS = str(Path(__file__).parents[1])
_CLOCKS = frozenset(
    f"{name}{unit}"
    for name in (
        "time",
        "monotonic",
        "perf_counter",
        "process_time",
        "thread_time",
        "clock_gettime",
    )
    for unit in ("", "_ns")
) | {"localtime", "gmtime", "ctime", "asctime"}
_BUILTINS: dict[tuple[str, str], ClueKind] = {
    **{("time", name): "clock" for name in _CLOCKS},
    (os.name, "urandom"): "random",
    (os.name, "getrandom"): "random",
    ("_uuid", "generate_time_safe"): "random",
    ("builtins", "hash"): "hash",
    ("builtins", "id"): "id",
    (os.name, "getpid"): "process",
}
_MODULES: dict[str, ClueKind] = {
    "time": "clock",
    "datetime": "clock",
    "random": "random",
    "secrets": "random",
    "uuid": "random",
    "numpy.random": "random",
}


@dataclass(frozen=True, slots=True)
class Clue:
    """A suspicious call. ``sure`` means that its result by nature differs from call to call."""

    kind: ClueKind
    text: str
    sure: bool = True


class Witness:
    """Collects clues between enter and exit. Ignores logging, which reads a clock only for the log."""

    def __init__(self) -> None:
        self.clues: dict[Clue, None] = {}

    def __enter__(self) -> Witness:
        # A garbage collection runs its callbacks (of profilers, say) inside whatever function is
        # running. The function is not to blame for what they call.
        self._collecting = gc.isenabled()
        gc.disable()
        self._before = sys.getprofile()
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)
        if self._collecting:
            gc.enable()

    def _event(self, frame: types.FrameType, event: str, called: Any) -> None:
        if event != "c_call":
            return
        kind, sure = _kind_of(called)
        if kind is None:
            return
        name = f"{_owner_name(called)}{called.__name__}()"
        at: types.FrameType | None = frame
        while at is not None and is_of_python(at.f_code.co_filename):
            module = at.f_globals.get("__name__", "")
            if module == "logging":
                return
            # show shuffle(), not the getrandbits() that it calls
            name = f"{module}.{at.f_code.co_name}()"
            at = at.f_back
        text = f"it calls {name}"
        if at is not None and not at.f_code.co_filename.startswith(_OURS):
            text += f" in {Where(at.f_code.co_filename, at.f_lineno)}"
        self.clues[Clue(kind, text, sure)] = None


def _kind_of(called: Any) -> tuple[ClueKind | None, bool]:
    owner = getattr(called, "__self__", None)
    if isinstance(owner, random.Random):
        # A generator other than the global one may have been seeded within this very call.
        return "random", owner is random._inst
    if isinstance(owner, type) and issubclass(owner, datetime.date):
        return ("clock" if called.__name__ in ("now", "utcnow", "today") else None), True
    if isinstance(owner, types.ModuleType):
        return _BUILTINS.get((owner.__name__, called.__name__)), True
    return None, True


def _owner_name(called: Any) -> str:
    owner = called.__self__
    if owner is builtins:
        return ""
    if isinstance(owner, types.ModuleType | type):
        return f"{owner.__name__}."
    return f"{type(owner).__name__}."


def clues_in_code(function: Callable[..., Any]) -> list[Clue]:
    """Clues guessed from the names that a function uses, for calls that no witness can see."""
    found: dict[Clue, None] = {}
    for reached in reached_by(function):
        for name, value in globals_of(reached).items():
            module = value.__name__ if isinstance(value, types.ModuleType) else None
            if module == "numpy" and "random" in names_in(reached.__code__):
                module = "numpy.random"
            module = module or (getattr(value, "__module__", None) if callable(value) else None)
            if module in _MODULES:
                found[Clue(_MODULES[module], f"it uses {name}, of the module {module}", False)] = (
                    None
                )
    return list(found)
