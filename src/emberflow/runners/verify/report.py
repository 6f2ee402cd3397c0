"""The text of a `NondeterminismError`: function, step, cause, the two results, and code for a test."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from emberflow.errors import NondeterminismError
from emberflow.runners.verify.functions.findings import ADVICE, Finding
from emberflow.runners.verify.functions.sites import Site
from emberflow.runners.verify.trial import Elements
from emberflow.values.item import At

_WIDTH = 88


def error_of(
    flow: str, sites: Sequence[Site], finding: Finding, elements: Elements, *, given: int
) -> NondeterminismError:
    """The error for a finding. ``elements`` are those left of the ``given`` ones."""
    if finding.site is None:
        function = " or ".join(dict.fromkeys(str(site.given) for site in sites))
        step = "-"
    else:
        function, step = str(sites[finding.site].given), sites[finding.site].step
    left = sum(map(len, elements.values()))
    why, *more = finding.why
    (when, first), (then, second) = finding.results
    width = max(len(when), len(then)) + 1
    lines = [
        f"flow {flow!r} is not deterministic: {function} {finding.cause}.",
        f"  step:       {step}",
        f"  function:   {function}",
        f"  why:        {why}",
        *(f"              {reason}" for reason in more),
        f"  called as:  {finding.call}",
        f"  {'results' if 'call' not in when else 'argument'}:".ljust(14)
        + f"{f'{when}:':{width}} {first}",
        f"              {f'{then}:':{width}} {second}",
        f"  what to do: {ADVICE[finding.cause]}",
        f"  A case of {left} {'element' if left == 1 else 'elements'}, of {given} given, for a test:",
        "",
        *(f"    {line}" for line in case_of(flow, elements).splitlines()),
    ]
    return NondeterminismError(
        "\n".join(lines), function=function, step=step, cause=finding.cause, elements=elements
    )


def case_of(flow: str, elements: Elements) -> str:
    """The elements as Python code, ready to paste into a test beside the flow.

    >>> print(case_of("word count", {"lines": ["a", At(3, "b")]}))
    def test_word_count_is_deterministic() -> None:
        ef.verify(flow, lines=['a', ef.At(3, 'b')])
    """
    name = re.sub(r"\W+", "_", flow).strip("_").lower() or "flow"
    arguments = [_argument(front, given) for front, given in elements.items()]
    call = f"    ef.verify(flow, {', '.join(arguments)})"
    if len(call) > _WIDTH or "\n" in call:
        rows = [row for front, given in elements.items() for row in _long_argument(front, given)]
        call = "\n".join(["    ef.verify(", "        flow,", *rows, "    )"])
    return f"def test_{name}_is_deterministic() -> None:\n{call}"


def _argument(front: str, given: list[Any]) -> str:
    listed = f"[{', '.join(map(_code, given))}]"
    return f"{front}={listed}" if front.isidentifier() else f"**{{{front!r}: {listed}}}"


def _long_argument(front: str, given: list[Any]) -> list[str]:
    short = f"        {_argument(front, given)},"
    if len(short) <= _WIDTH and "\n" not in short:
        return [short]
    opening, closing = (
        (f"{front}=[", "],") if front.isidentifier() else (f"**{{{front!r}: [", "]},")
    )
    rows = [""]
    for element in map(_code, given):
        if rows[-1] and len(rows[-1]) + len(element) + 15 > _WIDTH:
            rows.append("")
        rows[-1] += f" {element}," if rows[-1] else f"{element},"
    return [f"        {opening}", *(f"            {row}" for row in rows), f"        {closing}"]


def _code(element: Any) -> str:
    if isinstance(element, At):
        return f"ef.At({element.time!r}, {element.payload!r})"
    return repr(element)
