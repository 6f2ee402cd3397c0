"""Word count twice: with `reduce`, and by hand, to see what `reduce` is made of.

Emberflow's operations keep no hidden state. The count of a word is an item like any other: an
*accumulator* that goes round a cycle and meets the next occurrence of its word in a grouping of
window 2. Items are in a total order, and an accumulator comes right behind the occurrence that it was
made of. So a tuple tells what is still to be counted:

- a single occurrence starts an accumulator;
- an accumulator and an occurrence behind it make the next accumulator;
- an occurrence and an accumulator behind it: the occurrence has been counted, nothing to do.

Below, `m` is a mapped word (an occurrence), `a` is an accumulator, and the word dog occurs twice.

    $ python examples/word_count.py
    with reduce: dog 1, dog 2
    by hand:     dog 1, dog 2

    1. (m[dog,1])            -> a[dog,1]
    2. (m[dog,1] | a[dog,1]) -> nothing
    3. (a[dog,1] | m[dog,1]) -> a[dog,2]
    4. (m[dog,1] | a[dog,2]) -> nothing
"""

from typing import NamedTuple

import emberflow as ef

LINES = ["dog", "dog"]


class Entry(NamedTuple):
    kind: str  # "m", mapped, or "a", accumulator
    word: str
    value: int

    def __str__(self) -> str:
        return f"{self.kind}[{self.word},{self.value}]"


def mapped(word: str) -> Entry:
    return Entry("m", word, 1)


def combined(entries: tuple[Entry, ...]) -> list[Entry]:
    match entries:
        case [Entry(kind="m") as entry]:
            return [entry._replace(kind="a")]
        case [Entry(kind="a") as accumulator, Entry(kind="m") as entry]:
            return [accumulator._replace(value=accumulator.value + entry.value)]
        case _:
            return []


flow = ef.Flow("word count")
words = flow.front("lines").flat_map(str.split)

# What you would write ...
counts = words.key_by(lambda word: word).reduce(
    first=lambda word: (word, 1),
    combine=lambda counted, word: (word, counted[1] + 1),
)
counts.sink("with_reduce")

# ... and what it stands for.
again = flow.loop()
tuples = ef.merge(words.map(mapped), again).key_by(lambda entry: entry.word).group(window=2)
# If a stream has several readers, the first one in the program comes first in the order, with all
# that it causes. Written after `combined`, this sink would get a tuple after the tuples it led to.
tuples.sink("tuples")
feedback, output = tuples.flat_map(combined).broadcast(2)
again.close(feedback)
output.map(lambda entry: (entry.word, entry.value)).sink("by_hand")


def main() -> None:
    outputs = ef.run(flow, lines=LINES)
    for label, sink in (("with reduce:", "with_reduce"), ("by hand:", "by_hand")):
        print(f"{label:12}", ", ".join(f"{word} {count}" for word, count in outputs[sink]))
    print()
    for stage, entries in enumerate(outputs["tuples"], start=1):
        window = f"({' | '.join(map(str, entries))})"
        # Functions of a flow are pure: calling `combined` again gives what the flow got.
        made = ", ".join(map(str, combined(entries)))
        print(f"{stage}. {window:21} -> {made or 'nothing'}")


if __name__ == "__main__":
    main()
