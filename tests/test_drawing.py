"""Drawings: what each format must show, for hand-made and for random flows."""

from __future__ import annotations

import graphlib
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emberflow as ef
from emberflow.graph import drawing
from emberflow.graph.nodes import Front, Graph, Input, Map, Node, Sink
from emberflow.values.functions import UserFunction, Where, described
from tests.effort import examples

Form: TypeAlias = Callable[[Graph], str]
MakesFlow: TypeAlias = Callable[[], ef.Flow]

FORMS = (drawing.text, drawing.mermaid, drawing.dot)

needs_dot = pytest.mark.skipif(
    shutil.which("dot") is None, reason="the program 'dot' of Graphviz is not installed"
)


def word_of(posting: tuple[str, int]) -> str:
    return posting[0]


def start(posting: tuple[str, int]) -> tuple[int, ...]:
    return (posting[1],)


def add(held: tuple[int, ...], posting: tuple[str, int]) -> tuple[int, ...]:
    return (*held, posting[1])


def halves_of(window: tuple[int, ...]) -> list[int]:
    return [number // 2 for number in window]


def halving() -> ef.Flow:
    flow = ef.Flow("halving")
    again = flow.loop()
    numbers = ef.merge(flow.front("numbers"), again).key_by(abs).group(window=1)
    halves = numbers.flat_map(halves_of, name="halves")
    again.close(halves.filter(bool))
    halves.map(str).key_by(len).sink("halves", partitions=4)
    return flow


def postings_of(document: str) -> list[tuple[str, int]]:
    return [(word, len(document)) for word in document.split()]


def index() -> ef.Flow:
    flow = ef.Flow("index")
    postings = flow.front("docs").flat_map(postings_of, name="split")
    lists = postings.key_by(word_of).reduce(first=start, combine=add)
    lists.key_by(len).sink("changes", partitions=4)
    return flow


def minutes() -> ef.Flow:
    """Two cycles, one of them through a scheduled item, and a stream that is read twice."""
    flow = ef.Flow("minutes")
    clicks = flow.front("clicks")
    windows = clicks.key_by(word_of).window(ef.Tumbling(60), emit="close")
    windows.count(name="per minute").sink("minutes")
    clicks.key_by(len).count().sink("totals")
    return flow


def table_in_a_loop() -> ef.Flow:
    """The first front leads into an operator whose other input is reached only through the loop."""
    flow = ef.Flow("table in a loop")
    table = flow.front("table")
    again = flow.loop()
    orders = ef.merge(flow.front("orders"), again, name="entrance")
    enriched = orders.key_by(len).enrich(table.key_by(len), max)
    again.close(enriched.filter(bool, name="unfinished"))
    enriched.sink("done")
    return flow


class TestText:
    def test_reads_like_the_flow(self) -> None:
        assert drawing.text(halving().graph()).splitlines() == [
            "flow halving",
            "  front numbers",
            "  merge",
            "    <- numbers",
            "    <~ filter (cycle)",
            "  group: window 1",
            "    <- merge by abs",
            f"  flat_map halves: {described(halves_of)}",
            "    <- group",
            "  broadcast halves/fan-out: 2 copies",
            "    <- halves",
            "  filter: bool",
            "    <- halves/fan-out",
            "  map: str",
            "    <- halves/fan-out",
            "  sink halves: 4 partitions",
            "    <- map by len",
        ]

    def test_shows_an_operator_as_the_steps_it_is_made_of(self) -> None:
        lines = drawing.text(index().graph()).splitlines()
        where = index().graph().nodes[2].where
        opened = lines.index(f"  reduce/ ({where})")
        assert lines[opened + 1 : opened + 9] == [
            f"    map pair: key={described(word_of)}",
            "      <- split",
            "    merge",
            "      <- reduce/pair",
            "      <~ reduce/broadcast (cycle)",
            "    group: window 2",
            f"      <- reduce/merge by {described(word_of)}",
            f"    flat_map combine: first={described(start)}, combine={described(add)}",
        ]
        assert "    map value" in lines, "first and combine are shown where they are called"
        assert lines[-2:] == ["  sink changes: 4 partitions", "    <- reduce/value by len"]

    def test_is_what_explain_returns(self) -> None:
        assert index().explain() == drawing.text(index().graph())

    def test_scopes_nest(self) -> None:
        lines = drawing.text(minutes().graph()).splitlines()
        outer = next(number for number, line in enumerate(lines) if line.startswith("  count/ ("))
        assert lines[outer + 1].startswith("    reduce/ (")
        assert lines[outer + 2].startswith("      map pair: ")

    def test_shows_a_fan_out_behind_what_is_read_twice(self) -> None:
        lines = drawing.text(minutes().graph()).splitlines()
        assert lines[:4] == [
            "flow minutes",
            "  front clicks",
            "  broadcast front clicks/fan-out: 2 copies",
            "    <- clicks",
        ]

    def test_a_front_and_a_step_of_one_name_are_told_apart(self) -> None:
        flow = ef.Flow("words")
        words = flow.front("words")
        ef.merge(words.map(str.upper, name="words"), flow.front("more")).sink("words")
        assert drawing.text(flow.graph()).splitlines() == [
            "flow words",
            "  front words",
            "  map words: str.upper",
            "    <- front words",
            "  front more",
            "  merge",
            "    <- words",
            "    <- more",
            "  sink words",
            "    <- merge",
        ]

    def test_a_scope_stays_whole_even_where_a_loop_leads_back_into_it(self) -> None:
        lines = drawing.text(table_in_a_loop().graph()).splitlines()
        assert sum(line.startswith("  enrich/ (") for line in lines) == 1
        assert [line.strip() for line in lines if "<~" in line] == [
            "<~ unfinished (cycle)",
            "<~ enrich/broadcast (cycle)",
        ]

    def test_says_where_a_scope_makes_a_step_come_before_what_it_reads(self) -> None:
        # No operator makes such a graph, but one is possible.
        here = Where("tour.py", 1)

        def step(number: int, name: str) -> Node:
            return Map(
                id=number,
                name=name,
                inputs=(Input(number - 1),),
                where=here,
                function=str.upper,
                given=(UserFunction("", str.upper),),
                mode="one",
            )

        graph = Graph(
            "tour",
            (
                Front(id=0, name="a", inputs=(), where=here, index=0),
                step(1, "home/leave"),
                step(2, "abroad"),
                step(3, "home/return"),
                Sink(id=4, name="z", inputs=(Input(3),), where=here),
            ),
        )
        assert drawing.text(graph).splitlines()[2:] == [
            "  home/ (tour.py:1)",
            "    map leave: str.upper",
            "      <- a",
            "    map return: str.upper",
            "      <- abroad (below)",
            "  map abroad: str.upper",
            "    <- home/leave",
            "  sink z",
            "    <- home/return",
        ]
        assert_shows(graph, mermaid(graph))
        assert_shows(graph, dot(graph))


class TestAllForms:
    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("flow", [index, minutes, table_in_a_loop])
    def test_cycles_keys_windows_and_partitions_are_visible(
        self, form: Form, flow: MakesFlow
    ) -> None:
        graph = flow().graph()
        drawn = form(graph)
        assert drawn.count("cycle") == len(graph.back_edges) >= 1
        assert drawn.count("window 2") == sum(node.kind == "group" for node in graph.nodes)
        keys = [source.key for node in graph.nodes for source in node.inputs if source.key]
        assert drawn.count("by ") == len(keys)
        assert ("4 partitions" in drawn) == (flow is index)

    @pytest.mark.parametrize("form", FORMS)
    def test_is_the_same_each_time(self, form: Form) -> None:
        assert form(minutes().graph()) == form(minutes().graph())

    def test_ids_stay_when_steps_are_added_elsewhere(self) -> None:
        def flow(*, longer: bool) -> Graph:
            flow = ef.Flow("ids")
            if longer:
                flow.front("other").map(str.upper, name="new").sink("other")
            flow.front("words").key_by(len).count(name="lengths").sink("lengths")
            return flow.graph()

        for form in (drawing.mermaid, drawing.dot):
            before = form(flow(longer=False)).splitlines()
            after = form(flow(longer=True)).splitlines()
            ids = r"^ *(front|map|group|merge|broadcast|sink|scope)_\w+"
            assert {line.split()[0] for line in before if re.match(ids, line)} <= {
                line.split()[0] for line in after if re.match(ids, line)
            }


AWKWARD = [
    'say "hi"',
    "<lambda>",
    "a & b &amp;",
    "#1; #35;",
    "end",
    "1. first",
    "back\\slash\\",
    "two\nlines",
    "style: x;",
    "`code` *bold* |pipe| [x] {y}",
    "größer als 5 €",
    "单词",
    "a-b",
    "a_b",
    "\u200b\x00",
]


def awkward() -> ef.Flow:
    flow = ef.Flow('odd "flow": <b>&amp;</b> \\N #1')
    stream = flow.front(AWKWARD[0])
    for name in AWKWARD:

        def function(payload: str) -> str:
            return payload

        function.__qualname__ = name
        stream = stream.map(function, name=name).key_by(function).count(name=f"{name} again")
    stream.sink(AWKWARD[0])
    return flow


# Parsers for our drawings. A line that they do not know is an error.

NAME = r"[A-Za-z]+_[A-Za-z0-9_]*"
MERMAID_SHAPES = {
    "front": (r"\(\[", r"\]\)"),
    "map": (r"\(", r"\)"),
    "group": (r"\{\{", r"\}\}"),
    "merge": (r"\[\\", r"/\]"),
    "broadcast": (r"\[/", r"\\\]"),
    "sink": (r"\[\(", r"\)\]"),
}
MERMAID_LABEL = r'"(?P<label>(?:[^"<>#|`]|<br/>|#\d+;)*)"'
MERMAID_NODE = "|".join(
    f"(?:{left}{MERMAID_LABEL.replace('label', f'label_{kind}')}{right}:::(?P<{kind}>{kind}))"
    for kind, (left, right) in MERMAID_SHAPES.items()
)
MERMAID = {
    "node": re.compile(rf"(?P<id>{NAME})(?:{MERMAID_NODE})"),
    "open": re.compile(rf"subgraph (?P<id>{NAME})\[{MERMAID_LABEL}\]"),
    "close": re.compile("end"),
    "edge": re.compile(rf"(?P<a>{NAME}) (?P<arrow>-->|-\.->)(\|{MERMAID_LABEL}\|)? (?P<b>{NAME})"),
    "style": re.compile(r"classDef \w+ fill:#\w{6},stroke:#\w{6},color:#\w{6}"),
}
DOT_STRING = r'"(?:[^"\\]|\\.)*"'
DOT_VALUE = rf"(?:{DOT_STRING}|[\w.]+)"
DOT_HTML = r"<(?:[^<>]|<b>|</b>|<br/>|<font [^<>]*>|</font>)*>"
DOT = {
    "node": re.compile(rf"(?P<id>{NAME}) \[label=(?P<label>{DOT_HTML})(?: \w+={DOT_VALUE})*\]"),
    "open": re.compile(rf"subgraph cluster_(?P<id>{NAME}) {{(?: \w+={DOT_VALUE})+"),
    "close": re.compile("}"),
    "edge": re.compile(
        rf"(?P<a>{NAME}) -> (?P<b>{NAME}) \[(?:label=(?P<label>{DOT_STRING}) )?(?P<rest>.*)\]"
    ),
    "style": re.compile(r"(graph|node|edge) \[.*\]"),
}


class Drawn(NamedTuple):
    """What a parser found: the scopes around each node, and the edges."""

    scopes: dict[str, tuple[str, ...]]
    labels: dict[str, str]
    forth: list[tuple[str, str]]
    back: list[tuple[str, str]]


Parses: TypeAlias = Callable[[Graph], Drawn]


def parsed(lines: list[str], grammar: dict[str, re.Pattern[str]]) -> Drawn:
    found = Drawn({}, {}, [], [])
    opened: list[str] = []
    ever_opened: set[str] = set()
    for line in lines:
        matches = ((token, rule.fullmatch(line.strip())) for token, rule in grammar.items())
        token, match = next((found for found in matches if found[1]), ("", None))
        assert match, f"not understood: {line}"
        if token == "node":
            assert match["id"] not in found.scopes, "declared once"
            found.scopes[match["id"]] = tuple(opened)
            labels = [v for k, v in match.groupdict().items() if k.startswith("label") and v]
            found.labels[match["id"]] = labels[0]
        elif token == "open":
            assert match["id"] not in ever_opened, "a scope is one"
            opened.append(match["id"])
            ever_opened.add(match["id"])
        elif token == "close":
            opened.pop()
        elif token == "edge":
            is_back = "-.->" in line or "style=dashed" in line
            assert is_back == ('"cycle' in line or '" cycle' in line)
            (found.back if is_back else found.forth).append((match["a"], match["b"]))
    assert not opened, "every scope is closed"
    assert not ever_opened & found.scopes.keys(), "no id is both a scope's and a step's"
    return found


def mermaid(graph: Graph) -> Drawn:
    lines = drawing.mermaid(graph).split("\n")
    assert lines[0] == lines[2] == "---"
    assert lines[1].startswith('title: "')
    assert lines[3] == "flowchart LR"
    return parsed(lines[4:], MERMAID)


def dot(graph: Graph) -> Drawn:
    lines = drawing.dot(graph).split("\n")
    assert re.fullmatch(rf"digraph {DOT_STRING} {{", lines[0])
    assert lines[-1] == "}"
    return parsed(lines[1:-1], DOT)


def assert_shows(graph: Graph, drawn: Drawn) -> None:
    """Every step appears once, in the scopes that its name says, and so does every edge."""
    assert len(drawn.scopes) == len(graph.nodes)
    edges = drawn.forth + drawn.back
    assert {end for edge in edges for end in edge} <= drawn.scopes.keys()
    assert len(edges) == sum(len(node.inputs) for node in graph.nodes)
    readers = Counter(a for a, _ in edges)
    assert sorted(readers.values()) == sorted(node.ports for node in graph.nodes if node.ports)
    assert_marks_the_cycles(drawn)
    # One level for each slash. A fan-out has none of its own: it belongs to the step before it.
    levels = Counter(len(scopes) for scopes in drawn.scopes.values())
    assert levels == Counter(
        0
        if node.kind in ("front", "sink")
        else node.name.count("/") - bool(re.search(r"/fan-out(-\d+)?$", node.name))
        for node in graph.nodes
    )


def assert_marks_the_cycles(drawn: Drawn) -> None:
    """Every cycle has a marked edge, and every marked edge is part of a cycle."""
    sources: dict[str, set[str]] = {}
    readers: dict[str, set[str]] = {}
    for origin, reader in drawn.forth:
        sources.setdefault(reader, set()).add(origin)
    graphlib.TopologicalSorter(sources).prepare()
    for origin, reader in drawn.forth + drawn.back:
        readers.setdefault(origin, set()).add(reader)
    for origin, reader in drawn.back:
        reached, ahead = {reader}, [reader]
        while ahead:
            new = readers.get(ahead.pop(), set()) - reached
            reached |= new
            ahead += new
        assert origin in reached


def assert_well_ordered(graph: Graph) -> None:
    """In the text every step comes after the steps that it reads, unless it says otherwise."""
    seen: set[str] = set()
    scopes: list[str] = []
    for line in drawing.text(graph).split("\n")[1:]:
        depth, line = len(line) - len(line.lstrip(" ")), line.strip()
        if match := re.fullmatch(r"<- (.*?)( by .*)?( \(below\))?", line):
            assert match[1] in seen or match[3]
        elif match := re.fullmatch(r"(\S+)/ \(.*\)", line):
            scopes[depth // 2 - 1 :] = [match[1]]
        elif not line.startswith("<~ "):
            title = line.split(": ")[0]
            name = title.split(" ", 1)[-1]
            seen.add("/".join([*scopes[: depth // 2 - 1], name]))


@st.composite
def flows(draw: st.DrawFn) -> ef.Flow:
    """Steps of all kinds, on whatever streams there are, and a sink for every stream."""
    flow = ef.Flow("random")
    streams = [flow.front(f"in{number}") for number in range(draw(st.integers(1, 3)))]
    loops: list[ef.Loop[object]] = []
    for _ in range(draw(st.integers(0, 8))):
        number = draw(st.integers(0, len(streams) - 1))
        stream, other = streams[number], streams[draw(st.integers(0, len(streams) - 1))]
        kind = draw(
            st.sampled_from(
                ["map", "fork", "group", "count", "window", "merge", "join", "broadcast", "loop"]
            )
        )
        if kind == "map":
            streams[number] = stream.map(str.upper)
        elif kind == "fork":
            streams.append(stream.filter(bool))
        elif kind == "group":
            streams[number] = stream.key_by(len).group(window=draw(st.integers(1, 3)))
        elif kind == "count":
            streams[number] = stream.key_by(len).count()
        elif kind == "window":
            keyed, closing = stream.key_by(len), draw(st.booleans())
            windows = keyed.window(ef.Tumbling(5), emit="close" if closing else "update")
            streams[number] = windows.count()
        elif kind == "merge":
            streams[number] = ef.merge(stream, other)
        elif kind == "join":
            streams[number] = stream.key_by(len).join(other.key_by(len))
        elif kind == "broadcast":
            streams[number], *more = stream.broadcast(2)
            streams.extend(more)
        else:
            loops.append(flow.loop())
            streams[number] = ef.merge(stream, loops[-1])
    # A loop is closed through a grouping and a map, from any stream.
    for loop in loops:
        number = draw(st.integers(0, len(streams) - 1))
        loop.close(streams[number].key_by(len).group(window=1).flat_map(list))
    for number, stream in enumerate(streams):
        stream.sink(f"out{number}", partitions=1)
    return flow


def graphs() -> st.SearchStrategy[Graph]:
    def valid(flow: ef.Flow) -> Iterator[Graph]:
        try:
            yield flow.graph()
        except ef.FlowError:
            return

    return flows().map(lambda flow: list(valid(flow))).filter(bool).map(lambda found: found[0])


class TestWellFormed:
    @pytest.mark.parametrize("form", [mermaid, dot])
    @pytest.mark.parametrize("flow", [index, minutes, halving, table_in_a_loop, awkward])
    def test_hand_made_flows(self, flow: MakesFlow, form: Parses) -> None:
        assert_shows(flow().graph(), form(flow().graph()))

    @settings(max_examples=examples(150), deadline=None)
    @given(graphs())
    def test_random_flows(self, graph: Graph) -> None:
        assert_shows(graph, mermaid(graph))
        assert_shows(graph, dot(graph))
        assert_well_ordered(graph)

    def test_a_mermaid_label_says_what_the_user_wrote(self) -> None:
        labels = [
            re.sub(r"#(\d+);", lambda code: chr(int(code[1])), label)
            for label in mermaid(awkward().graph()).labels.values()
        ]
        for name in set(AWKWARD) - {"two\nlines", "\u200b\x00"}:
            shown = "lambda" if name == "<lambda>" else name
            assert f"map {name}<br/>{shown}" in labels
        assert "map two\\nlines<br/>two\\nlines" in labels

    def test_the_text_has_a_line_for_a_name_of_two(self) -> None:
        assert "map two\\nlines: two\\nlines (" in drawing.text(awkward().graph())


class TestSvg:
    @needs_dot
    @pytest.mark.parametrize("flow", [index, minutes, halving, table_in_a_loop, awkward])
    def test_is_xml_and_has_the_names(self, flow: MakesFlow, tmp_path: Path) -> None:
        pytest.importorskip("graphviz", reason="the Python package 'graphviz' is not installed")
        graph = flow().graph()
        drawing.svg(graph, tmp_path / "flow.svg")
        root = ElementTree.parse(tmp_path / "flow.svg").getroot()
        texts = root.iter("{http://www.w3.org/2000/svg}text")
        words = "\n".join(element.text or "" for element in texts).replace("\xa0", " ")
        for node in graph.nodes:
            if "fan-out" not in node.name:
                assert node.name.split("/")[-1].replace("\n", "\\n").strip("\u200b\x00") in words
        assert words.count("cycle") == len(graph.back_edges)
        assert "by " in words
        assert "window " in words

    @needs_dot
    @settings(max_examples=examples(10), deadline=None)
    @given(graphs())
    def test_graphviz_reads_every_drawing_without_a_complaint(self, graph: Graph) -> None:
        read = subprocess.run(
            ["dot", "-Tcanon"],
            input=drawing.dot(graph).encode(),
            capture_output=True,
            check=True,
        )
        assert read.stderr == b""

    def test_says_what_to_install_without_the_package(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setitem(sys.modules, "graphviz", None)
        with pytest.raises(ef.MissingExtraError, match=r"pip install 'emberflow\[graph\]'"):
            drawing.svg(index().graph(), tmp_path / "flow.svg")

    def test_says_what_to_install_without_the_program(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        pytest.importorskip("graphviz", reason="the Python package 'graphviz' is not installed")
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(drawing.DrawingError, match="apt-get install graphviz"):
            drawing.svg(index().graph(), tmp_path / "flow.svg")

    @needs_dot
    def test_says_where_it_cannot_write(self, tmp_path: Path) -> None:
        pytest.importorskip("graphviz", reason="the Python package 'graphviz' is not installed")
        with pytest.raises(drawing.DrawingError, match="No such file or directory"):
            drawing.svg(index().graph(), tmp_path / "nowhere" / "flow.svg")
