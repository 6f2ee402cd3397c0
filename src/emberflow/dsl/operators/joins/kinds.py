"""The kinds of joins, as in SQL: what each emits for payloads that meet, and for those that do not."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

from emberflow.errors import FlowError
from emberflow.values.functions import caller

How: TypeAlias = Literal["inner", "left", "right", "outer", "semi", "anti"]


class Kind(NamedTuple):
    """What a join emits."""

    #: ``(left, right)`` for each two that meet. Otherwise its output are payloads of the left side.
    pairs: bool = True
    #: ``(left, None)``, or the left payload, for one that has met none.
    left_alone: bool = False
    #: ``(None, right)`` for one that has met none.
    right_alone: bool = False

    @property
    def is_semi(self) -> bool:
        """The left payload, once, when it has met one."""
        return not self.pairs and not self.left_alone

    @property
    def waits(self) -> bool:
        """Whether it has to know when a payload can meet no other any more."""
        return self.left_alone or self.right_alone

    def of_left(self, payload: Any) -> Any:
        """The output for a left payload that has met none."""
        return (payload, None) if self.pairs else payload


KINDS: dict[str, Kind] = {
    "inner": Kind(),
    "left": Kind(left_alone=True),
    "right": Kind(right_alone=True),
    "outer": Kind(left_alone=True, right_alone=True),
    "semi": Kind(pairs=False),
    "anti": Kind(pairs=False, left_alone=True),
}

#: What Spark calls them otherwise, without underscores.
_OF_SPARK = {
    "full": "outer",
    "fullouter": "outer",
    "leftouter": "left",
    "rightouter": "right",
    "leftsemi": "semi",
    "leftanti": "anti",
}


def checked_kind(how: object, combine: object) -> Kind:
    """The kind of a join. Raises `FlowError` for an argument of `join` that is none."""
    kind = KINDS.get(how) if isinstance(how, str) else None
    if kind is None:
        meant = _OF_SPARK.get(str(how).replace("_", "").lower())
        advice = "" if meant is None else f" Spark's {how!r} is {meant!r} here."
        raise FlowError(
            f"join(how=) takes one of {', '.join(KINDS)}, got {how!r} at {caller()}.{advice}"
        )
    if combine is not None and not callable(combine):
        raise FlowError(f"join() takes a function of both payloads, got {combine!r} at {caller()}.")
    if combine is not None and not kind.pairs:
        raise FlowError(
            f"join(how={how!r}) at {caller()} gives the payloads of the left side alone, so there is "
            f"nothing to combine. Leave the function out, and map behind the join."
        )
    return kind
