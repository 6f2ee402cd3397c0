"""What a notebook shows of results and queries: tables of HTML, with every value as text.

What is guaranteed: **nothing of a payload is interpreted.** Names and values are escaped, cut where they
are long, and a ``repr`` that raises is shown as such. A table has a bounded number of rows.

Jupyter calls ``_repr_html_`` to show a value. Everything else about the values here is as without it:
`Outputs` is a dict, equal to any other with the same items.
"""

from __future__ import annotations

import html
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

from emberflow.errors import shortened

#: How many payloads of a sink are shown, and how many fields of a payload.
ROWS_MAX = 20
COLUMNS_MAX = 12
_CHARACTERS_MAX = 80

#: How often a query that is on display is shown anew, and for how long.
REFRESH_SECONDS = 1.0
REFRESHES_MAX = 600


class Outputs(dict[str, list[Any]]):
    """The outputs of a run by sink: a dict that a notebook shows as tables.

    >>> outputs = Outputs(counts=[("the", 1), ("dog", 1)])
    >>> outputs
    {'counts': [('the', 1), ('dog', 1)]}
    >>> outputs._repr_html_().count("<tr>")
    3
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        return "".join(
            f"<p><b>{html.escape(sink)}</b> ({len(payloads):,})</p>{payload_table(payloads)}"
            for sink, payloads in self.items()
        )


def payload_table(payloads: Sequence[Any]) -> str:
    """Payloads as a table: with a column for each field, if all of them have the same fields."""
    if not payloads:
        return "<p><i>nothing</i></p>"
    shown = list(payloads[:ROWS_MAX])
    named = [_fields(payload) for payload in shown]
    head = list(named[0] or ())
    if head and len(head) <= COLUMNS_MAX and all(list(one or ()) == head for one in named):
        table = html_table([[*one.values()] for one in named if one is not None], head)
    else:
        table = html_table([[payload] for payload in shown], ["payload"])
    more = len(payloads) - len(shown)
    return table + (f"<p><i>and {more:,} more</i></p>" if more else "")


def _fields(payload: Any) -> dict[str, Any] | None:
    """The fields of a record by name, those of a tuple by number."""
    if isinstance(payload, dict) and all(isinstance(name, str) for name in payload):
        return dict(payload)
    if isinstance(payload, tuple):
        names = getattr(payload, "_fields", None) or map(str, range(len(payload)))
        return dict(zip(names, payload, strict=True))
    if is_dataclass(payload) and not isinstance(payload, type):
        return {one.name: getattr(payload, one.name) for one in fields(payload)}
    return None


def html_table(rows: Iterable[Sequence[Any]], head: Sequence[str] = ()) -> str:
    """Rows of values as HTML. A text is shown without its quotes, everything else as its ``repr``.

    >>> html_table([["<b>", 1]], ["word", "n"])
    '<table><thead><tr><th>word</th><th>n</th></tr></thead><tbody><tr><td>&lt;b&gt;</td><td>1</td></tr></tbody></table>'
    """
    header = "".join(f"<th>{_cell(name)}</th>" for name in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows
    )
    return (
        f"<table>{f'<thead><tr>{header}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"
    )


def _cell(value: Any) -> str:
    text = shortened(value, _CHARACTERS_MAX)
    if type(value) is str and len(value) <= _CHARACTERS_MAX and value.isprintable():
        text = value
    return html.escape(text)


def facts_table(facts: Mapping[str, Any]) -> str:
    """Names and values, one below the other."""
    return html_table(list(facts.items()))


class Display:
    """Shows a value in a notebook and keeps it up to date while it changes, in a thread of its own."""

    def __init__(self, shown: Callable[[], str], is_active: Callable[[], bool]) -> None:
        self._shown = shown
        self._is_active = is_active
        self._over = threading.Event()

    def begin(self) -> None:
        shows: Any = import_module("IPython.display")  # it has no types
        handle = shows.display(shows.HTML(self._shown()), display_id=True)

        def refresh() -> None:
            for _ in range(REFRESHES_MAX):
                if self._over.wait(REFRESH_SECONDS):
                    return
                is_active = self._is_active()  # before showing, so that the end is shown too
                handle.update(shows.HTML(self._shown()))
                if not is_active:
                    return

        # Without a display, in IPython's terminal, there is nothing to update.
        if handle is not None and self._is_active():
            threading.Thread(target=refresh, name="emberflow display", daemon=True).start()

    def end(self) -> None:
        """Stop refreshing: the same value is shown elsewhere now."""
        self._over.set()
