"""Plots of NEXMark: bars by query, one for each system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from figures import drawn


def throughput(found: Mapping[str, Sequence[float]]) -> None:
    _bars("nexmark-throughput", found, ["Emberflow", "Spark", "Flink"], "events a second")


def latency(found: Mapping[str, Sequence[float]]) -> None:
    labels = ["Emberflow p50", "Emberflow p99", "Spark p50", "Spark p99"]
    _bars("nexmark-latency", found, labels, "ms")


def _bars(
    name: str, found: Mapping[str, Sequence[float]], labels: Sequence[str], unit: str
) -> None:
    """A group of bars for each query. What a system cannot do has none."""

    def draw(all_axes: list[Any]) -> None:
        (axes,) = all_axes
        width = 0.8 / len(labels)
        for number, label in enumerate(labels):
            places = [at + number * width for at in range(len(found))]
            axes.bar(places, [figures[number] for figures in found.values()], width, label=label)
        axes.set_xticks([at + 0.4 - width / 2 for at in range(len(found))], list(found))
        axes.set_yscale("log")
        axes.set_ylabel(unit)
        axes.legend()

    drawn(name, draw, width=14)
