"""The house: folders are rooms, rooms are stacked, and imports point down only."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = "emberflow"
ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / PACKAGE

#: From the bottom. A room may import itself and the rooms before it. A module belongs to the longest
#: name that fits: a package that has rooms of its own lists its loose modules beside them.
ROOMS = [
    "errors",
    "extras",
    "work",
    "native",
    "values",
    "graph",
    "engine.messages",
    "engine.progress",
    "engine.cuts",
    "engine.loops",
    "engine.machines",
    "engine.layout",
    "engine.paths",
    "engine.queries",
    "engine.speculation",
    "engine.interface",
    "engine.worker",
    "engine.arrival",
    "engine",
    "checkpoint.errors",
    "checkpoint.hdfs",
    "checkpoint.objects",
    "checkpoint.chains",
    "checkpoint.files",
    "checkpoint.ownership",
    "checkpoint.seals",
    "checkpoint.ranges",
    "checkpoint.logs",
    "checkpoint.cuts",
    "checkpoint.lease",
    "checkpoint",
    "dsl.operators.reduce",
    "dsl.operators.aggregates",
    "dsl.operators.windows",
    "dsl.operators.joins",
    "dsl.operators.changes",
    "dsl.operators",
    "dsl",
    "rows",
    "kafka",
    "fronts",
    "sinks",
    "runners.bars",
    "runners.interpreter",
    "runners.notebook",
    "runners.json_values",
    "runners.diversion",
    "runners.elements",
    "runners.served",
    "runners.history",
    "runners.sequential",
    "runners.reference",
    "runners.questions",
    "runners.playback",
    "runners.simulation",
    "runners.verify.functions",
    "runners.verify.processes",
    "runners.verify",
    "runners.batch.failures",
    "runners.batch.shuffle",
    "runners.batch.plan",
    "runners.batch.passes",
    "runners.batch.runner",
    "runners.batch.backfill",
    "runners.batch.front_logs",
    "runners.batch",
    "runners.comparison",
    "runners.live.listener",
    "runners.live.mirror",
    "runners.live.observation",
    "runners.live.balance",
    "runners.live.wire",
    "runners.live.cold",
    "runners.live.worker",
    "runners.live.driver",
    "runners.live.arrival",
    "runners.live.processes",
    "runners.live.life",
    "runners.live.rescale",
    "runners.live.lives",
    "runners.live.supervisor",
    "runners.live.elastic",
    "runners.live.shadow",
    "runners.live.serving",
    "runners.live.web",
    "runners.live.query",
    "runners.live.builder",
    "runners.live",
    "runners",
    "guarantees",
    "datasource",
    "testing",
    "api",
    "__init__",
    "commands.session",
    "commands.diagnosis",
    "commands.display",
    "commands.views",
    "commands",
    "cli",
    "__main__",
]
LEVEL = {room: level for level, room in enumerate(ROOMS)}

#: A stream has methods that call operators, and operators take streams: for annotations alone.
ONLY_FOR_TYPES = {(room, "dsl") for room in ROOMS if room.startswith("dsl.operators")}

#: More files than this hide each other: a room that grows past it wants shelves.
FILES_MAX = 12

#: The machines of the engine are pure: what they know, they were told by an event.
PURE = "engine"
IMPURE = {
    "asyncio",
    "os",
    "pathlib",
    "pyspark",
    "random",
    "socket",
    "subprocess",
    "threading",
    "time",
    "zmq",
}

FOR_TYPES = {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


class Import(NamedTuple):
    target: str  # the full dotted name; for `from a import b`, a.b
    line: int
    for_types: bool  # under `if TYPE_CHECKING`


def imports(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[Import]:
    """Every import of a module, also those inside of functions."""

    def visit(node: ast.AST, for_types: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, for_types)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, module, is_package=is_package)
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, for_types)
        elif isinstance(node, ast.If) and ast.unparse(node.test) in FOR_TYPES:
            for child in node.body:
                yield from visit(child, True)
            for child in node.orelse:
                yield from visit(child, for_types)
        else:
            for child in ast.iter_child_nodes(node):
                yield from visit(child, for_types)

    return visit(tree, False)


def absolute(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + is_package]
    return ".".join(parts + ([node.module] if node.module else []))


def room_of(name: str) -> str | None:
    """The room that a dotted name is in; None if it is another package's, '' if nobody placed it."""
    package, *rest = name.split(".")
    if package != PACKAGE:
        return None
    for end in range(len(rest), 0, -1):
        room = ".".join(rest[:end])
        if room in LEVEL:
            return room
    if rest and ((SOURCE / rest[0]).is_dir() or (SOURCE / f"{rest[0]}.py").exists()):
        return ""
    # `from emberflow import Flow` takes a name, not a module: that is the package itself.
    return "__init__"


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What is wrong with the imports of one module, in words."""
    own = "__init__" if module == PACKAGE else room_of(module)
    if not own or (own == "__init__" and module != PACKAGE):
        return [f"{module}: place it in the list ROOMS of tests/test_layers.py"]
    found = []
    for target, line, for_types in imports(ast.parse(source), module, is_package=is_package):
        where = f"{module}, line {line}: "
        other = room_of(target)
        if other is None:
            if own.partition(".")[0] == PURE and target.split(".")[0] in IMPURE:
                found.append(f"{where}{PURE} is pure, and {target} is not")
        elif not other:
            found.append(f"{where}place {target} in the list ROOMS of tests/test_layers.py")
        elif LEVEL[other] > LEVEL[own]:
            if (own, other) not in ONLY_FOR_TYPES:
                found.append(f"{where}{own} imports {target}, of the room {other} above it")
            elif not for_types:
                found.append(f"{where}{own} may import {target} only under `if TYPE_CHECKING`")
    return found


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(SOURCE.rglob("*.py"))


def test_imports_point_down() -> None:
    found = [
        violation
        for path in FILES
        for violation in violations(
            path.read_text(encoding="utf-8"),
            module_name(path),
            is_package=path.name == "__init__.py",
        )
    ]
    assert not found, "\n".join(found)


def test_imports_make_no_circle() -> None:
    modules = {module_name(path): path for path in FILES}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        graph[module] = set()
        for target, _, for_types in imports(tree, module, is_package=path.name == "__init__.py"):
            # `from emberflow.values.item import At` is an import of emberflow.values.item.
            name = target if target in modules else target.rpartition(".")[0]
            if name in modules and name != module and not for_types:
                graph[module].add(name)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_every_room_is_there_and_has_shelves_before_it_is_full() -> None:
    for room in ROOMS:
        path = SOURCE / room.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__init__.py").exists(), room
    for folder in {path.parent for path in FILES}:
        files = [path for path in folder.iterdir() if path.suffix in {".py", ".c", ".h"}]
        assert len(files) <= FILES_MAX, f"{folder} has {len(files)} files: give it rooms"


def test_the_architecture_names_every_room_and_nothing_that_is_not_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|\.py))`", text))
    lost = {name for name in named if not (SOURCE / name).exists() and not (ROOT / name).exists()}
    assert not lost, f"ARCHITECTURE.md names what is not there: {sorted(lost)}"
    rooms = {
        f"{path.parent.relative_to(SOURCE).as_posix()}/"
        for path in FILES
        if path.name == "__init__.py" and path.parent != SOURCE
    }
    silent = {room for room in rooms if not any(name.startswith(room) for name in named)}
    assert not silent, f"ARCHITECTURE.md does not say what is in {sorted(silent)}"


@pytest.mark.parametrize(
    ("source", "module", "complaint"),
    [
        ("from emberflow.dsl.flow import Flow", "emberflow.graph.nodes", "of the room dsl above"),
        ("import emberflow.cli", "emberflow.runners.batch", "of the room cli above"),
        ("from emberflow import Flow", "emberflow.values.item", "of the room __init__ above"),
        ("from ..worker import worker", "emberflow.engine.cuts.cut", "room engine.worker above"),
        ("def f():\n    from emberflow import dsl", "emberflow.graph.nodes", "line 2: graph"),
        (
            "from ..flow import Flow",
            "emberflow.dsl.operators.reduce",
            "only under `if TYPE_CHECKING`",
        ),
        (
            "if not TYPE_CHECKING:\n    from ..flow import Flow",
            "emberflow.dsl.operators.reduce",
            "only under `if TYPE_CHECKING`",
        ),
        (
            "from emberflow.runners.live.worker.feed import Feed",
            "emberflow.runners.batch.backfill.handover",
            "of the room runners.live.worker above",
        ),
        ("import os.path", "emberflow.engine.layout", "engine is pure, and os.path is not"),
        ("from time import time", "emberflow.engine.progress.acker", "and time.time is not"),
        ("", "emberflow.novelty", "emberflow.novelty: place it in the list ROOMS"),
    ],
)
def test_the_check_catches(source: str, module: str, complaint: str) -> None:
    (found,) = violations(source, module)
    assert complaint in found


@pytest.mark.parametrize(
    ("source", "module", "is_package"),
    [
        ("from emberflow.graph.nodes import Graph", "emberflow.dsl.flow", False),
        ("from .operators import reduce", "emberflow.dsl.flow", False),
        ("from .runner import batch", "emberflow.runners.batch", True),
        ("import time, os", "emberflow.runners.live.wire.sockets", False),
        (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..flow import Stream",
            "emberflow.dsl.operators.reduce",
            False,
        ),
    ],
)
def test_the_check_allows(source: str, module: str, is_package: bool) -> None:
    assert violations(source, module, is_package=is_package) == []
