"""Plots of exactly-once: bars by guarantee, latency over time, curves by interval or size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from figures import drawn


def bars(name: str, figures: Mapping[str, Sequence[float]], heads: list[str], unit: str) -> None:
    """A group of bars for each label, one bar for each head."""

    def draw(all_axes: list[Any]) -> None:
        (axes,) = all_axes
        height = 0.8 / len(heads)
        for number, head in enumerate(heads):
            places = [line + number * height for line in range(len(figures))]
            axes.barh(places, [values[number] for values in figures.values()], height, label=head)
        axes.set_yticks([line + 0.4 - height / 2 for line in range(len(figures))], list(figures))
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlabel(unit)
        axes.legend()

    drawn(f"exactly-once-{name}", draw)


def over_time(
    name: str, runs: Mapping[str, tuple[Sequence[tuple[float, float]], Sequence[float]]]
) -> None:
    """Latency of each document by when it was stored; kills are lines."""

    def draw(all_axes: list[Any]) -> None:
        for axes, (label, (latencies, kills)) in zip(all_axes, runs.items(), strict=True):
            axes.plot([at for at, _ in latencies], [ms for _, ms in latencies], ".", markersize=2)
            for kill in kills:
                axes.axvline(kill, color="red", linewidth=0.8)
            axes.set_yscale("log")
            axes.set_ylabel("ms")
            axes.set_title(label)
        all_axes[-1].set_xlabel("seconds; a worker is killed at each red line")

    drawn(f"exactly-once-{name}", draw, rows=len(runs))


def curves(
    name: str,
    across: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    label_across: str,
    label_up: str,
) -> None:
    def draw(all_axes: list[Any]) -> None:
        (axes,) = all_axes
        for label, values in lines.items():
            axes.plot(across, values, marker="o", label=label)
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel(label_across)
        axes.set_ylabel(label_up)
        axes.legend()

    drawn(f"exactly-once-{name}", draw)
