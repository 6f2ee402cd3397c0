"""Members of an object that a user wrote: required or with a default, found and checked in one place.

Guarantees:

1. *A contract is one frozen dataclass.* A field that is annotated with a `Kind` is a member of the
   user's object, and the default of the field is the default of the member. Nothing else in the
   package asks an object whether it has a member.
2. *A wrong member is an `InputError`* that names the member, what is expected and what was found. It
   is raised when the object is handed over, before anything runs.

Users write plain classes, without a base class to inherit from. So a member that is left out is not
an error but a default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, get_args, get_type_hints

from emberflow.errors import InputError, shortened
from emberflow.values.functions import described


@dataclass(frozen=True, slots=True)
class Kind:
    """What a member may be: in words, and as a function that tells."""

    expected: str
    accepts: Callable[[Any], bool]


#: True or False.
FLAG = Kind("True or False", lambda given: isinstance(given, bool))

#: A number of things, of which there is at least one.
COUNT = Kind(
    "an int of at least 1",
    lambda given: isinstance(given, int) and not isinstance(given, bool) and given >= 1,
)

#: Seconds, with or without a fraction; infinity is allowed, NaN is not.
SECONDS = Kind(
    "a number of seconds, 0 or more",
    lambda given: isinstance(given, int | float) and not isinstance(given, bool) and given >= 0,
)


def nothing() -> None:
    """What calling a method does that the object does not have."""


def method(*arguments: str) -> Kind:
    """A method that can be called with these arguments, by position.

    >>> method("partition").accepts(lambda partition, *, slowly=False: None)
    True
    >>> method("partition").accepts(lambda: None)
    False
    """

    def accepts(given: Any) -> bool:
        if not callable(given):
            return False
        try:
            signature = inspect.signature(given)
        except (TypeError, ValueError):  # some functions written in C do not tell
            return True
        try:
            signature.bind(*arguments)
        except TypeError:
            return False
        return True

    return Kind(f"a method that takes ({', '.join(arguments)})", accepts)


def members_of(
    contract: type, given: Any, where: str, *, required: tuple[str, ...]
) -> dict[str, Any]:
    """The members of an object that a contract has fields for: its own, or their defaults.

    ``required`` names the members that must be there. ``where`` begins the message of an error:
    ``"front 'docs'"``.
    """
    if isinstance(given, type):
        raise InputError(
            f"{where}: {given.__name__} is a class. Make an object of it: {given.__name__}(...)."
        )
    missing = [name for name in required if not has_member(given, name)]
    if missing:
        raise InputError(
            f"{where}: {shortened(given)} has no {', '.join(missing)}. {_more(contract)}"
        )
    found: dict[str, Any] = {}
    for name, (kind, default) in declared(contract).items():
        value = getattr(given, name, default)
        if value is not default:
            check_member(contract, given, where, name, kind, value)
        found[name] = value
    return found


@cache
def declared(contract: type) -> dict[str, tuple[Kind, Any]]:
    """The members that a contract has fields for: the kind and the default of each."""
    hints = get_type_hints(contract, include_extras=True)
    defaults = {each.name: each.default for each in fields(contract)}
    return {
        name: (kind, defaults[name])
        for name, hint in hints.items()
        for kind in get_args(hint)
        if isinstance(kind, Kind)
    }


def has_member(given: Any, name: str) -> bool:
    """Whether an object has a member. A property is not computed: it may have to ask a server."""
    try:
        inspect.getattr_static(given, name)
    except AttributeError:
        return hasattr(given, name)  # by a `__getattr__` of its own
    return True


def check_member(contract: type, given: Any, where: str, name: str, kind: Kind, value: Any) -> None:
    """Raise `InputError` if the value of a member is not of its kind."""
    if not kind.accepts(value):
        found = described(value) if callable(value) else shortened(value)
        raise InputError(
            f"{where}: {type(given).__name__}.{name} is {kind.expected}, got {found}. "
            f"{_more(contract)}"
        )


def _more(contract: type) -> str:
    """Where to read on: the package that a contract is in says what it asks for."""
    return f"See help({contract.__module__.rpartition('.')[0]})."
