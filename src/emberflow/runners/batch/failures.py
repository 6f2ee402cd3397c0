"""Recovers Emberflow's own error from the exception that Spark raises for a failed batch.

A failed task ends the job. Spark raises a `PythonException` in the driver whose text contains the
task's traceback, which ends with our own error, word for word. `failure_of` parses it. Of the
payload only its ``repr`` is left.
"""

from __future__ import annotations

import re
from typing import Any

from emberflow import errors
from emberflow.engine.cuts.translation import MigrationError
from emberflow.errors import EmberflowError, StepError
from emberflow.graph.versions import CarryError

_KINDS = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (*vars(errors).values(), CarryError, MigrationError)
    if isinstance(kind, type) and issubclass(kind, EmberflowError)
}
_FOUND = re.compile(rf"^({'|'.join(map(re.escape, _KINDS))}): (.*)", re.MULTILINE | re.DOTALL)
_STEP = re.compile(
    r"(?P<problem>.*?)\n  step:        (?P<step>.*?)\n  function:    (?P<function>.*?)\n"
    r"  global time: time=(?P<time>-?\d+) front=(?P<front>-?\d+)\n  payload:     (?P<payload>[^\n]*)",
    re.DOTALL,
)
_END = re.compile(r"\n\n|\n\s+at \w|\n\s*SQLSTATE|\n== ")


class Shown:
    """Stands for a payload of which only the ``repr`` is left."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def failure_of(raised: BaseException) -> EmberflowError | None:
    """The Emberflow error behind an exception of Spark's; None if there is none.

    >>> failure_of(ValueError("something else")) is None
    True
    """
    if isinstance(raised, EmberflowError):
        return raised
    # The first error is the cause; later ones happened during cleanup.
    found = _FOUND.search(str(raised))
    if found is None:
        return None
    kind: Any = _KINDS[found[1]]
    if issubclass(kind, StepError):
        parts = _STEP.match(found[2])
        if parts is None:
            return None
        error: EmberflowError = StepError.__new__(kind)
        StepError.__init__(
            error,  # type: ignore[arg-type]
            parts["problem"],
            step=parts["step"],
            function=parts["function"],
            global_time=(int(parts["time"]), int(parts["front"])),
            payload=Shown(parts["payload"]),
        )
        return error
    message = _END.split(found[2], maxsplit=1)[0].strip()
    made: EmberflowError = kind(message)
    return made
