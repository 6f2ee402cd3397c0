"""The demonstration, `make demo`: a few hundred documents in versions, and the index that follows.

It runs the flow of `inverted_index.py` over generated documents. Then comes the test that matters:
whoever follows the change records, and has seen nothing else, must hold the very index that the
last version of every document gives. Should it differ, the exit code is 1.

    $ python examples/demo.py
    An inverted index that follows its documents
    ...
    ✓ The change records build the very index of the last versions.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator

from inverted_index import Change, Document, Index, applied, built, flow, generated_documents
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import emberflow as ef

DOCUMENTS = 400
WORDS_PER_DOCUMENT = 100
SEED = 7
WORDS_SHOWN = 7


def main() -> int:
    console = Console(highlight=False)
    console.print("[bold]An inverted index that follows its documents[/]")
    console.print(
        f"[dim]flow '{flow.name}' on the reference runner, made-up text of seed {SEED}[/]"
    )
    versions = list(generated_documents(DOCUMENTS, WORDS_PER_DOCUMENT, SEED))
    began = time.perf_counter()
    changes = indexed(versions, console)
    seconds = time.perf_counter() - began
    index, expected = applied(changes), built(versions)
    console.print(summary(versions, changes, index, seconds))
    console.print(last_edit(changes), no_wrap=True, overflow="ellipsis")
    return verdict(index, expected, console)


def indexed(versions: list[Document], console: Console) -> list[Change]:
    """Runs the flow, and shows how far it is where there is a terminal to show it on."""
    columns = (TextColumn("{task.description:8}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:

        def watched() -> Iterator[Document]:
            reading = bar.add_task("Reading", total=len(versions))
            for version in versions:
                yield version
                bar.advance(reading)
            # The reference runner puts all elements in order before it starts on the first.
            bar.remove_task(reading)
            bar.add_task("Indexing", total=None)

        changes: list[Change] = ef.run(flow, docs=watched())["changes"]
    return changes


def summary(versions: list[Document], changes: list[Change], index: Index, seconds: float) -> Table:
    figures = Table(box=box.SIMPLE_HEAD)
    figures.add_column("through the flow")
    figures.add_column("", justify="right")
    for label, value in (
        ("documents", len({version.id for version in versions})),
        ("versions of them", len(versions)),
        ("words in all versions", sum(len(version.text.split()) for version in versions)),
        ("words in the index", len(index)),
        ("change records", len(changes)),
        ("milliseconds", round(seconds * 1000)),
        ("change records a second", round(len(changes) / seconds)),
    ):
        figures.add_row(label, f"{value:,}")
    words = Table(box=box.SIMPLE_HEAD)
    words.add_column("changed most")
    words.add_column("changes", justify="right")
    words.add_column("documents", justify="right")
    for word, count in Counter(change.word for change in changes).most_common(WORDS_SHOWN):
        words.add_row(word, f"{count:,}", f"{len(index.get(word, {})):,}")
    side_by_side = Table.grid()
    side_by_side.add_row(figures, words)
    return side_by_side


def last_edit(changes: list[Change]) -> Text:
    *_, last = changes
    records = [c for c in changes if (c.document, c.version) == (last.document, last.version)]
    text = Text(f"The last edit, version {last.version} of {last.document}: ")
    for number, record in enumerate(records):
        style = "green" if not record.before else "red" if not record.after else "yellow"
        text.append(", " if number else "").append(str(record), style)
    return text


def verdict(index: Index, expected: Index, console: Console) -> int:
    console.print()
    if index == expected:
        console.print("[green]✓[/] The change records build the very index of the last versions.")
        return 0
    wrong = sorted(
        word for word in index.keys() | expected.keys() if index.get(word) != expected.get(word)
    )
    console.print(
        f"[red]✗[/] The change records build another index than the last versions, for "
        f"{len(wrong):,} words: {', '.join(wrong[:WORDS_SHOWN])}"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
