"""The demonstration, `make demo`: an inverted index that follows its documents, live on Spark.

It runs the flow of `inverted_index.py` on two workers, which are the tasks of a local Spark job.
Versions of documents come in at a steady rate; milliseconds later the changes of the index are out.
Then comes the test that matters: the output must be that of the reference runner, which takes one
version after another, in order. Should it differ, the exit code is 1.

    $ python examples/demo.py
    An inverted index that follows its documents, live on Spark
    ...
    ✓ The same ... change records, in the same order, as on the reference runner.
"""

import sys
import time
from collections import Counter
from itertools import islice, takewhile
from typing import Any

from inverted_index import Change, Document, applied, flow, generated_documents
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.commands.session import spark_session

DOCUMENTS = 100
VERSIONS = 300
VERSIONS_PER_SECOND = 100
WORDS_PER_DOCUMENT = 100
WORKERS = 2
SEED = 7
WORDS_SHOWN = 6


def main() -> int:
    console = Console(highlight=False)
    console.print("[bold]An inverted index that follows its documents, live on Spark[/]")
    console.print(
        f"[dim]{VERSIONS_PER_SECOND} versions a second, {WORKERS} workers, made-up text of seed {SEED}[/]"
    )
    versions = list(islice(generated_documents(DOCUMENTS, WORDS_PER_DOCUMENT, SEED), VERSIONS))
    try:
        changes, progress = indexed_live(versions, console)
    except ef.EmberflowError as error:
        console.print(f"[red]✗[/] {error}", soft_wrap=True)
        return 1
    console.print(summary(versions, changes, progress))
    console.print(last_edit(changes), no_wrap=True, overflow="ellipsis")
    return verdict(changes, ef.run(flow, docs=versions)["changes"], console)


def indexed_live(versions: list[Document], console: Console) -> tuple[list[Change], dict[str, Any]]:
    """Runs the flow on Spark; its output, and the last progress of the query."""
    memory = sinks.Memory()
    console.print("Starting Spark, which takes a few seconds ...")
    # Any session will do. This one is quiet.
    with spark_session(master=f"local[{WORKERS}]", name="emberflow demo") as spark:
        query = (
            flow.live(spark)
            .read(docs=fronts.Iterable(versions, rate=VERSIONS_PER_SECOND))
            .write(changes=memory)
            .option("workers", WORKERS)
            .start()
        )
        watch(query, console)
        query.stop()
    return memory.payloads(), query.lastProgress


def watch(query: Any, console: Console) -> None:
    """Shows how far the query is until it is over: as a bar, or as lines if there is no terminal."""
    columns = (TextColumn("{task.description:>16}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("waiting", total=VERSIONS)
        line_at = time.monotonic()
        while not query.awaitTermination(0.1):
            progress = query.lastProgress
            if not progress or not progress["latencyMs"]:
                continue
            p50 = progress["latencyMs"]["p50"]
            bar.update(task, completed=progress["elements"], description=f"p50 {p50:.1f} ms")
            if not console.is_terminal and time.monotonic() - line_at > 1:
                line_at = time.monotonic()
                console.print(
                    f"  {progress['elements']:4,} versions in, {progress['released']:6,} change "
                    f"records out, half of them within {p50:.1f} ms"
                )


def summary(versions: list[Document], changes: list[Change], progress: dict[str, Any]) -> Table:
    index = applied(changes)
    latency = progress["latencyMs"]
    figures = Table(box=box.SIMPLE_HEAD)
    figures.add_column("through the flow")
    figures.add_column("", justify="right")
    for label, value in (
        ("versions of documents", f"{len(versions):,}"),
        ("change records", f"{len(changes):,}"),
        ("words in the index", f"{len(index):,}"),
        ("latency, median", f"{latency['p50']:.1f} ms"),
        ("latency, 95 of 100 within", f"{latency['p95']:.1f} ms"),
        ("latency, 99 of 100 within", f"{latency['p99']:.1f} ms"),
        ("replay ratio", f"{progress['replayRatio']:.2f}"),
    ):
        figures.add_row(label, value)
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


def verdict(changes: list[Change], expected: list[Change], console: Console) -> int:
    console.print()
    if changes == expected:
        console.print(
            f"[green]✓[/] The same {len(changes):,} change records, in the same order, as on the "
            f"reference runner."
        )
        return 0
    same = len(
        list(takewhile(lambda pair: pair[0] == pair[1], zip(changes, expected, strict=False)))
    )
    console.print(
        f"[red]✗[/] Other change records than on the reference runner, after {same:,} that are the "
        f"same: {len(changes):,} came, {len(expected):,} were expected."
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
