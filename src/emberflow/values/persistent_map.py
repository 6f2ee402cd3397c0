"""A sorted map whose versions share structure, for accumulators that hold many entries.

What this file guarantees:

- A version never changes.
- `set`, `remove` and `above` make another version in logarithmic time, and so much new memory.
- `count_above` counts in logarithmic time, and `len` in constant time: a node knows the size of its tree.
- Maps with equal entries are equal, whichever way they were made.

Theory of operation. A version is an AVL tree, whose nodes never change. An update copies the nodes on the
way to its key, and the two versions share all others. `above` cuts the tree along such a way and joins
what is left; a node is made on each level, so nothing is visited that leaves or stays.

The functions of trees are compiled too, as ``_trees`` (see `emberflow.native`): a count of distinct values
spends nearly all of its time here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast, final

from emberflow import native

__all__ = ["PersistentMap"]

K = TypeVar("K")
V = TypeVar("V")

#: ``(height, key, value, left, right, size)``. Versions of other types share nodes, so they are `Any` here.
_Node: TypeAlias = "tuple[int, Any, Any, _Tree, _Tree, int]"
_Tree: TypeAlias = "_Node | None"


class _Versions(Generic[K, V]):
    """The methods of a map that are called most. They are compiled, too."""

    __slots__ = ("_tree",)
    _tree: _Tree

    def get(self, key: K) -> V | None:
        node = node_at(self._tree, key)
        return None if node is None else node[2]

    def set(self, key: K, value: V) -> PersistentMap[K, V]:
        return _version(with_key(self._tree, key, value))

    def including(self, key: K, value: V) -> PersistentMap[K, V]:
        if node_at(self._tree, key) is not None:
            return cast("PersistentMap[K, V]", self)
        return _version(with_key(self._tree, key, value))

    def remove(self, key: K) -> PersistentMap[K, V]:
        return _version(without_key(self._tree, key))

    def above(self, key: K) -> PersistentMap[K, V]:
        return _version(above_key(self._tree, key))

    def __len__(self) -> int:
        return 0 if self._tree is None else self._tree[5]

    def __contains__(self, key: K) -> bool:
        return node_at(self._tree, key) is not None

    def __bool__(self) -> bool:
        return self._tree is not None


if TYPE_CHECKING or native.trees is None:
    _Base = _Versions
else:

    class _Base(native.trees.Versions, Generic[K, V]):
        __slots__ = ()


@final
class PersistentMap(_Base[K, V]):
    """A map that stays as it is: `set`, `remove` and `above` return a new version.

    >>> one = PersistentMap([(5, "e"), (9, "i")])
    >>> two = one.set(7, "g")
    >>> one, two, two.remove(5), two.above(5)
    (PersistentMap([(5, 'e'), (9, 'i')]),
     PersistentMap([(5, 'e'), (7, 'g'), (9, 'i')]),
     PersistentMap([(7, 'g'), (9, 'i')]),
     PersistentMap([(7, 'g'), (9, 'i')]))

    The keys are sorted, so any two of them can be compared.

    ``get(key)`` is the value of a key, or None. ``including(key, value)`` is the map itself if it has the key,
    otherwise the version in which the key has this value. To remove a key that is not there changes nothing.

    >>> one.get(9), one.get(7), one.including(9, "j") == one, one.remove(6) == one
    ('i', None, True, True)
    """

    __slots__ = ()

    def __init__(self, entries: Iterable[tuple[K, V]] = ()) -> None:
        self._tree = _built(sorted(dict(entries).items(), key=_key_of))

    def first(self) -> K | None:
        """The least key; None if there is none."""
        found, tree = None, self._tree
        while tree is not None:
            found, tree = tree[1], tree[3]
        return found

    def last(self) -> K | None:
        """The greatest key; None if there is none.

        >>> PersistentMap([(5, "e"), (9, "i")]).last()
        9
        """
        found, tree = None, self._tree
        while tree is not None:
            found, tree = tree[1], tree[4]
        return found

    def items(self, above: K | None = None) -> Iterator[tuple[K, V]]:
        """The keys and their values in order; from the first key on that is greater than ``above``.

        >>> list(PersistentMap(zip(range(6), "abcdef")).items(above=3))
        [(4, 'e'), (5, 'f')]
        """
        later: list[_Node] = []
        tree = self._tree
        while later or tree is not None:
            while tree is not None:
                if above is None or tree[1] > above:
                    later.append(tree)
                    tree = tree[3]
                else:
                    tree = tree[4]
            if not later:
                return
            _, key, value, _, tree, _ = later.pop()
            yield key, value

    def values(self) -> Iterator[V]:
        """The values in the order of their keys."""
        return (value for _, value in self.items())

    def count_above(self, key: K) -> int:
        """How many keys are greater than this one.

        >>> PersistentMap(zip(range(6), "abcdef")).count_above(3)
        2
        """
        tree, count = self._tree, 0
        while tree is not None:
            _, here, _, left, right, _ = tree
            if here > key:
                count += 1 + _size(right)
                tree = left
            else:
                tree = right
        return count

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self.items())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PersistentMap):
            return NotImplemented
        return self._tree is other._tree or list(self.items()) == list(other.items())

    def __hash__(self) -> int:
        return hash(tuple(self.items()))

    def __repr__(self) -> str:
        return f"PersistentMap({list(self.items())!r})"

    def __reduce__(self) -> tuple[type[PersistentMap[Any, Any]], tuple[list[tuple[K, V]]]]:
        return PersistentMap, (list(self.items()),)


def _version(tree: _Tree) -> PersistentMap[Any, Any]:
    version: PersistentMap[Any, Any] = PersistentMap.__new__(PersistentMap)
    version._tree = tree
    return version


def _key_of(entry: tuple[Any, Any]) -> Any:
    return entry[0]


def _built(entries: Sequence[tuple[Any, Any]]) -> _Tree:
    if not entries:
        return None
    middle = len(entries) // 2
    return _node(*entries[middle], _built(entries[:middle]), _built(entries[middle + 1 :]))


def _height(tree: _Tree) -> int:
    return 0 if tree is None else tree[0]


def _size(tree: _Tree) -> int:
    return 0 if tree is None else tree[5]


def _node(key: Any, value: Any, left: _Tree, right: _Tree) -> _Node:
    low = high = 0
    size = 1
    if left is not None:
        low = left[0]
        size += left[5]
    if right is not None:
        high = right[0]
        size += right[5]
    return (high if high > low else low) + 1, key, value, left, right, size


def _balanced(key: Any, value: Any, left: _Tree, right: _Tree) -> _Node:
    """A node whose two sides may differ in height by two."""
    low, high = _height(left), _height(right)
    if low > high + 1:
        assert left is not None
        _, left_key, left_value, outer, inner, _ = left
        if inner is None or _height(outer) >= inner[0]:
            return _node(left_key, left_value, outer, _node(key, value, inner, right))
        _, top, top_value, before, behind, _ = inner
        return _node(
            top,
            top_value,
            _node(left_key, left_value, outer, before),
            _node(key, value, behind, right),
        )
    if high > low + 1:
        assert right is not None
        _, right_key, right_value, inner, outer, _ = right
        if inner is None or _height(outer) >= inner[0]:
            return _node(right_key, right_value, _node(key, value, left, inner), outer)
        _, top, top_value, before, behind, _ = inner
        return _node(
            top,
            top_value,
            _node(key, value, left, before),
            _node(right_key, right_value, behind, outer),
        )
    return _node(key, value, left, right)


def _node_at(tree: _Tree, key: Any) -> _Tree:
    """The node that has the key; None if there is none."""
    while tree is not None:
        here = tree[1]
        if here == key:
            return tree
        tree = tree[3] if key < here else tree[4]
    return None


def _with(tree: _Tree, key: Any, value: Any) -> _Node:
    if tree is None:
        return 1, key, value, None, None, 1
    height, here, held, left, right, size = tree
    if key == here:
        return height, key, value, left, right, size
    if key < here:
        return _balanced(here, held, _with(left, key, value), right)
    return _balanced(here, held, left, _with(right, key, value))


def _without(tree: _Tree, key: Any) -> _Tree:
    if tree is None:
        return None
    _, here, held, left, right, _ = tree
    if key < here:
        return _balanced(here, held, _without(left, key), right)
    if key > here:
        return _balanced(here, held, left, _without(right, key))
    if right is None:
        return left
    (_, first, its_value, _, _, _), rest = _first_and_rest(right)
    return _balanced(first, its_value, left, rest)


def _first_and_rest(tree: _Node) -> tuple[_Node, _Tree]:
    _, here, held, left, right, _ = tree
    if left is None:
        return tree, right
    first, rest = _first_and_rest(left)
    return first, _balanced(here, held, rest, right)


def _above(tree: _Tree, key: Any) -> _Tree:
    if tree is None:
        return None
    _, here, held, left, right, _ = tree
    if here <= key:
        return _above(right, key)
    return _joined(here, held, _above(left, key), right)


def _joined(key: Any, value: Any, left: _Tree, right: _Tree) -> _Node:
    """A node whose left side may be lower than the right one by any height, and not higher."""
    if right is None or _height(left) >= right[0] - 1:
        return _node(key, value, left, right)
    _, right_key, right_value, inner, outer, _ = right
    return _balanced(right_key, right_value, _joined(key, value, left, inner), outer)


if native.trees is None:
    node_at, with_key, without_key, above_key = _node_at, _with, _without, _above
else:
    node_at, with_key = native.trees.node_at, native.trees.with_key
    without_key, above_key = native.trees.without_key, native.trees.above_key
