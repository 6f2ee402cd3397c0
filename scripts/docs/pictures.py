"""The pictures of docs/ that are drawn from code. A test says when one is out of date.

python scripts/docs/pictures.py    # draws them again
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import emberflow as ef
from emberflow.graph.picture import picture

DOCS = Path(__file__).parents[2] / "docs"


def word_count() -> ef.Flow:
    flow = ef.Flow("word count")
    words = flow.front("lines").flat_map(str.split, name="words")
    words.key_by(lambda word: word).count(name="counted").sink("counts")
    return flow


def running_totals() -> ef.Flow:
    """Sales of two shops, and the running total of each article."""
    flow = ef.Flow("running totals")
    sales = ef.merge(flow.front("north"), flow.front("south"))
    sales.key_by(lambda sale: sale[0]).fold(
        initial=0, combine=lambda total, sale: total + sale[1], with_key=True, name="total"
    ).sink("totals")
    return flow


NORTH = [("tea", 1), ("tea", 2), ("oil", 5), ("tea", 3), ("oil", 1), ("tea", 1)]
SOUTH = [("tea", 10), ("oil", 20), ("tea", 30), ("tea", 10), ("oil", 20), ("tea", 50)]


def played() -> str:
    """The run of the picture: on two workers, one of them often too early."""
    result = ef.simulate(
        running_totals(),
        north=[ef.At(2 * number, sale) for number, sale in enumerate(NORTH)],
        south=[ef.At(2 * number + 1, sale) for number, sale in enumerate(SOUTH)],
        seed=18,
        workers=2,
    )
    with tempfile.TemporaryDirectory() as folder:
        return result.play(Path(folder) / "run.html").read_text(encoding="utf-8")


def bank() -> ef.Flow:
    flow = ef.Flow("bank")
    accounts = flow.state("accounts", default=0)
    with flow.front("transfers").transaction(name="transfer") as tx:
        tx.key_by(lambda t: t[0]).update(accounts, lambda b, t: b - t[2], check=lambda b: b >= 0)
        tx.key_by(lambda t: t[1]).update(accounts, lambda b, t: b + t[2])
    tx.committed.sink("receipts")
    tx.rejected.sink("rejections")
    return flow


def pictures() -> dict[str, str]:
    """By path below docs/."""
    return {
        "images/word-count.svg": picture(word_count().graph()),
        "images/running-totals.svg": picture(running_totals().graph()),
        "images/bank.svg": picture(bank().graph()),
        "speculation.html": played(),
    }


if __name__ == "__main__":
    for path, text in pictures().items():
        (DOCS / path).write_text(text, encoding="utf-8")
