"""Rules of a contract: which of them to check, and what is raised when one is broken."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import cloudpickle

from emberflow.errors import EmberflowError, InputError

T = TypeVar("T")


class ContractError(EmberflowError, AssertionError):
    """A front or a sink breaks a rule of its contract; ``rule`` is the name of the rule."""

    def __init__(self, rule: str, problem: str) -> None:
        super().__init__(f"the rule {rule!r} is broken: {problem}")
        self.rule = rule

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.rule, str(self))


def _rebuilt(rule: str, message: str) -> ContractError:
    error = ContractError.__new__(ContractError, message)
    error.rule = rule
    error.args = (message,)
    return error


def chosen_rules(known: Mapping[str, str], chosen: Collection[str] | None) -> set[str]:
    """The rules to check: all, unless some were chosen."""
    if chosen is None:
        return set(known)
    strange = [name for name in chosen if name not in known]
    if isinstance(chosen, str) or strange:
        raise InputError(f"rules= takes names out of {', '.join(known)}, got {chosen!r}.")
    return set(chosen)


def travelled(rule: str, adapter: T) -> T:
    """An adapter as it arrives at a worker."""
    try:
        there: T = cloudpickle.loads(cloudpickle.dumps(adapter))
    except Exception as error:
        raise ContractError(
            rule,
            f"{type(adapter).__name__} cannot be pickled ({type(error).__qualname__}: {error}). "
            f"It travels to the workers: open files and connections in read() or open(), not before.",
        ) from error
    return there


def kept(rule: str, what: str, call: Callable[[], T]) -> T:
    """The result of a call that must not raise."""
    try:
        return call()
    except ContractError:
        raise
    except Exception as error:
        raise ContractError(rule, f"{what} raised {type(error).__qualname__}: {error}") from error
