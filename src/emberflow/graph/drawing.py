"""Drawings of a graph: as text, as Mermaid and as Graphviz DOT. Pure functions, but for `svg`.

All three show the same things with the same words:

- steps in the order in which payloads pass them, each after what it reads;
- a composed operator as a scope around the steps it is made of: ``reduce/group`` is the step
  ``group`` within ``reduce``;
- the user's functions, the windows of groupings, the partitions of sinks;
- the key of an input, because only keyed inputs cross the network;
- the inputs that close a cycle, because state drifts there. They are `Graph.back_edges`, unless a
  cycle leaves a scope and comes back into it: then they are those that lead back in the drawing.

Names and functions come from the user and may hold any character: whatever goes into a form is
escaped for it in one place, and ids are made of names, so that a step keeps its id, and a drawing in
a repository its lines, when other steps come and go.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from emberflow.errors import EmberflowError
from emberflow.graph.nodes import Broadcast, Front, Graph, Group, Input, Key, Map, Node, Sink
from emberflow.graph.transactions import OUR_KEYS, Access, Close
from emberflow.values.functions import UserFunction, Where, described, name_of


class DrawingError(EmberflowError):
    """A picture cannot be made here: something is not installed, or its file cannot be written."""


def text(graph: Graph) -> str:
    """The flow as text: each step with its functions, and under it what it reads."""
    outline, functions = _outline(graph), _functions(graph)
    names = {node.name for node in graph.nodes if not isinstance(node, Front)}
    back_edges = _back_edges(graph, outline)
    printed: set[int] = set()

    def reference(node: Node) -> str:
        ambiguous = isinstance(node, Front) and node.name in names
        return _printable(f"front {node.name}" if ambiguous else node.name)

    def read(node: Node, number: int, source: Input) -> str:
        origin = graph.nodes[source.node]
        key = f" by {_printable(_key_name(source.key, described))}" if source.key else ""
        if (node.id, number) in back_edges:
            return f"  <~ {reference(origin)}{key} (cycle)"
        return f"  <- {reference(origin)}{key}{'' if origin.id in printed else ' (below)'}"

    def step(node: Node) -> list[str]:
        details = ", ".join([*_figures(node, copies=True), *map(str, functions[node.id])])
        title = " ".join(_title(graph, node))
        lines = [f"{title}: {_printable(details)}" if details else title]
        lines += [read(node, number, source) for number, source in enumerate(node.inputs)]
        printed.add(node.id)
        return lines

    def opening(scope: _Scope) -> str:
        return f"{_printable(scope.path[-1])}/ ({_printable(str(scope.where))})"

    steps = _nested(outline, step, opening, closing=None)
    return "\n".join([f"flow {_printable(graph.flow)}", *steps])


def mermaid(graph: Graph) -> str:
    """The flow as a Mermaid flowchart, for pages that draw it: GitHub, GitLab, MkDocs ..."""
    outline, ids, functions = _outline(graph), _ids(graph), _functions(graph)

    def step(node: Node) -> list[str]:
        left, right = _MERMAID_SHAPES[node.kind]
        label = _mermaid_label(_lines(graph, node, functions[node.id]))
        return [f'{ids[node.id]}{left}"{label}"{right}:::{node.kind}']

    def opening(scope: _Scope) -> str:
        return f'subgraph {ids[scope.path]}["{_mermaid_label([scope.path[-1]])}"]'

    def edge(reader: Node, source: Input, label: list[str], back: bool) -> str:
        arrow = "-.->" if back else "-->"
        words = f'|"{_mermaid_label([", ".join(label)])}"|' if label else ""
        return f"{ids[source.node]} {arrow}{words} {ids[reader.id]}"

    lines = [
        *_nested(outline, step, opening, closing="end"),
        *(f"  {edge(*found)}" for found in _edges(graph, outline)),
        *(
            f"  classDef {kind} {_mermaid_style(colours)}"
            for kind, colours in _COLOURS.items()
            if kind in _CORE_KINDS or any(node.kind == kind for node in graph.nodes)
        ),
    ]
    # JSON's strings are YAML's too.
    title = json.dumps(_printable(graph.flow), ensure_ascii=False)
    return "\n".join(["---", f"title: {title}", "---", "flowchart LR", *lines])


def dot(graph: Graph) -> str:
    """The flow as Graphviz DOT source. A step's tooltip has its functions with file and line."""
    outline, ids, functions = _outline(graph), _ids(graph), _functions(graph)

    def step(node: Node) -> list[str]:
        fill, line = _COLOURS[node.kind]
        lines = _lines(graph, node, functions[node.id])
        label = _dot_label(lines, small=node.kind in ("merge", "broadcast"))
        tooltip = _dot_string("\n".join([str(node), *map(str, functions[node.id])]))
        looks = f'{_DOT_SHAPES[node.kind]} fillcolor="{fill}" color="{line}"'
        return [f"{ids[node.id]} [label={label} tooltip={tooltip} {looks}]"]

    def opening(scope: _Scope) -> str:
        # Graphviz draws a box around subgraphs whose name begins so.
        label = _dot_string(scope.path[-1])
        tooltip = _dot_string(f"{'/'.join(scope.path)} ({scope.where})")
        return f"subgraph cluster_{ids[scope.path]} {{ label={label} {_DOT_SCOPE} tooltip={tooltip}"

    def edge(reader: Node, source: Input, label: list[str], back: bool) -> str:
        # The space keeps the words off the line.
        words = f"label={_dot_string(' ' + ', '.join(label))} " if label else ""
        looks = _DOT_BACK if back else _DOT_FORTH
        return f"{ids[source.node]} -> {ids[reader.id]} [{words}{looks}]"

    return "\n".join(
        [
            f"digraph {_dot_string(graph.flow)} {{",
            f"  graph [label={_dot_string(graph.flow)} {_DOT_GRAPH}]",
            f"  node [{_DOT_NODE}]",
            f"  edge [{_DOT_EDGE}]",
            *_nested(outline, step, opening, closing="}"),
            *(f"  {edge(*found)}" for found in _edges(graph, outline)),
            "}",
        ]
    )


def svg(graph: Graph, path: str | Path) -> None:
    """Write the flow as an SVG picture. Raises `DrawingError` where Graphviz is missing."""
    try:
        import graphviz
    except ImportError as error:
        raise DrawingError(
            "an SVG is drawn through the Python package 'graphviz', which is not installed. "
            "Install it with: pip install 'emberflow[graph]'"
        ) from error
    try:
        picture = graphviz.Source(dot(graph)).pipe(format="svg")
    except graphviz.ExecutableNotFound as error:
        raise DrawingError(
            "an SVG is drawn by the program 'dot' of Graphviz, which is not on the PATH. "
            "Install it with: apt-get install graphviz (Debian, Ubuntu), brew install graphviz "
            "(macOS), or from https://graphviz.org/download"
        ) from error
    except graphviz.CalledProcessError as error:
        raise DrawingError(f"the program 'dot' of Graphviz failed: {error}") from error
    try:
        Path(path).write_bytes(picture)
    except OSError as error:
        raise DrawingError(
            f"cannot write the picture to {str(path)!r}: {error.strerror}. "
            f"Give the path of a file in a folder that exists and can be written to."
        ) from error


# What there is to say of a step, whatever the form.

_MODES = {"one": "map", "many": "flat_map", "keep": "filter"}


def _title(graph: Graph, node: Node) -> list[str]:
    """Kind and name within the scope; a name made of the kind (``map-2``) says both."""
    kind = _MODES[node.mode] if isinstance(node, Map) else node.kind
    depth = len(_scope_path(graph, node))
    name = node.name if isinstance(node, Front | Sink) else "/".join(node.name.split("/")[depth:])
    made_of_kind = re.fullmatch(rf"{kind}(-\d+)?", name) and not isinstance(node, Front | Sink)
    return [_printable(name)] if made_of_kind else [kind, _printable(name)]


def _figures(node: Node, *, copies: bool) -> list[str]:
    if isinstance(node, Group):
        return [f"window {node.window}"]
    if isinstance(node, Sink) and node.partitions > 1:
        return [f"{node.partitions} partitions"]
    if isinstance(node, Broadcast) and copies:
        return [f"{node.copies} copies"]
    if isinstance(node, Map) and node.timed:
        return ["with time"]
    if isinstance(node, Access):
        return [f"state {node.state}"]
    return []


def _functions(graph: Graph) -> list[list[UserFunction]]:
    """The user's functions for each node.

    Those that an operator was given are named by several of its steps, so that errors can tell who
    is to blame; they are shown in the first, which calls them. Keys and the functions of plain maps
    are called wherever they are named.
    """
    shown: list[list[UserFunction]] = []
    seen: set[tuple[str, str, int]] = set()
    for node in graph.nodes:
        given = node.given if isinstance(node, Map | Access | Close) else ()
        if isinstance(node, Access):
            given = (node.by.given, *given)
        scope = "/".join(_scope_path(graph, node)[:1]) or node.name
        marks = [(scope, function.role, id(function.given)) for function in given]
        shown.append(
            [
                function
                for function, mark in zip(given, marks, strict=True)
                if function.role in ("", "key") or not isinstance(node, Map) or mark not in seen
            ]
        )
        seen.update(marks)
    return shown


def _lines(graph: Graph, node: Node, functions: Iterable[UserFunction]) -> list[str]:
    """The label of a step in a picture: its title, then what it does, in short."""
    title = " ".join(_title(graph, node))
    if _is_fan_out(graph, node):
        title = "fan-out"  # of what, the picture shows
    names = [
        f"{function.role}={name_of(function.given)}" if function.role else name_of(function.given)
        for function in functions
    ]
    return [title, *_figures(node, copies=False), *names]


def _edges(graph: Graph, outline: _Scope) -> Iterator[tuple[Node, Input, list[str], bool]]:
    """Every input: its reader, itself, the words along its arrow, whether it closes a cycle."""
    back_edges = _back_edges(graph, outline)
    for node in graph.nodes:
        for number, source in enumerate(node.inputs):
            back = (node.id, number) in back_edges
            label = ["cycle"] if back else []
            if source.key:
                label.append(f"by {_key_name(source.key, name_of)}")
            yield node, source, label, back


def _key_name(key: Key, told: Callable[[Callable[..., object]], str]) -> str:
    """A key as the user knows it: their function, or what it stands for where it is ours."""
    return key.given.role if key.given.role in OUR_KEYS else told(key.given.given)


def _printable(words: str) -> str:
    """Without line breaks and other characters that no form could show."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in words
    )


# Scopes: the tree of composed operators, in the order in which payloads pass.

_Path: TypeAlias = tuple[str, ...]
_Child: TypeAlias = "int | _Path"


@dataclass(frozen=True, slots=True)
class _Scope:
    path: _Path
    where: Where
    children: tuple[_Scope | Node, ...]


def _is_fan_out(graph: Graph, node: Node) -> bool:
    """Whether a broadcast was put there because a stream is read several times.

    It is named after its origin, which is a step and not a scope.
    """
    if not isinstance(node, Broadcast):
        return False
    origin = graph.nodes[node.inputs[0].node]
    name = f"front {origin.name}" if isinstance(origin, Front) else origin.name
    return node.name.rpartition("/")[0] == name


def _scope_path(graph: Graph, node: Node) -> _Path:
    if isinstance(node, Front | Sink):
        return ()
    if _is_fan_out(graph, node):
        return _scope_path(graph, graph.nodes[node.inputs[0].node])
    return tuple(node.name.split("/")[:-1])


def _outline(graph: Graph) -> _Scope:
    """The flow as a tree, in which a step comes after what it reads, and scopes stay whole.

    What leaves a scope and comes back into it cannot have both: there the scope stays whole.
    """
    paths = [_scope_path(graph, node) for node in graph.nodes]
    ranks: dict[_Child, tuple[int, int]] = {}
    children: dict[_Path, set[_Child]] = {(): set()}
    for node, path in zip(graph.nodes, paths, strict=True):
        # As written; a fan-out, which nobody wrote, behind its origin.
        rank = (node.inputs[0].node, 1) if _is_fan_out(graph, node) else (node.id, 0)
        ranks[node.id] = rank
        children.setdefault(path, set()).add(node.id)
        for depth in range(len(path), 0, -1):
            children.setdefault(path[: depth - 1], set()).add(path[:depth])
            ranks[path[:depth]] = min(rank, ranks.get(path[:depth], rank))

    before: dict[_Child, set[_Child]] = {child: set() for child in ranks}
    for node in graph.nodes:
        for number, source in enumerate(node.inputs):
            if (node.id, number) not in graph.back_edges:
                first, then = _where_they_part(paths, source.node, node.id)
                before[then].add(first)

    def scope(path: _Path) -> _Scope:
        ordered = _ordered(sorted(children[path], key=ranks.__getitem__), before)
        return _Scope(
            path,
            next(node.where for node in graph.nodes if paths[node.id][: len(path)] == path),
            tuple(scope(c) if isinstance(c, tuple) else graph.nodes[c] for c in ordered),
        )

    return scope(())


def _where_they_part(paths: list[_Path], one: int, other: int) -> tuple[_Child, _Child]:
    """The ancestors of two nodes, or they themselves, that are children of one scope."""
    a, b = paths[one], paths[other]
    depth = 0
    while depth < min(len(a), len(b)) and a[depth] == b[depth]:
        depth += 1
    return (
        a[: depth + 1] if depth < len(a) else one,
        b[: depth + 1] if depth < len(b) else other,
    )


def _ordered(children: list[_Child], before: dict[_Child, set[_Child]]) -> Iterator[_Child]:
    """Each after what is before it, otherwise as they are."""
    waiting = list(children)
    done: set[_Child] = set()
    while waiting:
        child = next((child for child in waiting if before[child] <= done), waiting[0])
        waiting.remove(child)
        done.add(child)
        yield child


def _back_edges(graph: Graph, outline: _Scope) -> set[tuple[int, int]]:
    """The inputs ``(node, input)`` that close a cycle, as the outline has it."""
    place = {node: number for number, node in enumerate(_flattened(outline))}
    return {
        (node.id, number)
        for node in graph.nodes
        for number, source in enumerate(node.inputs)
        if place[source.node] > place[node.id] and _leads_to(graph, node.id, source.node)
    }


def _flattened(scope: _Scope) -> Iterator[int]:
    for child in scope.children:
        if isinstance(child, _Scope):
            yield from _flattened(child)
        else:
            yield child.id


def _leads_to(graph: Graph, start: int, end: int) -> bool:
    reached, ahead = {start}, [start]
    while ahead:
        for reader, _ in graph.readers[ahead.pop()]:
            if reader not in reached:
                reached.add(reader)
                ahead.append(reader)
    return end in reached


def _nested(
    scope: _Scope,
    step: Callable[[Node], Iterable[str]],
    opening: Callable[[_Scope], str],
    *,
    closing: str | None,
) -> Iterator[str]:
    """The lines of a tree, indented under the line that opens each scope."""
    for child in scope.children:
        if isinstance(child, _Scope):
            yield f"  {opening(child)}"
            for line in _nested(child, step, opening, closing=closing):
                yield f"  {line}"
            if closing is not None:
                yield f"  {closing}"
        else:
            for line in step(child):
                yield f"  {line}"


def _ids(graph: Graph) -> dict[int | _Path, str]:
    """Names that both Mermaid and Graphviz take as they are, for nodes and for scopes.

    They begin with a kind, so none is a reserved word.
    """
    taken: dict[str, int | _Path] = {}

    def add(key: int | _Path, kind: str, name: str) -> None:
        plain = f"{kind}_{re.sub(r'[^A-Za-z0-9]+', '_', name)}"
        given, number = plain, 1
        while taken.setdefault(given, key) != key:
            number += 1
            given = f"{plain}_{number}"

    for node in graph.nodes:
        add(node.id, node.kind, node.name)
    for node in graph.nodes:
        path = _scope_path(graph, node)
        for depth in range(1, len(path) + 1):
            add(path[:depth], "scope", "/".join(path[:depth]))
    return {key: given for given, key in taken.items()}


# Looks. Colours say where payloads come from, where they go and where they are held.

#: Fill and line, dark text on all.
_COLOURS = {
    "front": ("#e6f0fa", "#4f7fb0"),
    "map": ("#ffffff", "#8b929c"),
    "group": ("#fcf1d8", "#bd9433"),
    "merge": ("#f0f1f4", "#8b929c"),
    "broadcast": ("#f0f1f4", "#8b929c"),
    "sink": ("#e5f3e8", "#55935f"),
    "open": ("#f0f1f4", "#8b929c"),
    "read": ("#f5ecf7", "#94679c"),
    "update": ("#f5ecf7", "#94679c"),
    "report": ("#ffffff", "#8b929c"),
    "state": ("#f5ecf7", "#94679c"),
    "close": ("#f0f1f4", "#8b929c"),
}
_CORE_KINDS = ("front", "map", "group", "merge", "broadcast", "sink")
_TEXT = "#23272e"
_MUTED = "#59616c"
_CYCLE = "#b4552d"

_MERMAID_SHAPES = {
    "front": ("([", "])"),
    "map": ("(", ")"),
    "group": ("{{", "}}"),
    "merge": ("[\\", "/]"),
    "broadcast": ("[/", "\\]"),
    "sink": ("[(", ")]"),
    "open": ("[/", "\\]"),
    "read": ("(", ")"),
    "update": ("(", ")"),
    "report": ("(", ")"),
    "state": ("[(", ")]"),
    "close": ("[\\", "/]"),
}


def _mermaid_style(colours: tuple[str, str]) -> str:
    fill, line = colours
    return f"fill:{fill},stroke:{line},color:{_TEXT}"


def _mermaid_label(lines: Iterable[str]) -> str:
    first, *rest = (_mermaid_escaped(_printable(line)) for line in lines)
    # A first character that is no letter could begin a Markdown list.
    first = first if first[0].isalpha() or first[0] == "#" else f"#{ord(first[0])};{first[1:]}"
    return "<br/>".join([first, *rest])


def _mermaid_escaped(words: str) -> str:
    # Whatever Mermaid could take for its own syntax, for HTML or for Markdown is written as a
    # number.
    return "".join(
        character if character.isalnum() or character in " _-./,=()" else f"#{ord(character)};"
        for character in words
    )


# Downwards, because a page is higher than wide and labels are wider than high. Forward edges pull
# their ends into one line, and those that go back do not, so that the way through a flow is straight.
_DOT_GRAPH = (
    f'labelloc=t labeljust=l fontname="Helvetica" fontsize=14 fontcolor="{_TEXT}" rankdir=TB '
    f'nodesep=0.35 ranksep=0.35 pad=0.2 bgcolor=white style="rounded,filled" color="#c9ced6" '
    f'fillcolor="#f8f9fa"'
)
_DOT_SCOPE = f'fontsize=11 fontcolor="{_MUTED}"'
_DOT_NODE = (
    f'style="rounded,filled" fontname="Helvetica" fontsize=11 fontcolor="{_TEXT}" '
    f'margin="0.14,0.07" height=0.4'
)
_DOT_EDGE = f'fontname="Helvetica" fontsize=10 fontcolor="{_MUTED}" color="#7a828e" arrowsize=0.7'
_DOT_FORTH = "weight=8"
_DOT_BACK = f'weight=0 style=dashed color="{_CYCLE}" fontcolor="{_CYCLE}"'
_DOT_SHAPES = {
    "front": "shape=oval",
    "map": "shape=box",
    "group": "shape=hexagon style=filled",
    "merge": "shape=invtrapezium margin=0 height=0.3 width=0.5",
    "broadcast": "shape=trapezium margin=0 height=0.3 width=0.5",
    "sink": "shape=cylinder",
    "open": "shape=trapezium margin=0 height=0.3 width=0.5",
    "read": "shape=box",
    "update": "shape=box",
    "report": "shape=box",
    "state": "shape=cylinder",
    "close": "shape=invtrapezium margin=0 height=0.3 width=0.5",
}


def _dot_string(words: str) -> str:
    # Graphviz reads \N, \G and others as its own, and a lone backslash before the closing quote.
    lines = words.split("\n")
    return '"' + "\\n".join(map(_dot_escaped, lines)) + '"'


def _dot_escaped(words: str) -> str:
    # & too: Graphviz reads HTML's entities in every string.
    return html.escape(_printable(words), quote=False).replace("\\", "\\\\").replace('"', '\\"')


def _dot_label(lines: list[str], *, small: bool) -> str:
    """An HTML-like label: the title, and smaller what the step does."""
    title, *rest = (html.escape(_printable(line)) for line in lines)
    more = "".join(f'<br/><font point-size="9" color="{_MUTED}">{line}</font>' for line in rest)
    return f"<{title}{more}>" if small else f"<<b>{title}</b>{more}>"
