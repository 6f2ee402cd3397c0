"""Where a graph calls the user's functions, and how to replace them.

A node may call a function itself (`map`), or through a callable of ours that holds it, at any
depth: ``Combined(first, combine)``, a closure of `fold`, a step of a window. A *site* is one
function of the user at one node. `watched` builds the same graph with another callable at every
site, so that calls can be recorded, checked or memoised; runners cannot tell the difference.

It copies the holders by pickling them: pickle's persistent ids leave the user's functions out, and
the replacements are put in when unpickling. So a holder needs no support for this beyond being
picklable, which every graph must be anyway.

A graph has the same sites in the same order in every process.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import cloudpickle

from emberflow.dsl.versions import told
from emberflow.graph.nodes import Graph, Input, Map, Node, Reduction
from emberflow.graph.transactions import Access, Check, Close
from emberflow.graph.versions import CarryPlan, written
from emberflow.runners.verify.functions.tried import Tried, TriedVersion, TriedVersions
from emberflow.values.functions import UserFunction, code_of

#: The node of a function that no node calls.
_NO_NODE = -1
_PACKAGE = str(Path(__file__).parents[3])
_JOINS = "emberflow.dsl.operators.joins."

#: Results of a `flat_map` that are not iterated here: collections of payloads, or values that it
#: refuses.
_AS_IT_IS = (list, tuple, str, bytes, bytearray, set, frozenset, dict)


@dataclass(frozen=True, slots=True)
class Site:
    """A function of the user, and the node that calls it."""

    index: int
    node: int
    step: str
    given: UserFunction
    #: How the node calls it: the mode of the map, or "part" if it is held by a callable of ours.
    mode: str
    #: Whether its first argument is an accumulator.
    accumulates: bool
    #: The version whose node calls it, or which it migrates state to: then there is no node.
    version: int = 0

    @property
    def function(self) -> Callable[..., Any]:
        return self.given.given

    @property
    def is_key(self) -> bool:
        return self.given.role == "key"

    def call(self, arguments: tuple[Any, ...]) -> Any:
        """The result as the node will see it: a generator has been run to its end."""
        result = self.function(*arguments)
        if (
            self.mode == "many"
            and isinstance(result, Iterable)
            and not isinstance(result, _AS_IT_IS)
        ):
            return list(result)
        return bool(result) if self.mode == "keep" else result


@dataclass(frozen=True, slots=True)
class Raised:
    """Stands for a result when a call raised. Only the type counts: messages may contain addresses."""

    kind: str
    message: str = field(compare=False)

    def __repr__(self) -> str:
        return f"raised {self.kind}: {self.message}"


def attempt(site: Site, arguments: tuple[Any, ...]) -> Any:
    """The result of a call, or `Raised`."""
    try:
        return site.call(arguments)
    except Exception as error:
        return raised(error)


def raised(error: Exception) -> Raised:
    return Raised(type(error).__qualname__, str(error))


#: Returns the callable that replaces the function of a site.
Watch: TypeAlias = Callable[[Site], Callable[..., Any]]


def sites_of(tried: Tried) -> tuple[Site, ...]:
    """All sites, in graph order; of versions, those of one after the other."""
    if not isinstance(tried, TriedVersions):
        return _sites_of_graph(tried)
    found: list[Site] = []
    for number, version in enumerate(tried.versions):
        begins = f", from {told(version.at)} on" if number else ""
        for site in (*_sites_of_graph(version.graph), *_migrations(version.plan)):
            step = f"{site.step}{begins}"
            found.append(replace(site, index=len(found), step=step, version=number))
    return tuple(found)


def _migrations(plan: CarryPlan) -> Iterator[Site]:
    """The functions that migrate state."""
    by_function = {
        id(carried.migrate): carried for carried in plan.carried.values() if carried.migrate
    }
    for carried in by_function.values():
        assert carried.migrate is not None
        given = UserFunction("migrate", carried.migrate)
        step = f"migration to {written(carried.new)!r}"
        yield Site(0, _NO_NODE, step, given, "part", accumulates=False)


def _sites_of_graph(graph: Graph) -> tuple[Site, ...]:
    found: list[Site] = []
    for node in graph.nodes:
        seen: set[int] = set()
        for holder, given, mode in _holders(node):
            for function in given:
                identity = id(function.given)
                if identity in seen or _is_ours(function.given):
                    continue
                if not _Transplant({identity: None}).hits(holder):
                    continue
                seen.add(identity)
                directly = mode if holder is function.given else "part"
                found.append(
                    Site(
                        index=len(found),
                        node=node.id,
                        step=str(node),
                        given=function,
                        mode=directly,
                        accumulates=_accumulates(node, function),
                    )
                )
    return tuple(found)


_T = TypeVar("_T", bound=Tried)


def watched(tried: _T, sites: Iterable[Site], watch: Watch) -> _T:
    """The same, in which each site calls the callable that `watch` returns for it."""
    if not isinstance(tried, TriedVersions):
        return _watched_graph(tried, sites, watch)  # type: ignore[return-value]
    of_version: dict[int, list[Site]] = {}
    for site in sites:
        of_version.setdefault(site.version, []).append(site)
    return TriedVersions(  # type: ignore[return-value]
        tuple(
            _watched_version(version, of_version.get(number, []), watch)
            for number, version in enumerate(tried.versions)
        )
    )


def _watched_version(version: TriedVersion, sites: list[Site], watch: Watch) -> TriedVersion:
    of_nodes = [site for site in sites if site.node != _NO_NODE]
    migrations = {id(site.function): watch(site) for site in sites if site.node == _NO_NODE}
    carried = {
        old: each._replace(migrate=migrations.get(id(each.migrate), each.migrate))
        for old, each in version.plan.carried.items()
    }
    graph = _watched_graph(version.graph, of_nodes, watch)
    return TriedVersion(version.at, graph, replace(version.plan, carried=carried))


def _watched_graph(graph: Graph, sites: Iterable[Site], watch: Watch) -> Graph:
    by_node: dict[int, dict[int, Callable[..., Any]]] = {node.id: {} for node in graph.nodes}
    for site in sites:
        by_node[site.node][id(site.function)] = watch(site)
    return Graph(
        graph.flow,
        tuple(_watched_node(node, _Transplant(by_node[node.id])) for node in graph.nodes),
        tuple(_watched_reduction(reduction, by_node) for reduction in graph.reductions),
    )


def _watched_node(node: Node, transplant: _Transplant) -> Node:
    def watched_input(source: Input) -> Input:
        if source.key is None:
            return source
        key = replace(source.key, function=transplant.of(source.key.function))
        return replace(source, key=key)

    def watched_check(check: Check) -> Check:
        return replace(check, function=transplant.of(check.function))

    node = replace(node, inputs=tuple(map(watched_input, node.inputs)))
    if isinstance(node, Map):
        node = replace(node, function=transplant.of(node.function))
    elif isinstance(node, Access):
        node = replace(
            node,
            by=replace(node.by, function=transplant.of(node.by.function)),
            function=node.function and transplant.of(node.function),
            check=node.check and watched_check(node.check),
        )
    elif isinstance(node, Close):
        node = replace(node, requires=tuple(map(watched_check, node.requires)))
    return node


def _watched_reduction(
    reduction: Reduction, by_node: dict[int, dict[int, Callable[..., Any]]]
) -> Reduction:
    """Its functions belong to its nodes: int fields are nodes, callable fields are functions."""
    held = {each.name: getattr(reduction, each.name) for each in fields(reduction)}
    table: dict[int, Callable[..., Any]] = {}
    for value in held.values():
        if isinstance(value, int) and not isinstance(value, bool):
            table |= by_node[value]
    transplant = _Transplant(table)
    changed = {name: transplant.of(value) for name, value in held.items() if callable(value)}
    return replace(reduction, **changed)


def _holders(node: Node) -> Iterator[tuple[Callable[..., Any], tuple[UserFunction, ...], str]]:
    for source in node.inputs:
        if source.key is not None:
            yield source.key.function, (source.key.given,), "key"
    if isinstance(node, Map):
        yield node.function, node.given, node.mode
    elif isinstance(node, Access):
        yield node.by.function, (node.by.given,), "key"
        for function in node.given:
            yield function.given, (function,), "part"
    elif isinstance(node, Close):
        for function in node.given:
            yield function.given, (function,), "part"


def _accumulates(node: Node, given: UserFunction) -> bool:
    # A join also has a combine, but of two payloads: the map calls it, or the step of its reduction does.
    function = getattr(node, "function", None)
    callers = (function, getattr(function, "combine", None))
    of_join = any(type(each).__module__.startswith(_JOINS) for each in callers)
    role = given.role.rpartition(".")[2]  # of several aggregates, each has a field
    return role == "update" or (role == "combine" and not of_join)


def _is_ours(function: Callable[..., Any]) -> bool:
    code = code_of(function)
    return code is not None and code.co_filename.startswith(_PACKAGE)


class _Transplant:
    """Copies callables and replaces the functions whose ids are in the table."""

    def __init__(self, table: dict[int, Any]) -> None:
        self._table = table

    def of(self, holder: Any) -> Any:
        if id(holder) in self._table:
            return self._table[id(holder)]
        if not self._table or not self.hits(holder):
            return holder
        data = io.BytesIO()
        _FunctionPickler(data, self._table).dump(holder)
        data.seek(0)
        return _FunctionUnpickler(data, self._table).load()

    def hits(self, holder: Any) -> bool:
        if id(holder) in self._table:
            return True
        pickler = _FunctionPickler(io.BytesIO(), self._table)
        pickler.dump(holder)
        return pickler.hit


class _FunctionPickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, table: dict[int, Any]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._table = table
        self.hit = False

    def persistent_id(self, thing: Any) -> int | None:
        if id(thing) not in self._table:
            return None
        self.hit = True
        return id(thing)


class _FunctionUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, table: dict[int, Any]) -> None:
        super().__init__(file)
        self._table = table

    def persistent_load(self, identity: Any) -> Any:
        return self._table[identity]
