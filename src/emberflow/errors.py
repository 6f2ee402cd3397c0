"""The errors a user can meet, named after whose mistake it was.

Every message says what went wrong, where (step, function, file and line), what was expected, what
was found, and what to do about it. Nothing here catches: errors are raised where the mistake can be
seen first, which for a flow is the line that builds it.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple, TypeAlias

#: What happens to an element that a step cannot process: the run ends, or the element goes aside.
OnError: TypeAlias = Literal["fail", "divert"]

#: The sink of what went aside. No flow has it: it is there where ``on_error`` is ``"divert"``.
ERRORS_SINK = "errors"
#: The sink that late elements are diverted to.
LATE_SINK = "late"


class EmberflowError(Exception):
    """The base of every error that Emberflow raises on purpose."""


class FlowError(EmberflowError):
    """The flow is not one that can run: raised while it is built or when its graph is taken."""


class InputError(EmberflowError):
    """The elements handed to a runner do not fit the fronts of the flow."""


class MissingExtraError(EmberflowError, ImportError):
    """A feature needs an optional package that is not installed. The message names the extra."""


class PayloadError(EmberflowError):
    """A sink cannot store a payload. To try again would not help."""


class StepError(EmberflowError):
    """A step could not process an element; the base of the errors of user functions.

    Carries what a test or a dead-letter sink wants to look at: ``step``, ``function`` (described,
    with file and line), ``global_time`` and ``payload``.
    """

    def __init__(
        self,
        problem: str,
        *,
        step: str,
        function: str,
        global_time: tuple[int, int],
        payload: Any,
    ) -> None:
        self.problem = problem
        self.step = step
        self.function = function
        self.global_time = global_time
        self.payload = payload
        super().__init__(
            f"{problem}\n"
            f"  step:        {step}\n"
            f"  function:    {function}\n"
            f"  global time: time={global_time[0]} front={global_time[1]}\n"
            f"  payload:     {shortened(payload)}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the class with the message alone, and a worker's error could not
        # travel to the driver.
        return _rebuild_step_error, (type(self), self.__dict__.copy())


def _rebuild_step_error(kind: type[StepError], state: dict[str, Any]) -> StepError:
    return kind(
        state["problem"],
        step=state["step"],
        function=state["function"],
        global_time=state["global_time"],
        payload=state["payload"],
    )


class FunctionError(StepError):
    """A user function raised; the original exception is the ``__cause__``."""


class OutputError(StepError):
    """A user function returned what its step cannot send on (a set, ``None``, a time in the past)."""


class UnstableKeyError(StepError):
    """A key function returned a key without one canonical encoding (a set, a dict, an object)."""


class RefusedError(StepError):
    """A sink cannot store a payload, and can tell before it is given one (``refuses``)."""


class EndlessLoopError(StepError):
    """An element goes round a loop without end."""

    @classmethod
    def of(cls, step: str, global_time: tuple[int, int], payload: Any) -> EndlessLoopError:
        return cls(
            "an element goes round a loop without end. "
            "Let a flat_map or a filter in the loop end the round.",
            step=step,
            function="-",
            global_time=global_time,
            payload=payload,
        )


class Diverted(NamedTuple):
    """What a step could not process, as it arrives in the errors sink.

    The fields are those of the `StepError` that would have ended the run: the global time of the
    element, the step and the function (described, with file and line), what went wrong, and the
    payload that it went wrong with.

    >>> import emberflow as ef
    >>> flow = ef.Flow("inverse")
    >>> flow.front("numbers").map(lambda n: 12 // n, name="invert").sink("out")
    >>> outputs = ef.run(flow, on_error="divert", numbers=[3, 0, 4])
    >>> outputs["out"]
    [4, 3]
    >>> [(diverted.time, diverted.payload, diverted.problem) for diverted in outputs["errors"]]
    [(1, 0, "a function of 'invert' raised ZeroDivisionError: integer division or modulo by zero")]
    """

    time: int
    front: int
    step: str
    function: str
    problem: str
    payload: Any

    @classmethod
    def of(cls, error: StepError) -> Diverted:
        time, front = error.global_time
        return cls(time, front, error.step, error.function, error.problem, error.payload)


class Late(NamedTuple):
    """An element that came too late, as it arrives in the late sink.

    ``time`` is its own, and ``by`` is how far it is below what its partition had promised.

    >>> import emberflow as ef
    >>> flow = ef.Flow("sums")
    >>> flow.front("numbers").sink("out")
    >>> numbers = [ef.At(12, "a"), ef.At(9, "b"), ef.At(3, "c")]
    >>> outputs = ef.run(flow, numbers=ef.fronts.Iterable(numbers, disorder=5))
    >>> outputs["out"], outputs["late"]
    (['b', 'a'], [Late(time=3, front='numbers', partition=0, position=2, by=4, payload='c')])
    """

    time: int
    front: str
    partition: int
    position: Any
    by: int
    payload: Any


class ReadError(EmberflowError):
    """State could not be read: the query is over, or a worker could not answer."""


class NotKeptError(ReadError):
    """State was asked for as of a time that is not kept. The message tells what is."""


class ReadTimeoutError(ReadError, TimeoutError):
    """A read was not answered within its time limit."""


class NondeterminismError(EmberflowError):
    """A user's function is not pure: the same input gave two outputs.

    The usual causes: it reads a clock or random numbers, keeps something between calls, changes its
    argument or an accumulator in place, goes through a set in the order of its hashes, or returns a
    key that differs from call to call. `emberflow.verify` finds the function, and then the error
    carries it: ``function`` (described, with file and line), ``step``, ``cause`` and ``elements``, a
    small case that shows it.
    """

    def __init__(
        self,
        message: str,
        *,
        function: str = "",
        step: str = "",
        cause: str = "",
        elements: dict[str, list[Any]] | None = None,
    ) -> None:
        super().__init__(message)
        self.function = function
        self.step = step
        self.cause = cause
        self.elements = elements


class InternalError(EmberflowError):
    """Emberflow broke one of its own invariants: a bug of ours, please report it."""


#: Long enough to recognise an element, short enough that a message stays on the screen.
SHORTENED_CHARACTERS = 200


def beginning(text: str) -> str:
    """What an error shows of a text in which a password may follow.

    >>> beginning("postgres:postgresql://ada:s3cret@db/shop")
    "'postgres...'"
    >>> beginning("orders")
    "'orders'"
    """
    harmless = re.match(r"[\w-]*", text)
    shown = harmless[0] if harmless else ""
    return repr(shown if shown == text else f"{shown}...")


def shortened(value: Any, limit: int = SHORTENED_CHARACTERS) -> str:
    """The ``repr`` of a value, cut in the middle, and never an error of its own.

    >>> shortened("x" * 1000, limit=20)
    "'xxxxxx ... xxxxxxx'"
    """
    try:
        text = repr(value)
    except Exception as error:
        return f"<{type(value).__qualname__} whose repr() raises {type(error).__qualname__}>"
    if len(text) <= limit:
        return text
    kept = limit - len(" ... ")
    return f"{text[: kept // 2]} ... {text[-(kept - kept // 2) :]}"
