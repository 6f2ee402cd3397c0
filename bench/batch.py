"""Batch on Spark, compared with hand-written PySpark.

    python bench/batch.py [--data FOLDER] [--documents 1000] [--scales 1,10] [--only count,index]
                          [--rounds 1]

- *Running count*: how often each word has occurred so far, for each word of each document in order.
  By hand: `row_number` over a window by word, entirely in the JVM, without and with the sort by
  time within a partition that Emberflow does by default; and `transformWithState`, with a trigger
  of available-now, which cannot even promise the order.
- *Inverted index*: the change records of versions of documents, as in `examples/inverted_index.py`.
  By hand: `applyInPandas` twice, by document and by word.

The corpus is `articles.jsonl.gz` in ``--data`` (or in the folder EMBERFLOW_DATA), which is not part
of the project; without it only generated text is measured. Scale 1 is that many documents of the
corpus, 10 and 100 are that many times as many generated ones. Each measurement has a process and a
Spark session of its own, warmed up on some documents first, so that peak memory is its own too.
Rounds alternate. Compare figures of one run only; on a busy machine, compare processor seconds
rather than wall-clock seconds.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DEFAULT_DATA = Path(__file__).parents[2] / "shared" / "data"
WARM_UP = 200
SLOTS = 2
PARTITIONS = 8
JVM_MEMORY = "2g"
TOKEN = r"[a-z0-9]+"
#: How many documents the contenders in `PARTLY` get at most.
FEW = 100


def session() -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.master(f"local[{SLOTS}]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", JVM_MEMORY)
        .config("spark.log.level", "FATAL")
        .config("spark.sql.shuffle.partitions", str(PARTITIONS))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


# --- Emberflow ------------------------------------------------------------------------------------


def count_flow() -> Any:
    import emberflow as ef

    flow = ef.Flow("count")
    words = flow.front("docs").flat_map(re.compile(TOKEN).findall)
    words.key_by(lambda word: word).count().sink("counts")
    return flow


def differences(versions: tuple[Any, ...]) -> list[tuple[str, int, int, int, int]]:
    """``(word, document, version, before, after)`` for each word whose count has changed."""
    tokens = re.compile(TOKEN).findall
    *previous, current = versions
    before = Counter(tokens(previous[0][2]) if previous else ())
    after = Counter(tokens(current[2]))
    return [
        (word, current[0], current[1], before[word], after[word])
        for word in sorted(before.keys() | after.keys())
        if before[word] != after[word]
    ]


def index_flow() -> Any:
    import emberflow as ef

    def changed(held: tuple[Any, int], change: tuple[Any, ...]) -> tuple[Any, int]:
        return change, held[1] + bool(change[4]) - bool(change[3])

    flow = ef.Flow("index")
    changes = flow.front("docs").key_by(lambda doc: doc[0]).group(window=2).flat_map(differences)
    held = changes.key_by(lambda change: change[0]).fold(initial=(None, 0), combine=changed)
    held.map(lambda pair: (*pair[0], pair[1])).sink("changes")
    return flow


def emberflow_count(spark: Any, docs: Any) -> Any:
    import emberflow as ef

    rows = ef.rows(docs, payload="text")
    return count_flow().batch(spark, docs=rows, schema="word string, n long")["counts"]


def emberflow_count_unordered(spark: Any, docs: Any) -> Any:
    import emberflow as ef

    rows = ef.rows(docs, payload="text", unique=True)
    schema = "word string, n long"
    return count_flow().batch(spark, docs=rows, schema=schema, ordered=False)["counts"]


def emberflow_index(spark: Any, docs: Any) -> Any:
    import emberflow as ef

    rows = ef.rows(docs, payload=lambda row: (row.id, row.version, row.text))
    schema = "word string, id long, version long, before long, after long, documents long"
    return index_flow().batch(spark, docs=rows, schema=schema)["changes"]


# --- By hand --------------------------------------------------------------------------------------


def words_of(docs: Any) -> Any:
    from pyspark.sql import functions as sql

    found = sql.regexp_extract_all("text", sql.lit(f"({TOKEN})"))
    return docs.select("time", sql.posexplode(found).alias("position", "word"))


def window_count(spark: Any, docs: Any) -> Any:
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    by_word = Window.partitionBy("word").orderBy("time", "position")
    return words_of(docs).select(
        "word", sql.row_number().over(by_word).alias("n"), "time", "position"
    )


def window_count_ordered(spark: Any, docs: Any) -> Any:
    return window_count(spark, docs).sortWithinPartitions("time", "position")


def pandas_index(spark: Any, docs: Any) -> Any:
    import pandas as pd

    def by_document(frame: Any) -> Any:
        versions = frame.sort_values("time")
        previous: tuple[Any, ...] = ()
        made = []
        for row in versions.itertuples():
            current = (row.id, row.version, row.text)
            made += [(row.time, *change) for change in differences((*previous, current))]
            previous = (current,)
        return pd.DataFrame(made, columns=["time", "word", "id", "version", "before", "after"])

    def by_word(frame: Any) -> Any:
        changes = frame.sort_values("time")
        present = (changes["after"] > 0).astype("int64") - (changes["before"] > 0).astype("int64")
        return changes.assign(documents=present.cumsum())

    schema = "time long, word string, id long, version long, before long, after long"
    changes = docs.groupBy("id").applyInPandas(by_document, schema)
    return changes.groupBy("word").applyInPandas(by_word, f"{schema}, documents long")


def stateful_count(spark: Any, folder: str) -> int:
    """Run a streaming query to its end; return how many rows it gave."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    class Counting(StatefulProcessor):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self._count = handle.getValueState("count", StructType([StructField("n", LongType())]))

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            n = self._count.get()[0] if self._count.exists() else 0
            for _ in rows:
                n += 1
                yield Row(word=key[0], n=n)
            self._count.update((n,))

        def close(self) -> None:
            pass

    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    docs = spark.readStream.schema("time long, id long, version long, text string").parquet(folder)
    out = StructType([StructField("word", StringType()), StructField("n", LongType())])
    counted = words_of(docs).groupBy("word").transformWithState(Counting(), out, "append", "none")
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            counted.writeStream.format("noop")
            .outputMode("append")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(progress["numInputRows"] for progress in query.recentProgress)


#: By name: the task, the contender, the function, and the name of what it is compared with.
CONTENDERS: dict[str, tuple[str, str, Callable[..., Any], str]] = {
    "count-window": ("running count", "window function, JVM only", window_count, ""),
    "count-unordered": (
        "running count",
        "Emberflow, times known unique, rows unordered",
        emberflow_count_unordered,
        "count-window",
    ),
    "count-window-ordered": (
        "running count",
        "window function, JVM only, in order",
        window_count_ordered,
        "",
    ),
    "count": ("running count", "Emberflow, in order", emberflow_count, "count-window-ordered"),
    "count-stateful": ("running count", "transformWithState, available-now", stateful_count, ""),
    "index-pandas": ("inverted index", "applyInPandas, twice", pandas_index, ""),
    "index": ("inverted index", "Emberflow, in order", emberflow_index, "index-pandas"),
}
#: So slow that they get only part of the documents.
PARTLY = ("count-stateful", "index-pandas")


# --- One measurement, in a process of its own -----------------------------------------------------


TICKS = os.sysconf("SC_CLK_TCK")


class Memory(threading.Thread):
    """Samples the peak resident memory of the JVM, and of all Python workers together."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.jvm = self.workers = 0.0
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.2):
            jvm, workers = resident()
            self.jvm, self.workers = max(self.jvm, jvm), max(self.workers, workers)

    def stop(self) -> None:
        self._over.set()
        self.join()


def processes() -> Iterator[tuple[bool, list[str]]]:
    """For each process started from here: whether it is a JVM, and its fields in /proc."""
    found: dict[int, tuple[bool, list[str]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                head, _, rest = (entry / "stat").read_text().rpartition(")")
            except OSError:
                continue
            found[int(entry.name)] = head.endswith("(java"), rest.split()
    for process, (is_jvm, fields) in found.items():
        above = process
        while above and above != os.getpid():
            above = int(found[above][1][1]) if above in found else 0
        if above and process != os.getpid():
            yield is_jvm, fields


def resident() -> tuple[float, float]:
    """Resident megabytes of the JVM and of its Python workers, which are its descendants."""
    sizes = [0.0, 0.0]
    for is_jvm, fields in processes():
        sizes[not is_jvm] += int(fields[21]) * 4096 / 1e6
    return sizes[0], sizes[1]


def processor_seconds() -> tuple[float, float]:
    """Processor seconds of the JVM and of its Python workers, including those that have ended."""
    ticks = [0, 0]
    for is_jvm, fields in processes():
        own, of_ended = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
        ticks[not is_jvm] += own
        ticks[1] += of_ended  # the JVM's children are Python
    return ticks[0] / TICKS, ticks[1] / TICKS


def measure(name: str, folder: str, warm_up: str) -> dict[str, float]:
    spark = session()
    _, _, contender, _ = CONTENDERS[name]

    def run(where: str) -> None:
        if contender is stateful_count:
            contender(spark, where)
        else:
            made = contender(spark, spark.read.parquet(where))
            made.write.format("noop").mode("overwrite").save()

    run(warm_up)
    memory = Memory()
    memory.start()
    before, began = processor_seconds(), time.perf_counter()
    run(folder)
    seconds, after = time.perf_counter() - began, processor_seconds()
    memory.stop()
    spark.stop()
    return {
        "seconds": seconds,
        "jvm seconds": after[0] - before[0],
        "python seconds": after[1] - before[1],
        "jvm": memory.jvm,
        "workers": memory.workers,
        "load": os.getloadavg()[0],
    }


# --- Data -----------------------------------------------------------------------------------------


def corpus(path: Path, count: int) -> Iterator[tuple[int, int, int, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(itertools.islice(lines, count)):
            document = json.loads(line)
            yield number, document["id"], document["version"], document["text"].lower()


def made_up(count: int) -> Iterator[tuple[int, int, int, str]]:
    """Documents of 700 words by Zipf's law; every tenth is a new version of an earlier one."""
    draw = random.Random(7)
    words = [f"word{rank}" for rank in range(200_000)]
    weights = list(itertools.accumulate(1 / (rank + 1) ** 1.05 for rank in range(len(words))))
    versions: Counter[int] = Counter()
    for number in range(count):
        document = draw.randrange(number) if number and number % 10 == 0 else number
        versions[document] += 1
        text = " ".join(draw.choices(words, cum_weights=weights, k=700))
        yield number, document, versions[document], text


def store(rows: Iterator[tuple[int, int, int, str]], folder: str) -> tuple[int, int]:
    """Write documents to Parquet files in random order; return how many documents and words."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    os.makedirs(folder)
    documents = words = 0
    tokens = re.compile(TOKEN)
    for part in itertools.count():
        chunk = list(itertools.islice(rows, 1_000))
        if not chunk:
            return documents, words
        random.Random(part).shuffle(chunk)
        documents += len(chunk)
        words += sum(len(tokens.findall(row[3])) for row in chunk)
        names = ["time", "id", "version", "text"]
        columns = [list(column) for column in zip(*chunk, strict=True)]
        for half in range(2):  # several files, so that both cores read
            halves = [column[half::2] for column in columns]
            parquet.write_table(
                pa.table(dict(zip(names, halves, strict=True))), f"{folder}/{part}-{half}.parquet"
            )
    raise AssertionError("unreachable")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Batch next to PySpark by hand.")
    parser.add_argument("--data", default=os.environ.get("EMBERFLOW_DATA", str(DEFAULT_DATA)))
    parser.add_argument("--documents", type=int, default=1_000)
    parser.add_argument("--scales", default="1,10")
    parser.add_argument("--only", default=",".join(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--one", nargs=3, metavar=("NAME", "FOLDER", "WARM_UP"))
    options = parser.parse_args([] if arguments is None else arguments)
    if options.one:
        print(json.dumps(measure(*options.one)))
        return
    articles = Path(options.data) / "articles.jsonl.gz"
    names = [name for name in CONTENDERS if name in options.only.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        store(made_up(WARM_UP), f"{folder}/warm-up")
        print(
            "| | documents | words | by | words a second | JVM CPU s | Python CPU s | µs CPU a word "
            "| of by hand: clock, CPU | JVM MB | Python MB | load |"
        )
        print("| --- " * 12 + "|")
        for scale in map(int, options.scales.split(",")):
            count = scale * options.documents
            if scale == 1 and not articles.exists():
                print(f"skipped: {articles} is not there; pass --data or set EMBERFLOW_DATA")
                continue

            def rows(count: int, scale: int = scale) -> Iterator[tuple[int, int, int, str]]:
                return corpus(articles, count) if scale == 1 else made_up(count)

            folders = f"{folder}/{scale}", f"{folder}/{scale}-small"
            sizes = [
                store(rows(number), where)
                for number, where in zip((count, min(count, FEW)), folders, strict=True)
            ]
            found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
            for number in range(options.rounds):
                for name in names:
                    where = folders[name in PARTLY]
                    found[name].append(apart(name, where, f"{folder}/warm-up"))
                    if number == options.rounds - 1:
                        print(line(name, sizes, found), flush=True)


def line(name: str, sizes: list[tuple[int, int]], found: dict[str, list[dict[str, float]]]) -> str:
    """A row of the table: medians of all rounds; maxima of memory and load."""
    label, by, _, hand = CONTENDERS[name]

    def middle(who: str, *whats: str) -> float:
        """Per word."""
        words = sizes[who in PARTLY][1]
        return statistics.median(sum(one[what] for what in whats) for one in found[who]) / words

    processor = ("jvm seconds", "python seconds")
    ratios = "1" if any(name == other[3] for other in CONTENDERS.values()) else ""
    if found.get(hand):
        ratios = (
            f"{middle(name, 'seconds') / middle(hand, 'seconds'):.2f}, "
            f"{middle(name, *processor) / middle(hand, *processor):.2f}"
        )
    documents, words = sizes[name in PARTLY]
    most = {what: max(one[what] for one in found[name]) for what in ("jvm", "workers", "load")}
    return (
        f"| {label} | {documents:,} | {words:,} | {by} | {1 / middle(name, 'seconds'):,.0f} | "
        f"{middle(name, 'jvm seconds') * words:,.1f} | "
        f"{middle(name, 'python seconds') * words:,.1f} | "
        f"{middle(name, *processor) * 1e6:,.2f} | {ratios} | {most['jvm']:,.0f} | "
        f"{most['workers']:,.0f} | {most['load']:.0f} |"
    )


def apart(name: str, folder: str, warm_up: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", name, folder, warm_up]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=3_600)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
