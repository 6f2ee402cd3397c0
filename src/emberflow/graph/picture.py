"""A picture of a flow as the user wrote it, as SVG, for notebooks and documents.

`drawing` shows every node, and its SVG needs the program ``dot``. This picture needs nothing, and shows
less: a composed operator is one box, merges and fan-outs are arrows that meet and part. The same flow
gives the same bytes.

Boxes stand in columns: a step is one column behind the last step that it reads, so arrows point to the
right, except for the dashed ones that close a cycle. Thick arrows have a key: what takes them may change
workers.

Names come from the user, so all text is escaped, and characters that XML has no form for are replaced.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field

from emberflow.graph.nodes import Broadcast, Front, Graph, Group, Key, Map, Merge, Node, Sink
from emberflow.graph.transactions import OUR_KEYS, Access, State
from emberflow.values.functions import name_of

_HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 46, 54, 18, 14
_LETTER, _SMALL = 7.3, 6.0
_NAME_MAX, _DETAIL_MAX = 28, 34

#: Fill and line, by what a step is.
_COLOURS = {
    "front": ("#e6f0fa", "#4f7fb0"),
    "step": ("#ffffff", "#8b929c"),
    "keeps state": ("#fcf1d8", "#bd9433"),
    "transaction": ("#f5ecf7", "#94679c"),
    "state": ("#f5ecf7", "#94679c"),
    "sink": ("#e5f3e8", "#55935f"),
}
#: What XML 1.0 has no character for.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MODES = {"one": "map", "many": "flat_map", "keep": "filter"}


@dataclass(slots=True)
class _Box:
    name: str
    role: str
    detail: str
    column: int = 0
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    #: By box that it reads: the words along the arrow, and whether the arrow has a key.
    reads: dict[str, tuple[str, bool]] = field(default_factory=dict)


def picture(graph: Graph) -> str:
    """The flow as SVG.

    >>> import emberflow as ef
    >>> flow = ef.Flow("word count")
    >>> flow.front("lines").flat_map(str.split).key_by(len).count().sink("counts")
    >>> drawn = picture(flow.graph())
    >>> drawn.startswith("<svg"), drawn.count("<rect"), "by len" in drawn
    (True, 5, True)
    """
    boxes = _boxes(graph)
    back = _back_edges(boxes)
    _place(boxes, back)
    width = max((box.x + box.width for box in boxes.values()), default=0) + _MARGIN
    height = max((box.y + _HEIGHT for box in boxes.values()), default=0) + _MARGIN
    if back:
        height += _GAP_Y + 8
    shapes = [
        _arrow(boxes[source], box, words, keyed, (source, name) in back, height)
        for name, box in boxes.items()
        for source, (words, keyed) in box.reads.items()
    ]
    shapes += [_shape(box) for box in boxes.values()]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13">'
        f"<title>{_escaped(f'flow {graph.flow}')}</title>"
        '<defs><marker id="emberflow-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" '
        'markerHeight="9" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" fill="#6b7280"/></marker></defs>'
        f'<rect width="100%" height="100%" rx="8" fill="#fcfcfb"/>{"".join(shapes)}</svg>'
    )


# What there is to draw.


def _boxes(graph: Graph) -> dict[str, _Box]:
    boxes: dict[str, _Box] = {}
    passed = _passed(graph)
    for node in graph.nodes:
        if node.id not in passed:
            name, role = _box_of(node), _role(node)
            box = boxes.setdefault(name, _Box(_name(node), role, _detail(node)))
            if role == "transaction" or (role == "keeps state" and box.role == "step"):
                box.role, box.detail = role, "" if role == box.detail else box.detail
    for node in graph.nodes:
        if node.id not in passed:
            for number in range(len(node.inputs)):
                _read(graph, boxes, passed, node, number)
    for name, box in boxes.items():
        if box.role in ("keeps state", "state"):
            words = _key_within(graph, name)
            box.reads = {source: (own or words, True) for source, (own, _) in box.reads.items()}
    return boxes


def _key_within(graph: Graph, name: str) -> str:
    """The user's key of a composed operator, which is given to one of the nodes within it."""
    keys = {
        _key_words(source.own_key)
        for node in graph.nodes
        if _box_of(node) == name
        for source in node.inputs
        if source.own_key is not None
    }
    return keys.pop() if len(keys) == 1 else ""


def _key_words(key: Key) -> str:
    name = key.given.role if key.given.role in OUR_KEYS else name_of(key.given.given)
    return "" if name == "lambda" else f"by {name}"


def _read(graph: Graph, boxes: dict[str, _Box], passed: set[int], node: Node, number: int) -> None:
    """Add the arrows of an input: to the boxes behind any merges and fan-outs that it reads.

    A transaction and its states talk to each other in both directions; one arrow stands for it.
    """
    own = _box_of(node)
    waiting = [(node.inputs[number], "", False)]
    seen: set[int] = set()
    while waiting:
        source, words, keyed = waiting.pop()
        if source.own_key is not None and not source.own_key.only_checks:
            words, keyed = _key_words(source.own_key), True
        origin = graph.nodes[source.node]
        if origin.id in passed:
            if origin.id not in seen:
                seen.add(origin.id)
                waiting += [(further, words, keyed) for further in origin.inputs]
        elif not isinstance(origin, State) and (
            _box_of(origin) != own or (boxes[own].role == "step" and not _is_composed(node))
        ):
            before = boxes[own].reads.get(_box_of(origin), ("", False))
            boxes[own].reads[_box_of(origin)] = (words or before[0], keyed or before[1])


def _is_composed(node: Node) -> bool:
    return "/" in node.name and not isinstance(node, Front | Sink)


def _passed(graph: Graph) -> set[int]:
    """The nodes that only pass on what they get, on their own or as all there is of an operator."""
    others = {_box_of(node) for node in graph.nodes if not isinstance(node, Merge | Broadcast)}
    return {
        node.id
        for node in graph.nodes
        if isinstance(node, Merge | Broadcast) and _box_of(node) not in others
    }


def _name(node: Node) -> str:
    return node.name if isinstance(node, Front | Sink) else node.name.partition("/")[0]


def _box_of(node: Node) -> str:
    """Fronts and sinks may have the name of a step."""
    kind = node.kind if isinstance(node, Front | Sink) else "step"
    return f"{kind} {_name(node)}"


def _role(node: Node) -> str:
    if isinstance(node, Front | Sink):
        return node.kind
    if isinstance(node, State):
        return "state"
    if isinstance(node, Access) or node.kind in ("open", "close"):
        return "transaction"
    return "keeps state" if isinstance(node, Group) else "step"


def _detail(node: Node) -> str:
    if isinstance(node, Sink):
        return f"sink, {node.partitions} partitions" if node.partitions > 1 else "sink"
    if isinstance(node, Map) and not _is_composed(node):
        mode = _MODES[node.mode]
        names = [name_of(function.given) for function in node.given]
        shown = "" if "lambda" in names else ", ".join(names)
        return shown if re.fullmatch(rf"{mode}(-\d+)?", node.name) else f"{mode} {shown}".rstrip()
    return _role(node) if not _is_composed(node) else ""


# Where it stands.


def _back_edges(boxes: dict[str, _Box]) -> set[tuple[str, str]]:
    """The arrows that close a cycle, by a depth-first search in the order of writing."""
    readers: dict[str, list[str]] = {name: [] for name in boxes}
    for name, box in boxes.items():
        for source in box.reads:
            readers[source].append(name)
    back: set[tuple[str, str]] = set()
    done: set[str] = set()
    for root in boxes:
        stack, on_path = [(root, iter(readers[root]))], {root}
        while stack and root not in done:
            name, ahead = stack[-1]
            for reader in ahead:
                if reader in on_path:
                    back.add((name, reader))
                elif reader not in done:
                    stack.append((reader, iter(readers[reader])))
                    on_path.add(reader)
                    break
            else:
                stack.pop()
                on_path.discard(name)
                done.add(name)
    return back


def _place(boxes: dict[str, _Box], back: set[tuple[str, str]]) -> None:
    for _ in boxes:  # the longest way has no more steps than there are boxes
        for name, box in boxes.items():
            ahead = [boxes[source] for source in box.reads if (source, name) not in back]
            box.column = max((one.column + 1 for one in ahead), default=0)
    last = max((box.column for box in boxes.values()), default=0)
    columns: list[list[str]] = [[] for _ in range(last + 1)]
    for name, box in boxes.items():
        columns[box.column].append(name)
    x: float = _MARGIN
    tallest = max(map(len, columns))
    for names in columns:
        # A box stands level with what it reads, as far as there is room.
        names.sort(key=lambda name: _level(boxes, name))
        words = [len(words) for name in names for words, _ in boxes[name].reads.values() if words]
        x += max(0, max(words, default=0) * _SMALL - 30) if x > _MARGIN else 0
        width = max(_width(boxes[name]) for name in names)
        top = _MARGIN + (tallest - len(names)) * (_HEIGHT + _GAP_Y) / 2
        for number, name in enumerate(names):
            box = boxes[name]
            box.x, box.y, box.width = x, top + number * (_HEIGHT + _GAP_Y), width
        x += width + _GAP_X


def _level(boxes: dict[str, _Box], name: str) -> float:
    ahead = [boxes[source].y for source in boxes[name].reads if boxes[source].width]
    return sum(ahead) / len(ahead) if ahead else 0.0


def _width(box: _Box) -> float:
    letters = len(_cut(box.name, _NAME_MAX)) * _LETTER, len(_cut(_small(box), _DETAIL_MAX)) * _SMALL
    return max(72.0, *letters) + 22


# How it looks.


def _small(box: _Box) -> str:
    return box.detail or ("" if box.role == "step" else box.role)


def _shape(box: _Box) -> str:
    fill, line = _COLOURS[box.role]
    middle, small = box.x + box.width / 2, _small(box)
    top = box.y + (19 if small else 27)
    text = f'<text x="{middle:.1f}" y="{top:.1f}" text-anchor="middle" fill="#23272e">{_escaped(_cut(box.name, _NAME_MAX))}</text>'
    if small:
        text += (
            f'<text x="{middle:.1f}" y="{box.y + 35:.1f}" text-anchor="middle" font-size="10.5" '
            f'fill="#59616c">{_escaped(_cut(small, _DETAIL_MAX))}</text>'
        )
    radius = 22 if box.role == "front" else 8
    return (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{_HEIGHT}" '
        f'rx="{radius}" fill="{fill}" stroke="{line}" stroke-width="1.3"/>{text}'
    )


def _arrow(source: _Box, box: _Box, words: str, keyed: bool, is_back: bool, height: float) -> str:
    x1, y1 = source.x + source.width, source.y + _HEIGHT / 2
    x2, y2 = box.x, box.y + _HEIGHT / 2
    bend = max(20.0, (x2 - x1) / 2)
    way = f"M{x1:.1f} {y1:.1f}C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {x2 - 1:.1f} {y2:.1f}"
    if is_back:
        low = height - 8
        way = (
            f"M{x1:.1f} {y1:.1f}C{x1 + 40:.1f} {y1:.1f} {x1 + 30:.1f} {low:.1f} {x1 - 20:.1f} {low:.1f}"
            f"L{x2 + 20:.1f} {low:.1f}C{x2 - 30:.1f} {low:.1f} {x2 - 40:.1f} {y2:.1f} {x2 - 1:.1f} {y2:.1f}"
        )
    dashes = ' stroke-dasharray="5 4"' if is_back else ""
    arrow = (
        f'<path d="{way}" fill="none" stroke="#6b7280" stroke-width="{2.2 if keyed else 1.2}"'
        f'{dashes} marker-end="url(#emberflow-tip)"/>'
    )
    if words and not is_back:
        arrow += (
            f'<text x="{(x1 + x2) / 2:.1f}" y="{(y1 + y2) / 2 - 6:.1f}" text-anchor="middle" '
            f'font-size="10.5" fill="#59616c">{_escaped(_cut(words, _DETAIL_MAX))}</text>'
        )
    return arrow


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else f"{words[: most - 1]}…"


def _escaped(words: str) -> str:
    return html.escape(_NO_XML.sub("\N{REPLACEMENT CHARACTER}", words))
