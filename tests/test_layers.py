"""Folders are layers: imports within the package point down only, and never in a circle."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = "emberflow"
SOURCE = Path(__file__).parents[1] / "src" / PACKAGE

# From the bottom. A module may import its own layer and those before it.
LAYERS = [
    {"errors", "native", "values"},
    {"graph"},
    {"engine"},
    {"checkpoint"},
    {"dsl"},
    {"rows", "runners", "fronts", "sinks", "kafka", "guarantees"},
    {"datasource", "testing"},
    {"api", "cli", "commands", "__init__", "__main__"},
]

# The machines of the engine are pure: what they know, they were told by an event.
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
PURE = {"engine"}

FOR_TYPES = {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


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


def part_of(name: str) -> str | None:
    """The row of the table that a dotted name belongs to; None if it is another package's."""
    package, _, rest = name.partition(".")
    if package != PACKAGE:
        return None
    first = rest.partition(".")[0]
    # `from emberflow import Flow` takes a name, not a module: that is the package itself.
    known = first in LEVEL or (SOURCE / first).is_dir() or (SOURCE / f"{first}.py").exists()
    return first if first and known else "__init__"


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What is wrong with the imports of one module, in words."""
    own = "__init__" if module == PACKAGE else module.split(".")[1]
    if own not in LEVEL:
        return [f"{module}: place {own!r} in the table LAYERS of tests/test_layers.py"]
    found = []
    for target, line, _ in imports(ast.parse(source), module, is_package=is_package):
        where = f"{module}, line {line}: "
        other = part_of(target)
        if other is None:
            if own in PURE and target.split(".")[0] in IMPURE:
                found.append(f"{where}{own} is pure, and {target} is not")
        elif other not in LEVEL:
            found.append(f"{where}place {other!r} in the table LAYERS of tests/test_layers.py")
        elif LEVEL[other] > LEVEL[own]:
            found.append(f"{where}{own} (layer {LEVEL[own]}) imports {target} ({LEVEL[other]})")
    return found


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_point_down(path: Path) -> None:
    found = violations(
        path.read_text(encoding="utf-8"), module_name(path), is_package=path.name == "__init__.py"
    )
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


@pytest.mark.parametrize(
    ("source", "module", "complaint"),
    [
        ("from emberflow.dsl.flow import Flow", "emberflow.graph.nodes", "graph (layer 1) imports"),
        ("import emberflow.cli", "emberflow.runners.batch", "runners (layer 5) imports"),
        ("from emberflow import Flow", "emberflow.values.item", "(layer 0) imports emberflow.Flow"),
        ("from ..dsl import Flow", "emberflow.engine.worker", "engine (layer 2) imports"),
        ("import os.path", "emberflow.engine.layout", "engine is pure, and os.path is not"),
        ("", "emberflow.novelty", "place 'novelty' in the table LAYERS"),
    ],
)
def test_the_check_catches(source: str, module: str, complaint: str) -> None:
    (found,) = violations(source, module)
    assert complaint in found
