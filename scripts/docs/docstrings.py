"""Docstrings as Markdown.

In the source, examples are doctests (``>>>``) and literal blocks begin behind ``::``. Markdown reads the
first as quotations and shows the second colon. This griffe extension fences the examples as code and
drops the colon.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"(?:^[ \t]*>>>.*\n?(?:^(?![ \t]*$).*\n?)*)", re.MULTILINE)


def _fenced(match: re.Match[str]) -> str:
    return f"\n```pycon\n{match[0].rstrip()}\n```\n"


class Doctests(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = _EXAMPLE.sub(_fenced, obj.docstring.value)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)
