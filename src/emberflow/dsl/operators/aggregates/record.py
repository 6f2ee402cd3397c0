"""Named tuples whose fields are known when the flow is built.

What is guaranteed: **such a class is found by its name, in every process that has Emberflow.** A payload of
it is pickled as other named tuples are, and no worker needs a module of the user. As a key it is a tuple,
like every named tuple: it has the canonical form of its values.

The name says what the fields are: ``Aggregates(total,high)`` is an attribute of this module, which is made
when it is first asked for. Whoever asks for the same name later gets the same class.
"""

from __future__ import annotations

import keyword
from collections import namedtuple
from typing import Any

_SHOWN = "Aggregates"
_MADE: dict[str, Any] = {}


def record_of(fields: tuple[str, ...]) -> Any:
    """The class of named tuples with these fields.

    >>> record_of(("total", "high"))(7, 5)
    Aggregates(total=7, high=5)
    >>> import pickle
    >>> pickle.loads(pickle.dumps(record_of(("total",)))) is record_of(("total",))
    True
    """
    return _named(f"{_SHOWN}({','.join(fields)})")


def is_record(kind: object) -> bool:
    """Whether a class was made here."""
    return any(kind is made for made in _MADE.values())


def can_be_field(name: str) -> bool:
    """Whether a named tuple can have a field of this name."""
    return name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")


def _named(name: str) -> Any:
    if name not in _MADE:
        fields = name[len(_SHOWN) + 1 : -1].split(",")
        made: Any = namedtuple(_SHOWN, fields, module=__name__)  # type: ignore[misc]
        made.__qualname__ = name
        _MADE.setdefault(name, made)  # another thread may have made it
    return _MADE[name]


def __getattr__(name: str) -> Any:
    if name.startswith(f"{_SHOWN}(") and name.endswith(")"):
        return _named(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
