"""Drawings of a graph: as text, as Mermaid and as Graphviz DOT. Pure functions, but for `svg`.

All three show the same things with the same words:

- steps in the order in which payloads pass them, each after what it reads;
- a composed operator as a scope around the steps it is made of: ``reduce/group`` is the step
  ``group`` within ``reduce``;
- the user's functions, the windows of groupings, the partitions of sinks;
- the key of an input, because only keyed inputs cross the network;
- the inputs that close a cycle, because state drifts there. They are `Graph.back_edges`, unless a
  cycle leaves a scope and comes back into it: then they are those that point back in the drawing.

Names and functions come from the user and may hold any character, so each format escapes its text in
one place. Ids are made of names: a step keeps its id, and a drawing in a repository its lines, when
other steps are added or removed.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from emberflow.errors import EmberflowError
from emberflow.extras import need
from emberflow.graph.nodes import Broadcast, Front, Graph, Group, Input, Key, Map, Node, Sink
from emberflow.graph.transactions import OUR_KEYS, Access, Close
from emberflow.values.functions import UserFunction, Where, described, name_of


class DrawingError(EmberflowError):
    """A picture cannot be made here: something is not installed, or its file cannot be written."""


def text(graph: Graph, by_range: Container[int] = ()) -> str:
    """The flow as text: each step with its functions, and under it what it reads. ``by_range`` are the sinks of
    which a range of keys does not wait for the others."""
    outline, functions = _outline(graph), _functions(graph)
    names = {node.name for node in graph.nodes if not isinstance(node, Front)}
    back_edges = _back_edges(graph, outline)
    printed: set[int] = set()

    def reference(node: Node) -> str:
        ambiguous = isinstance(node, Front) and node.name in names
        return _printable(f"front {node.name}" if ambiguous else node.name)

    def read(node: Node, number: int, source: Input) -> str:
        origin = graph.nodes[source.node]
        own = source.own_key
        key = f" by {_printable(_key_name(own, described))}" if own else ""
        if (node.id, number) in back_edges:
            return f"  <~ {reference(origin)}{key} (cycle)"
        return f"  <- {reference(origin)}{key}{'' if origin.id in printed else ' (below)'}"

    def step(node: Node) -> list[str]:
        figures = _figures(node, copies=True)
        if node.id in by_range:
            figures.append("no range of keys waits for another")
        details = ", ".join([*figures, *map(str, functions[node.id])])
        title = " ".join(_title(graph, node))
        lines = [f"{title}: {_printable(details)}" if details else title]
        lines += [read(node, number, source) for number, source in enumerate(node.inputs)]
        printed.add(node.id)
        return lines

    def opening(scope: _Scope) -> str:
        return f"{_printable(scope.path[-1])}/ ({_printable(str(scope.where))})"

    steps = _nested(outline, step, opening, closing=None)
    return "\n".join([f"flow {_printable(graph.flow)}", *steps])


#: What a step is, compared with an earlier version of the flow.
Mark: TypeAlias = Literal["added", "changed"]
_MERMAID_MARKS: dict[Mark, str] = {
    "added": "stroke:#2b8a3e,stroke-width:4px",
    "changed": "stroke:#e67700,stroke-width:4px,stroke-dasharray:6 3",
}


def mermaid(graph: Graph, marks: Mapping[int, Mark] | None = None) -> str:
    """The flow as a Mermaid flowchart, for pages that draw it: GitHub, GitLab, MkDocs ...

    ``marks`` are steps to be marked, by their ids.
    """
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
    for mark, style in _MERMAID_MARKS.items():
        marked = [ids[node] for node, own in (marks or {}).items() if own == mark]
        if marked:
            lines += [f"  classDef {mark} {style}", f"  class {','.join(marked)} {mark}"]
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
    """Write the flow as an SVG picture. Raises `DrawingError` where the program ``dot`` is missing."""
    graphviz = need("graphviz", extra="graph", what="drawing an SVG")
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


# The description of a step, in every format.

_MODES = {"one": "map", "many": "flat_map", "keep": "filter"}


def _title(graph: Graph, node: Node) -> list[str]:
    """Kind and name within the scope; just the name if it is made of the kind (``map-2``)."""
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

    Several steps of an operator name its functions, so that errors can blame the right one; a drawing
    shows them in the first step, which calls them. Keys and the functions of plain maps are called
    wherever they are named.
    """
    shown: list[list[UserFunction]] = []
    seen: set[tuple[str, str, int]] = set()
    for node in graph.nodes:
        given = node.given if isinstance(node, Map | Access | Close) else ()
        if isinstance(node, Access):
            given = (node.by.given, *given)
        scope = "/".join(_scope_path(graph, node)[:1]) or node.name
        uses = [(scope, function.role, id(function.given)) for function in given]
        shown.append(
            [
                function
                for function, use in zip(given, uses, strict=True)
                if function.role in ("", "key") or not isinstance(node, Map) or use not in seen
            ]
        )
        seen.update(uses)
    return shown


def _lines(graph: Graph, node: Node, functions: Iterable[UserFunction]) -> list[str]:
    """The label of a step in a picture: its title, figures and functions."""
    title = " ".join(_title(graph, node))
    if _is_fan_out(graph, node):
        title = "fan-out"  # the picture shows its origin
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
            if source.own_key:
                label.append(f"by {_key_name(source.own_key, name_of)}")
            yield node, source, label, back


def _key_name(key: Key, description: Callable[[Callable[..., object]], str]) -> str:
    """A key as the user knows it: their function, or the role of one of ours."""
    return key.given.role if key.given.role in OUR_KEYS else description(key.given.given)


def _printable(words: str) -> str:
    """Text with line breaks and other unprintable characters escaped."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in words
    )


# Scopes: the tree of composed operators, in the order in which payloads pass them.

_Path: TypeAlias = tuple[str, ...]
_Child: TypeAlias = "int | _Path"


@dataclass(frozen=True, slots=True)
class _Scope:
    path: _Path
    where: Where
    children: tuple[_Scope | Node, ...]


def _is_fan_out(graph: Graph, node: Node) -> bool:
    """Whether `graph.assembly` added this broadcast because several steps read a stream.

    Its name begins with that of its origin, which is a step and not a scope.
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
    """The flow as a tree, in which a step comes after the steps it reads, and scopes stay whole.

    A path that leaves a scope and comes back into it cannot have both: then the scope stays whole.
    """
    paths = [_scope_path(graph, node) for node in graph.nodes]
    ranks: dict[_Child, tuple[int, int]] = {}
    children: dict[_Path, set[_Child]] = {(): set()}
    for node, path in zip(graph.nodes, paths, strict=True):
        # In the order of the user's code; a fan-out behind its origin.
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
    """The ancestors of two nodes, or the nodes themselves, that are children of the same scope."""
    a, b = paths[one], paths[other]
    depth = 0
    while depth < min(len(a), len(b)) and a[depth] == b[depth]:
        depth += 1
    return (
        a[: depth + 1] if depth < len(a) else one,
        b[: depth + 1] if depth < len(b) else other,
    )


def _ordered(children: list[_Child], before: dict[_Child, set[_Child]]) -> Iterator[_Child]:
    """A topological order: each child after those in ``before``, otherwise in the given order."""
    waiting = list(children)
    done: set[_Child] = set()
    while waiting:
        child = next((child for child in waiting if before[child] <= done), waiting[0])
        waiting.remove(child)
        done.add(child)
        yield child


def _back_edges(graph: Graph, outline: _Scope) -> set[tuple[int, int]]:
    """The inputs ``(node, input)`` that close a cycle in the order of the outline."""
    rank = {node: number for number, node in enumerate(_flattened(outline))}
    return {
        (node.id, number)
        for node in graph.nodes
        for number, source in enumerate(node.inputs)
        if rank[source.node] > rank[node.id] and _leads_to(graph, node.id, source.node)
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
    """Ids of nodes and scopes that both Mermaid and Graphviz accept unquoted.

    They begin with a kind, so none is a reserved word.
    """
    taken: dict[str, int | _Path] = {}

    def add(key: int | _Path, kind: str, name: str) -> None:
        plain = f"{kind}_{re.sub(r'[^A-Za-z0-9]+', '_', name)}"
        unique, number = plain, 1
        while taken.setdefault(unique, key) != key:
            number += 1
            unique = f"{plain}_{number}"

    for node in graph.nodes:
        add(node.id, node.kind, node.name)
    for node in graph.nodes:
        path = _scope_path(graph, node)
        for depth in range(1, len(path) + 1):
            add(path[:depth], "scope", "/".join(path[:depth]))
    return {key: unique for unique, key in taken.items()}


# Looks. Colours tell fronts, sinks and steps that hold state apart.

#: Fill and line. The text is dark on all of them.
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
    # A first character that is not a letter could begin a Markdown list.
    first = first if first[0].isalpha() or first[0] == "#" else f"#{ord(first[0])};{first[1:]}"
    return "<br/>".join([first, *rest])


def _mermaid_escaped(words: str) -> str:
    # Characters that Mermaid could take for its own syntax, HTML or Markdown become entities.
    return "".join(
        character if character.isalnum() or character in " _-./,=()" else f"#{ord(character)};"
        for character in words
    )


# Top to bottom, because a page is higher than wide and labels are wider than high. Forward edges have
# a weight that aligns their ends and back edges have none, so that the path through a flow is straight.
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
    # Graphviz gives \N, \G and others a meaning, and a lone backslash escapes the closing quote.
    lines = words.split("\n")
    return '"' + "\\n".join(map(_dot_escaped, lines)) + '"'


def _dot_escaped(words: str) -> str:
    # & too: Graphviz reads HTML's entities in every string.
    return html.escape(_printable(words), quote=False).replace("\\", "\\\\").replace('"', '\\"')


def _dot_label(lines: list[str], *, small: bool) -> str:
    """An HTML-like label: the title, and below it the figures and functions in small type."""
    title, *rest = (html.escape(_printable(line)) for line in lines)
    more = "".join(f'<br/><font point-size="9" color="{_MUTED}">{line}</font>' for line in rest)
    return f"<{title}{more}>" if small else f"<<b>{title}</b>{more}>"
